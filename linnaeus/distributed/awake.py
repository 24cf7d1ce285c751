"""Time in which a process runs: a suspended job (SIGSTOP, `scontrol suspend`, a paused container) has lost nothing."""

from __future__ import annotations

import threading
import time

BEAT = 1.0  # seconds between two looks at the clock
PAUSE = 3.0  # seconds without a look after which a process did not run


class Awake:
    """A clock of the time this process runs. Whoever asks first after a pause notices it: nothing is judged by the time before."""

    def __init__(self) -> None:
        self._lock, self._asked, self._paused = threading.Lock(), time.monotonic(), 0.0

    def now(self) -> float:
        with self._lock:
            now = time.monotonic()
            gap, self._asked = now - self._asked, now
            if gap > PAUSE:
                self._paused += gap - BEAT  # where every turn comes late, time goes on nevertheless
            return now - self._paused
