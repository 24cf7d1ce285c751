"""Find spikes of the loss and of the gradient norm: values of one update that the updates before it do not explain.

A value is compared with the median and the spread (1.4826 x the median absolute deviation, the standard deviation of normal noise) of the
last `WINDOW` updates before the start of its `BLOCK` of steps. Both are robust: a spike in the window hardly moves them. Blocks begin at
fixed steps, so the result does not depend on the steps at which rows are logged.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

WINDOW = 128  # updates; long enough for a stable median, short enough to follow a falling loss
BLOCK = 32  # updates with one scale
FEWEST = 32  # updates before the first comparison
NORMAL = 1.4826  # standard deviation over median absolute deviation, for normal noise
LEAST_SPREAD = 0.01  # of the median: a loss without noise, such as that of one batch repeated, falls by less between two blocks


@dataclass(frozen=True)
class SpikeLimits:
    """Conditions for a spike; all of them must hold.

    factor: over the median. deviations: above the median, in spreads. log_deviations: the same for the logarithms, which keeps noise with a
    long tail apart. over_highest: over the highest value of the window. over_first: over the median of the first `FEWEST` updates; the loss
    of a batch that is almost learned varies by large factors."""

    factor: float
    deviations: float
    log_deviations: float
    over_highest: float
    over_first: float


# Chosen on 15 healthy runs of all workloads (tests/faults/healthy.py). A spike of 3 x the loss or 10 x the gradient of an average update
# is above them, except where single updates differ by as much.
LOSS = SpikeLimits(factor=2.0, deviations=6.0, log_deviations=4.3, over_highest=1.1, over_first=0.2)
GRADIENT = SpikeLimits(factor=5.0, deviations=8.0, log_deviations=5.0, over_highest=2.25, over_first=0.0)


class Spike(NamedTuple):
    """A value far above those before it. `usual` is their median."""

    step: int
    value: float
    usual: float


class RunningScale:
    """Window of the newest values of one number, and the scale of those in it at the start of the current block.

    A spike is far above the highest value, so the scale is computed only for a block with such a value: computing it for each block would
    cost 0.2 % of a 1 ms update."""

    def __init__(self, limits: SpikeLimits) -> None:
        self.limits = limits
        self._window: list[float] = []
        self._before = 0  # number of values in the window at the start of the block; 0: too few to compare with
        self._most = math.inf  # no spike is below this limit
        self._first: float | None = None  # median of the first comparison

    def recent(self, count: int) -> float:
        """Return the median of the newest `count` values; NaN if there are fewer."""
        return statistics.median(self._window[-count:]) if len(self._window) >= count else math.nan

    def spikes(self, first_step: int, values: Sequence[float], settled: Sequence[bool] = ()) -> list[Spike]:
        """Add the `values` of consecutive updates, the first of them `first_step`. Return those that are spikes.

        A value that is not finite is left out: it is reported as a skipped update. `settled`: False for an update whose data are not
        comparable with those of the window; it is not a spike. By default all are comparable."""
        found: list[Spike] = []
        start = 0
        while start < len(values):
            step = first_step + start
            if step % BLOCK == 0:
                self._start_block()
            part = values[start : start + BLOCK - step % BLOCK]
            if math.isfinite(sum(part)) and max(part) <= self._most:
                self._window += part  # almost always; comparing each value takes twice as long
            else:
                found += self._compare(step, part, settled[start:])
            start += len(part)
        return found

    def _compare(self, first_step: int, values: Sequence[float], settled: Sequence[bool]) -> Iterator[Spike]:
        """Add the finite ones of `values`, which are in one block, and yield those that are spikes; see `spikes`."""
        usual, limit = self._scale() if self._before else (math.nan, math.inf)
        for step, value, comparable in zip(itertools.count(first_step), values, settled or itertools.repeat(True)):
            if not math.isfinite(value):
                continue
            if comparable and value > limit:
                yield Spike(step, value, usual)
            self._window.append(value)

    def _start_block(self) -> None:
        """Remove the oldest values, and note those with which the values of the block are compared."""
        del self._window[:-WINDOW]
        self._before = len(self._window) if len(self._window) >= FEWEST else 0
        if self._before:
            self._most = self._above_highest(max(self._window))
            self._first = statistics.median_high(self._window) if self._first is None else self._first

    def _above_highest(self, highest: float) -> float:
        return highest + (self.limits.over_highest - 1) * abs(highest)

    def _scale(self) -> tuple[float, float]:
        """Return the median of the values before the block, and the limit above which a value is a spike."""
        ordered, limits = np.sort(self._window[: self._before]), self.limits
        lowest, median, highest = ordered.item(0), ordered.item(len(ordered) // 2), ordered.item(-1)
        spread = _spread(ordered - median, LEAST_SPREAD * abs(median))
        bounds = [median + limits.deviations * spread, self._above_highest(highest)]
        if lowest > 0 and self._first is not None:
            spread = _spread(np.log(ordered) - math.log(median), LEAST_SPREAD)
            bounds += [limits.over_first * self._first, limits.factor * median]
            bounds.append(median * math.exp(min(50.0, limits.log_deviations * spread)))
        return median, max(bounds)

    def state_dict(self) -> dict[str, Any]:
        return {"window": list(self._window), "before": self._before, "first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._window, self._before, self._first = list(state["window"]), state["before"], state["first"]
        self._most = self._above_highest(max(self._window[: self._before])) if self._before else math.inf


def _spread(deviations: np.ndarray, least: float) -> float:
    """Return the robust standard deviation from deviations from the median, at least `least`."""
    return max(NORMAL * np.sort(np.abs(deviations)).item(len(deviations) // 2), least)
