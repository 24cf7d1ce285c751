"""Read the memory of processes, and warn of growth that looks like a leak.

The memory of a process is its resident pages (RSS). Pages of files and of shared memory count as shared, such as the store of decoded
photographs and the batches of loader workers; all other pages are private. Only the growth of private memory is checked, so a cache in
shared memory that is still growing causes no warning.
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
    """Memory of a process in MiB. resident: all its resident pages. shared: the part of `resident` in files or in shared memory."""

    resident: float
    shared: float

    @property
    def private(self) -> float:
        """Return the resident memory that is not shared, in MiB."""
        return self.resident - self.shared


def memory_of(process: int | None = None) -> Memory | None:
    """Return the memory of the process with this PID (None: this process); None if it has ended, or on a system other than Linux."""
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
    """Return an open file descriptor of /proc/<process>/statm. It is cached: opening and reading the file takes six times as long as
    reading it.

    process: PID of this process. It is the key of the cache, so that a forked process opens its own file."""
    return os.open(f"/proc/{process}/statm", os.O_RDONLY | os.O_CLOEXEC)


def private_of(processes: Iterable[int]) -> float:
    """Return the sum of the private memory of the processes with these PIDs, in MiB. Processes that have ended are left out."""
    return sum(found.private for process in processes if (found := memory_of(process)) is not None)


def shared_memory_of(process: int | None = None) -> float | None:
    """Return how much of the resident memory of the process with this PID (None: this process) is in shared memory, in MiB, such as batches
    of loader workers. Unlike in `Memory.shared`, pages of files do not count. Return None if the process has ended, or on another system
    than Linux."""
    try:
        with open(f"/proc/{process or os.getpid()}/status", "rb") as file:
            return next((int(line.split()[1]) / 1024 for line in file if line.startswith(b"RssShmem:")), None)
    except (OSError, ValueError):
        return None


def together(processes: Iterable[int]) -> tuple[float, float]:
    """Return (resident memory, shared memory) of the processes with these PIDs, in MiB. Each is a sum over the processes, so that a page
    that two of them use counts twice. Processes that have ended are left out."""
    pids = list(processes)
    resident = sum(found.resident for pid in pids if (found := memory_of(pid)) is not None)
    return resident, sum(shared_memory_of(pid) or 0.0 for pid in pids)


SKIPPED = 3  # first readings of a launch that are left out, because the first updates allocate memory
LEAST_READINGS, MOST_READINGS = 16, 48
LEAST_GROWTH = 64.0, 0.05  # MiB, and fraction of the memory at the beginning; the larger of both counts
LEAST_SHARES = 0.30, 0.44  # least shares of the growth in the first and in the second half of the readings; 0.5 for even growth
# Conditions of a fast leak: least number of readings; least growth (as `LEAST_GROWTH`); range of the growth per step between two readings,
# as multiples of its median; least growth per step of the last half over that of the first half.
FAST_READINGS, FAST_GROWTH, FAST_STEADY, FAST_LASTING = 7, (128.0, 0.25), (0.5, 1.5), 0.93
# Conditions of a sudden leak, for each of its last two rises: least growth (as `LEAST_GROWTH`), and least growth per step over that of the
# rise before. In runs of vectors, nanecho and biota, private memory was constant to 3 % over the first ten reports after the first.
SUDDEN_GROWTH, SUDDEN_LASTING = (64.0, 0.2), 0.9
# The same after a constant stretch of `STRETCH` readings, whose range is at most the fraction `CONSTANT` of the smaller rise.
STRETCH, CONSTANT, SUDDEN_GROWTH_AFTER, SUDDEN_LASTING_AFTER = 6, 0.25, (64.0, 0.05), 0.75


class MemoryGrowth:
    """Detector of a memory leak in a series of readings.

    From `LEAST_READINGS` readings on, a leak is reported if three conditions hold. The medians of the four quarters of the readings rise
    from quarter to quarter. They rise by at least `LEAST_GROWTH` from the first to the last quarter. The first half of the readings has at
    least the fraction `LEAST_SHARES[0]` of the growth, and the second half at least `LEAST_SHARES[1]`. The third condition excludes a
    cache, whose growth slows down, and a new buffer, whose growth is a single jump. A fast leak is reported from `FAST_READINGS` readings
    on (`_grows_fast`), a sudden leak at its second rise (`_grows_suddenly`). If there are more than `MOST_READINGS` readings, every other
    reading is dropped, so that the readings cover the whole launch."""

    def __init__(self, name: str) -> None:
        """`name`: name of the memory in the warning, such as `GPU memory`."""
        self.name = name
        self._readings: list[tuple[int, float]] = []
        self._every, self._count, self._said = 1, 0, False
        self._last: list[tuple[int, float]] = []  # the last readings, none of them left out

    def report(self, step: int, mebibytes: float, last_step: int) -> str | None:
        """Add the reading of a progress report. Return a warning if the readings look like a leak, otherwise None; after the first warning
        always None.

        step: `global_step` of the report. mebibytes: the reading in MiB. last_step: last step of the run; the warning says how much memory
        is expected by then. The first `SKIPPED` readings are ignored, except for sudden leaks, for which only the first reading is ignored:
        it is before the first update. In a long launch, only every 2nd, 4th, ... reading is used, except for sudden leaks."""
        if self._said:
            return None
        self._count += 1
        found = self._add_to_last(step, mebibytes) or self._add(step, mebibytes)
        if not found:
            return None
        self._said = True
        (first, begin), (last, end) = found[0], found[-1]
        more = _rate(found) * max(0, last_step - step)
        return (
            f"{self.name} grows steadily, as in a leak: from {format_memory(begin)} at step {first:,} to {format_memory(end)} "
            f"at step {last:,}; "
            f"at this rate {format_memory(more)} more until the end of the run"
        )

    def _add_to_last(self, step: int, mebibytes: float) -> list[tuple[int, float]]:
        """Add a reading to the last readings. Return the three readings of a sudden leak, otherwise []."""
        if self._count > 1:
            self._last = [*self._last, (step, mebibytes)][-STRETCH - 3 :]
        return self._last[-3:] if self._grows_suddenly() else []

    def _add(self, step: int, mebibytes: float) -> list[tuple[int, float]]:
        """Add a reading to the readings of the whole launch. Return all of them if they look like a leak, otherwise []."""
        if self._count <= SKIPPED or self._count % self._every:
            return []
        self._readings.append((step, mebibytes))
        if len(self._readings) > MOST_READINGS:
            self._readings, self._every = self._readings[::2], 2 * self._every
        return self._readings if self._grows_fast() or (len(self._readings) >= LEAST_READINGS and self._grows()) else []

    def _grows_suddenly(self) -> bool:
        """Return True if the conditions of a sudden leak hold: the last two rises are at least `SUDDEN_GROWTH` and do not slow down, or
        they are at least `SUDDEN_GROWTH_AFTER` after a constant stretch. The reading between the stretch and the rises is not checked: the
        leak may have begun shortly before it. One rise alone may be a new buffer."""
        if len(self._last) < 3:
            return False
        (first, a), (middle, b), (last, c) = self._last[-3:]
        if not first < middle < last:
            return False
        rise, lasting = min(b - a, c - b), (c - b) / (last - middle) * (middle - first)
        if rise >= max(SUDDEN_GROWTH[0], SUDDEN_GROWTH[1] * a) and lasting >= SUDDEN_LASTING * (b - a):
            return True
        before = [value for _, value in self._last[:-3]]
        if len(before) < STRETCH or max(before) - min(before) > CONSTANT * rise:
            return False
        return rise >= max(SUDDEN_GROWTH_AFTER[0], SUDDEN_GROWTH_AFTER[1] * a) and lasting >= SUDDEN_LASTING_AFTER * (b - a)

    def _grows_fast(self) -> bool:
        """Return True if the conditions of a fast leak hold: at least `FAST_READINGS` readings, a growth of at least `FAST_GROWTH`, a
        nearly constant rate between readings, and a rate that does not slow down in the second half."""
        values = [value for _, value in self._readings]
        if len(values) < FAST_READINGS or values[-1] - values[0] < max(FAST_GROWTH[0], FAST_GROWTH[1] * values[0]):
            return False
        rates = [(b - a) / (last - first) for (first, a), (last, b) in pairwise(self._readings) if last > first]
        usual, middle = median(rates), len(values) // 2
        if min(rates) < FAST_STEADY[0] * usual or max(rates) > FAST_STEADY[1] * usual:
            return False
        return _rate(self._readings[middle:]) >= FAST_LASTING * _rate(self._readings[: middle + 1])

    def _grows(self) -> bool:
        number = len(self._readings)
        quarters = [[value for _, value in self._readings[i * number // 4 : (i + 1) * number // 4]] for i in range(4)]
        levels = [median(quarter) for quarter in quarters]
        rises = all(a < b for a, b in pairwise(levels))
        if not rises or levels[3] - levels[0] < max(LEAST_GROWTH[0], LEAST_GROWTH[1] * levels[0]):
            return False
        halves = self._readings[: number // 2], self._readings[number // 2 :]
        steps = (self._readings[-1][0] - self._readings[0][0]) / 2
        growth = 4 / 3 * (levels[3] - levels[0])  # from the first reading to the last, if it is even
        return all(_rate(half) * steps >= share * growth for half, share in zip(halves, LEAST_SHARES, strict=True))


def _rate(readings: list[tuple[int, float]]) -> float:
    """Return the growth in MiB per step: the median slope over all pairs of readings (step, MiB) (Theil-Sen estimator)."""
    return median((b - a) / (last - first) for i, (first, a) in enumerate(readings) for last, b in readings[i + 1 :] if last > first)
