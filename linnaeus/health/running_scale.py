"""Find spikes of the loss and of the gradient norm: values of single updates far above the values of the updates before.

Steps are divided into blocks of `BLOCK`, which begin at multiples of `BLOCK`, so the result does not depend on the steps at which rows are
logged. Each value of a block is compared with the median and the spread of the `WINDOW` updates before the block. The spread is 1.4826 x
the median absolute deviation, which for normal noise is the standard deviation. A spike within the window hardly changes median and
spread."""

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
FEWEST = 32  # least number of values in the window for a comparison
NORMAL = 1.4826  # standard deviation over median absolute deviation, for normal noise
LEAST_SPREAD = 0.01  # fraction of the median; a loss without noise (one batch repeated) has a spread of nearly 0


@dataclass(frozen=True)
class SpikeLimits:
    """Limits of a spike: a value is a spike if it exceeds all limits that apply. "The window" is the values before the block.

    factor: multiple of the median. deviations: number of spreads above the median. log_deviations: number of spreads of the logarithms
    above the logarithm of the median, for noise with a long tail. over_highest: multiple of the highest value in the window. over_first:
    multiple of the first median of the run, because a loss near 0 varies by large factors. `factor` and `over_first` apply only if no
    value in the window is negative, `log_deviations` only if all are positive."""

    factor: float
    deviations: float
    log_deviations: float
    over_highest: float
    over_first: float


# Chosen on 15 healthy runs of all workloads (tests/faults/healthy.py), which have no spike. A value of 3 x the mean loss or 10 x the mean
# gradient norm exceeds them, unless healthy updates of the run vary by as much.
LOSS = SpikeLimits(factor=2.0, deviations=6.0, log_deviations=4.3, over_highest=1.1, over_first=0.2)
GRADIENT = SpikeLimits(factor=5.0, deviations=8.0, log_deviations=5.0, over_highest=2.25, over_first=0.0)


class Spike(NamedTuple):
    """Value of an update far above the values before. step: `global_step` after the update. usual: the median with which `value` was
    compared."""

    step: int
    value: float
    usual: float


class RunningScale:
    """Detector of spikes in the values of one quantity, such as the loss. It keeps a window of the newest values.

    A spike is above the highest value of the window. Median and spread are therefore computed only for a block with such a value: computing
    them for each block would cost 0.2 % of a 1 ms update."""

    def __init__(self, limits: SpikeLimits) -> None:
        self.limits = limits
        self._window: list[float] = []
        self._before = 0  # number of values in the window at the start of the block; 0 if they were fewer than `FEWEST`
        self._most = math.inf  # lower bound of all spikes of the block
        self._first: float | None = None  # median of the first comparison

    def recent(self, count: int) -> float:
        """Return the median of the newest `count` values; NaN if there are fewer than `count`."""
        return statistics.median(self._window[-count:]) if len(self._window) >= count else math.nan

    def spikes(self, first_step: int, values: Sequence[float], settled: Sequence[bool] = ()) -> list[Spike]:
        """Add the `values` [n] of n consecutive updates. Return the spikes among them. first_step: `global_step` after the first update.

        A value that is not finite is not added: the update was skipped, and another alarm reports this. settled: [n], False if the data of
        an update are not comparable with the data of earlier updates; its value is added, but is never a spike. (): all are comparable. No
        value is a spike if the window had fewer than `FEWEST` values at the start of the block."""
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
        """Add the finite values among `values`, all of one block, and yield the spikes. Arguments as in `spikes`."""
        usual, limit = self._scale() if self._before else (math.nan, math.inf)
        for step, value, comparable in zip(itertools.count(first_step), values, settled or itertools.repeat(True)):
            if not math.isfinite(value):
                continue
            if comparable and value > limit:
                yield Spike(step, value, usual)
            self._window.append(value)

    def _start_block(self) -> None:
        """Shorten the window to `WINDOW` values. Set the number of values with which the new block is compared, and the bound `_most`."""
        del self._window[:-WINDOW]
        self._before = len(self._window) if len(self._window) >= FEWEST else 0
        if self._before:
            self._most = self._above_highest(max(self._window))
            self._first = statistics.median_high(self._window) if self._first is None else self._first

    def _above_highest(self, highest: float) -> float:
        return highest + (self.limits.over_highest - 1) * abs(highest)

    def _scale(self) -> tuple[float, float]:
        """Return (median of the values before the block, limit above which a value is a spike)."""
        ordered, limits = np.sort(self._window[: self._before]), self.limits
        lowest, median, highest = ordered.item(0), ordered.item(len(ordered) // 2), ordered.item(-1)
        spread = _spread(ordered - median, LEAST_SPREAD * abs(median))
        bounds = [median + limits.deviations * spread, self._above_highest(highest)]
        if lowest >= 0 and self._first is not None:
            bounds += [limits.over_first * self._first, limits.factor * median]
        if lowest > 0:
            spread = _spread(np.log(ordered) - math.log(median), LEAST_SPREAD)
            bounds.append(median * math.exp(min(50.0, limits.log_deviations * spread)))
        return median, max(bounds)

    def state_dict(self) -> dict[str, Any]:
        return {"window": list(self._window), "before": self._before, "first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._window, self._before, self._first = list(state["window"]), state["before"], state["first"]
        self._most = self._above_highest(max(self._window[: self._before])) if self._before else math.inf


def _spread(deviations: np.ndarray, least: float) -> float:
    """Return 1.4826 x the median of |deviations|, but at least `least`. deviations: differences from the median, [n]."""
    return max(NORMAL * np.sort(np.abs(deviations)).item(len(deviations) // 2), least)
