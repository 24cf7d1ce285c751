"""Requests to stop: SIGTERM, SIGINT, SIGUSR1 and `trainer.max_time`.

A signal handler only records the request. At the next step end all ranks agree on it (`synchronisation.py`), save and exit with
status 75. Before training there is nothing to save, and the process exits at once.
"""

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from linnaeus.durations import Duration

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SAME_REQUEST = 2.0  # seconds in which signals count as one request: the scheduler and the launcher both signal every process


class StoppedBeforeTraining(BaseException):
    """A request to stop while the run was being set up. A `BaseException`, so that no handler of errors catches it."""


class StopRequest:
    """A request to stop by a signal or by a time limit.

    signal: the name of the first stop signal received; None so far. max_time: a duration in wall time such as "3h", counted from the
    construction of this object. deadline: its end on the monotonic clock; infinite without a limit."""

    def __init__(self, max_time: str | None = None) -> None:
        self.signal: str | None = None
        self.max_time = max_time
        limit = Duration.parse(max_time, "trainer.max_time").seconds if max_time else math.inf
        self.deadline = time.monotonic() + limit
        self._received_at = 0.0
        self._deferred = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle stop signals as requests inside the block.

        A second signal, more than `SAME_REQUEST` seconds after the first, exits at once without saving. Before `defer_to_step_end` a
        signal raises `StoppedBeforeTraining`."""

        def handle(number: int, _: Any) -> None:
            if self.signal is not None:
                if time.monotonic() - self._received_at > SAME_REQUEST:
                    os._exit(128 + number)
                return
            self.signal, self._received_at = signal.Signals(number).name, time.monotonic()
            if not self._deferred:
                raise StoppedBeforeTraining(self.signal)

        previous = {s: signal.signal(s, handle) for s in STOP_SIGNALS}
        try:
            yield
        finally:
            for s, handler in previous.items():
                signal.signal(s, handler)

    def defer_to_step_end(self) -> None:
        """Only record signals from now on. The next step end acts on them."""
        self._deferred = True
