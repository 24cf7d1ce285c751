"""Who asked this process to stop: SIGTERM, SIGINT, SIGUSR1, or `trainer.max_time`.

A handler only notes the request; the step boundary (with the others, `agreement.py`) saves and ends with status 75. Before training
begins there is nothing to save, and the process leaves at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from linnaeus.durations import Duration

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SAME_REQUEST = 2.0  # seconds: a scheduler signals every process of a job, and so does the launcher it signalled


class StoppedBeforeTraining(BaseException):
    """A request to stop came while the run was still being set up. Not an error, and nothing may swallow it."""


class StopRequest:
    """`signal` names the first signal that came; `out_of_time()` whether `max_time` (a duration by the clock) has passed since this
    was made."""

    def __init__(self, max_time: str | None = None) -> None:
        self.signal: str | None = None
        self.max_time = max_time
        self._ends = time.monotonic() + Duration.parse(max_time, "trainer.max_time").seconds if max_time else None
        self._first = 0.0
        self._waits = False

    def out_of_time(self) -> bool:
        return self._ends is not None and time.monotonic() >= self._ends

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Until the block ends the signals are requests. A second one leaves at once, unsaved."""

        def ask(number: int, _: Any) -> None:
            if self.signal is not None:
                if time.monotonic() - self._first > SAME_REQUEST:
                    os._exit(128 + number)
                return
            self.signal, self._first = signal.Signals(number).name, time.monotonic()
            if not self._waits:
                raise StoppedBeforeTraining(self.signal)

        previous = {s: signal.signal(s, ask) for s in STOPPING}
        try:
            yield
        finally:
            for s, handler in previous.items():
                signal.signal(s, handler)

    def wait_for_step_end(self) -> None:
        """From here on a request is noted, and acted upon at the next step boundary."""
        self._waits = True
