"""The current speed of a run and the time that is left: means over the last reports of this launch, without its first update.

The first update of a launch starts loader workers and compiles; validation and saving are timed separately. None of these are part of the
speed, so the time left is accurate soon after each start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

REPORTS = 10  # intervals between reports over which the speed is averaged


class Reading(NamedTuple):
    """Counters at one moment. Of this launch: seconds of training and, within them, of waiting for data. Of the run: step, samples, and
    units of the workload such as tokens."""

    seconds: float
    waiting: float
    step: int
    samples: int
    units: int = 0


class Throughput:
    """The speed over the last reports. `restart` at the start of a launch and after its first update; `update` at each report."""

    def __init__(self, reports: int = REPORTS) -> None:
        self._readings: deque[Reading] = deque(maxlen=reports + 1)

    def restart(self, reading: Reading) -> None:
        """Measure from this reading on."""
        self._readings.clear()
        self._readings.append(reading)

    def update(self, reading: Reading) -> None:
        """Add the reading of a report. A reading at the step of the last one is ignored."""
        if not self._readings or reading.step > self._readings[-1].step:
            self._readings.append(reading)

    def rates(self, units: str | None = None) -> dict[str, float]:
        """Return `steps_per_second`, `ms_per_step`, `samples_per_second`, `waiting_for_data` (0 to 1) and, for named `units`,
        `<units>_per_second`; {} before two readings."""
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


def expected_seconds(steps: Sequence[int], step: int, spent: float, done: int) -> float | None:
    """Return the seconds that the events at the sorted `steps` take from `step` on, that of `step` included.

    Each is expected to take the mean of the `done` events, which took `spent` seconds. Return 0 without a remaining event, None before
    the first event is done."""
    left = len(steps) - bisect_left(steps, step)
    if not left:
        return 0.0
    return left * spent / done if done else None
