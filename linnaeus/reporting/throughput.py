"""How fast a run goes now, and how long it will take: over the last reports of this launch, without its first update.

The first update of a launch starts loader workers and compiles; validation and saving are timed apart. None of it is in the pace, so
the time left is right soon after a start, and after each restart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

REPORTS = 10  # the pace is that of the last so many intervals between reports


class Reading(NamedTuple):
    """Readings at one moment: seconds of training and, within them, of waiting for data in this launch; step, samples and the workload's
    own units of the run."""

    seconds: float
    waiting: float
    step: int
    samples: int
    units: int = 0


class Throughput:
    """Feed it a reading where a launch begins, after its first update, and at each report."""

    def __init__(self, reports: int = REPORTS) -> None:
        self._readings: deque[Reading] = deque(maxlen=reports + 1)

    def restart(self, reading: Reading) -> None:
        """Count from here."""
        self._readings.clear()
        self._readings.append(reading)

    def take(self, reading: Reading) -> None:
        """The moment of a report. One without an update since the last reading changes nothing."""
        if not self._readings or reading.step > self._readings[-1].step:
            self._readings.append(reading)

    def rates(self, units: str | None = None) -> dict[str, float]:
        """`steps_per_second`, `ms_per_step`, `samples_per_second`, `waiting_for_data` (0 to 1) and, where `units` are named, these per
        second; empty while no update is timed."""
        if len(self._readings) < 2:
            return {}
        first, last = self._readings[0], self._readings[-1]
        seconds, steps = max(last.seconds - first.seconds, 1e-9), last.step - first.step
        rates = {
            "steps_per_second": steps / seconds,
            "ms_per_step": 1000 * seconds / steps,
            "samples_per_second": (last.samples - first.samples) / seconds,
            "waiting_for_data": (last.waiting - first.waiting) / seconds,
        }
        if units is not None:
            rates[f"{units}_per_second"] = (last.units - first.units) / seconds
        return rates


def expected_seconds(happens: Sequence[int], step: int, spent: float, done: int) -> float | None:
    """What events at the sorted steps `happens` (one entry each) will still take from `step` on, at the mean of the `done` ones
    that took `spent` seconds. 0 where none is to come, None where none was done yet. One at `step` itself is still to come: a
    report precedes it."""
    left = len(happens) - bisect_left(happens, step)
    if not left:
        return 0.0
    return left * spent / done if done else None
