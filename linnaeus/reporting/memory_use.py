"""Read the memory of processes, and point out growth that looks like a leak.

The memory of a process is its resident pages. Shared ones (files, the store of decoded photographs, batches of loader workers) are not its
own; the others are private. Only private memory is watched for growth, so a cache in shared memory that fills is not taken for a leak.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from linnaeus.reporting.formatting import format_memory

PAGE = os.sysconf("SC_PAGE_SIZE") / 2**20  # MiB


class Memory(NamedTuple):
    """Memory in MiB: `resident` pages of a process, and the part of them that is `shared` with others."""

    resident: float
    shared: float

    @property
    def private(self) -> float:
        return self.resident - self.shared


def memory_of(process: int | None = None) -> Memory | None:
    """Return the memory of a process, by its number (default: this process); None if it has ended, or the system is not Linux."""
    try:
        if process is None or process == os.getpid():
            content = os.pread(_own_statm(os.getpid()), 128, 0)
        else:
            with open(f"/proc/{process}/statm", "rb", buffering=0) as file:
                content = file.read(128)
        _, resident, shared, *_ = content.split()
    except (OSError, ValueError):
        return None
    return Memory(int(resident) * PAGE, int(shared) * PAGE)


@functools.lru_cache(maxsize=1)
def _own_statm(process: int) -> int:
    """Return a descriptor of the file with the memory of this process. It stays open: opening the file takes four times as long as reading
    it. `process`: the number of this process, so that a forked one opens its own."""
    return os.open(f"/proc/{process}/statm", os.O_RDONLY | os.O_CLOEXEC)


def private_of(processes: Iterable[int]) -> float:
    """Return the private memory of all these processes together, in MiB."""
    return sum(found.private for process in processes if (found := memory_of(process)) is not None)


SKIPPED = 3  # first reports of a launch: the first updates allocate
LEAST_READINGS, MOST_READINGS = 16, 48
LEAST_GROWTH = 64.0, 0.05  # MiB, and part of the memory at the begin
LEAST_SHARES = 0.30, 0.44  # of the growth that the first and the last half of the readings must have; 0.5 if it is even


class MemoryGrowth:
    """Watch over a series of readings. `report` returns a line at most once.

    The readings grow like a leak if the medians of their four quarters rise, from the first to the last by at least `LEAST_GROWTH`, and if
    both halves have their share of the growth (`LEAST_SHARES`). A cache that fills, or a heap that settles, slows down; a new buffer is a
    step. If there are more than `MOST_READINGS`, every other one is kept, so the readings cover the whole launch."""

    def __init__(self, name: str) -> None:
        """`name`: of the memory, for the line."""
        self.name = name
        self._readings: list[tuple[int, float]] = []
        self._every, self._count, self._said = 1, 0, False

    def report(self, step: int, mebibytes: float, last_step: int) -> str | None:
        """Add the reading of a report. Return a line for the log if the memory grows like a leak. `last_step`: of the run."""
        self._count += 1
        if self._said or self._count <= SKIPPED or self._count % self._every:
            return None
        self._readings.append((step, mebibytes))
        if len(self._readings) > MOST_READINGS:
            self._readings, self._every = self._readings[::2], 2 * self._every
        if len(self._readings) < LEAST_READINGS or not self._grows():
            return None
        self._said = True
        (first, begin), (last, end) = self._readings[0], self._readings[-1]
        more = _rate(self._readings) * max(0, last_step - step)
        return (
            f"{self.name} grows like a leak: from {format_memory(begin)} at step {first:,} to {format_memory(end)} at step {last:,}; "
            f"at this rate {format_memory(more)} more until the end of the run"
        )

    def _grows(self) -> bool:
        number = len(self._readings)
        quarters = [[value for _, value in self._readings[i * number // 4 : (i + 1) * number // 4]] for i in range(4)]
        levels = [median(quarter) for quarter in quarters]
        rises = all(a < b for a, b in pairwise(levels))
        if not rises or levels[3] - levels[0] < max(LEAST_GROWTH[0], LEAST_GROWTH[1] * levels[0]):
            return False
        halves = self._readings[: number // 2], self._readings[number // 2 :]
        steps = (self._readings[-1][0] - self._readings[0][0]) / 2
        growth = 4 / 3 * (levels[3] - levels[0])  # of even growth, from the first reading to the last
        return all(_rate(half) * steps >= share * growth for half, share in zip(halves, LEAST_SHARES, strict=True))


def _rate(readings: list[tuple[int, float]]) -> float:
    """Return the growth in MiB a step: the median over all pairs of readings (Theil and Sen)."""
    return median((b - a) / (last - first) for i, (first, a) in enumerate(readings) for last, b in readings[i + 1 :] if last > first)
