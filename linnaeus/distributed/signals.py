"""Record requests to stop the run: SIGTERM, SIGINT, SIGUSR1 and `trainer.max_time`.

A signal handler records the request and prints a line. At the next step end all ranks agree to stop (`synchronisation.py`), save and exit
with status 75. Before training there is nothing to save, and the process exits at once."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from linnaeus.durations import Duration

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SAME_REQUEST = 2.0  # seconds in which signals count as one request: the scheduler and the launcher both signal every process


STOPPING = "stopping after this update and saving; once more leaves at once"


class StoppedBeforeTraining(BaseException):
    """A request to stop that arrived while the run was being set up. This is a `BaseException`, so that no `except Exception` catches
    it."""


class StopRequest:
    """Record of a request to stop, by a signal or by a time limit.

    signal: name of the first stop signal received; None if there was none. max_time: the time limit, a duration in wall time such as "3h",
    counted from the construction of this object; None: no limit. deadline: the end of the limit on the monotonic clock; infinite without
    one."""

    def __init__(self, max_time: str | None = None) -> None:
        self.signal: str | None = None
        self.max_time = max_time
        self._constructed = time.monotonic()
        limit = Duration.parse(max_time, "trainer.max_time").seconds if max_time else math.inf
        self.deadline = time.monotonic() + limit
        self._received_at = 0.0
        self._deferred = False
        self._show: Callable[[str], None] = lambda text: None
        self._loss: Callable[[], str] = lambda: ""

    @property
    def age(self) -> float:
        """Return the seconds since the construction of this object."""
        return time.monotonic() - self._constructed

    @property
    def signal_age(self) -> float | None:
        """Return the seconds since the first stop signal; None if this process received none."""
        return time.monotonic() - self._received_at if self._received_at else None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Return a context manager in which stop signals are recorded as requests.

        Before `defer_to_step_end` is called, the first signal also raises `StoppedBeforeTraining`. A second signal more than `SAME_REQUEST`
        seconds after the first ends the process at once without saving."""

        def handle(number: int, _: Any) -> None:
            if self.signal is not None:
                if time.monotonic() - self._received_at > SAME_REQUEST:
                    self._leave(128 + number)
                return
            self.signal, self._received_at = signal.Signals(number).name, time.monotonic()
            if not self._deferred:
                raise StoppedBeforeTraining(self.signal)
            self._show(STOPPING)

        previous = {s: signal.signal(s, handle) for s in STOP_SIGNALS}
        try:
            yield
        finally:
            for s, handler in previous.items():
                signal.signal(s, handler)

    def defer_to_step_end(self, show: Callable[[str], None], loss: Callable[[], str]) -> None:
        """From now on, a signal is recorded and a line is printed, but nothing is raised; the training loop stops at the next step end.

        show: function that prints a text and may be called in a signal handler. loss: function that returns a line about the updates that
        are lost if the process exits without saving."""
        self._deferred, self._show, self._loss = True, show, loss

    def _leave(self, status: int) -> None:
        """Print the line about the updates that are lost, and exit with `status` without saving."""
        try:
            self._show(f"{self._loss()}\n")
        finally:
            os._exit(status)
