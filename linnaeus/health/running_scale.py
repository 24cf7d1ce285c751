"""Find spikes of the loss and of the gradient norm: values of one update that the updates before it do not explain.

A value is compared with the median and the spread (1.4826 x the median absolute deviation, the standard deviation of normal noise) of the
last `WINDOW` updates. Both are robust: a spike in the window hardly moves them. They are computed at the start of every `BLOCK` of steps,
so the result does not depend on the steps at which rows are logged.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

WINDOW = 128  # updates; long enough for a stable median, short enough to follow a falling loss
BLOCK = 32  # updates with one scale: sorting 128 numbers at every update would cost 1 % of a 1 ms update
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
    """Window of the newest values of one number, and the scale computed from it at the start of the current block."""

    def __init__(self, limits: SpikeLimits) -> None:
        self.limits = limits
        self._window: list[float] = []
        self._scale: tuple[float, float] | None = None  # (median, limit above which a value is a spike)
        self._first: float | None = None  # median at the first measurement

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
                self._measure()
            part = values[start : start + BLOCK - step % BLOCK]
            if math.isfinite(sum(part)) and (self._scale is None or max(part) <= self._scale[1]):
                self._window += part  # almost always; comparing each value takes twice as long
            else:
                found += self._compare(step, part, settled[start:])
            start += len(part)
        return found

    def _compare(self, first_step: int, values: Sequence[float], settled: Sequence[bool]) -> Iterator[Spike]:
        """Add the finite ones of `values`, which are in one block, and yield those that are spikes; see `spikes`."""
        for step, value, comparable in zip(itertools.count(first_step), values, settled or itertools.repeat(True)):
            if not math.isfinite(value):
                continue
            if comparable and self._scale is not None and value > self._scale[1]:
                yield Spike(step, value, self._scale[0])
            self._window.append(value)

    def _measure(self) -> None:
        """Compute the scale from the window."""
        del self._window[:-WINDOW]
        if len(self._window) < FEWEST:
            return
        ordered = sorted(self._window)
        median, limits = ordered[len(ordered) // 2], self.limits
        self._first = median if self._first is None else self._first
        bounds = [median + limits.deviations * _spread(ordered, median), ordered[-1] + (limits.over_highest - 1) * abs(ordered[-1])]
        if ordered[0] > 0:
            logarithms = [math.log(value) for value in ordered]
            spread = _spread(logarithms, math.log(median), LEAST_SPREAD)
            bounds += [limits.over_first * self._first, limits.factor * median]
            bounds.append(median * math.exp(min(50.0, limits.log_deviations * spread)))
        self._scale = median, max(bounds)

    def state_dict(self) -> dict[str, Any]:
        return {"window": list(self._window), "scale": self._scale, "first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._window, self._first = list(state["window"]), state["first"]
        self._scale = None if state["scale"] is None else tuple(state["scale"])  # type: ignore[assignment]


def _spread(ordered: Sequence[float], median: float, least: float | None = None) -> float:
    """Return the robust standard deviation of values in increasing order, at least `least` (default: `LEAST_SPREAD` of the median)."""
    deviations = sorted(abs(value - median) for value in ordered)
    floor = LEAST_SPREAD * abs(median) if least is None else least
    return max(NORMAL * deviations[len(deviations) // 2], floor)
