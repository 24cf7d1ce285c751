"""Requests to stop that reach the parent of other processes. It passes each on; what they do with it is theirs."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SAME_REQUEST = 2.0  # seconds: one request may reach this process more than once


class Requests:
    """While entered, SIGTERM, SIGINT and SIGUSR1 are counted: `count` 1 asks to save and end, 2 to end at once. A third ends this process
    too, and what runs on this machine goes with it."""

    def __init__(self) -> None:
        self.count = 0
        self._last = 0.0

    def __enter__(self) -> Requests:
        self._previous = {number: signal.signal(number, self._ask) for number in STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self.count or now - self._last > SAME_REQUEST:
            self.count, self._last = self.count + 1, now
        if self.count > 2:
            os._exit(128 + number)
