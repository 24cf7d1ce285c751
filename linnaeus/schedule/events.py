"""Define recurring events, in steps (`Every`) or in seconds of wall time (`TimeTrigger`), and values that change linearly over steps
(`Ramp`).

The printed schedule lists `Every.steps()` and the training loop calls `Every.due(step)`. Both use the same arithmetic, so the schedule
lists exactly the steps at which the event occurs. The `step` of an event is the value of `global_step` after an update: it is 1 after the
first update."""

from __future__ import annotations

import bisect
import functools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from linnaeus.config.schema_optimization import LinearGrowthConfig
from linnaeus.config.schema_schedule import RampConfig
from linnaeus.durations import Duration, first_step_at
from linnaeus.errors import ConfigError


@dataclass(frozen=True)
class Every:
    """An event that occurs at some of the steps from `first` to `last`: at multiples of each of `periods`, and at the elements of `others`.

    Multiples of whole periods are computed when needed. Multiples of fractional periods (33 % of 10 steps) are rounded up to whole steps
    and stored in `others`."""

    periods: tuple[int, ...] = ()
    others: frozenset[int] = frozenset()
    first: int = 1
    last: int = 0
    cadences: tuple[str, ...] = ()  # as the user wrote them
    seconds: tuple[float, ...] = ()  # intervals in wall time, for `TimeTrigger`

    @classmethod
    def resolve(
        cls,
        texts: Iterable[str],
        key: str,
        total_steps: int,
        steps_per_epoch: int,
        last: int,
        *,
        first: int = 1,
        at_end: bool = False,
        by_clock: bool = False,
    ) -> Every:
        """Return the event that occurs at the multiples of each duration in `texts`, within steps `first` to `last`.

        `at_end=True` adds the step `last`. Percentages are of `total_steps`. With `by_clock=True`, durations in wall time are stored in
        `seconds`. Raise `ConfigError`, naming `key`, for a duration of zero, and for a duration in wall time if `by_clock` is False."""
        periods: list[int] = []
        others: set[int] = {last} if at_end and last >= first else set()
        cadences, seconds = [], []
        for text in texts:
            duration = Duration.parse(text, key)
            cadences.append(str(duration))
            if duration.amount == 0:
                raise ConfigError(f"{key} is {text!r}; an interval must be more than 0, use [] for never")
            if duration.is_time and by_clock:
                seconds.append(duration.seconds)
                continue
            period = max(1.0, duration.in_steps(total_steps, steps_per_epoch))
            if abs(period - round(period)) < 1e-9:
                periods.append(round(period))
            else:
                steps = (first_step_at(k * period) for k in range(1, math.ceil(last / period) + 1))  # each rounded up to a whole step
                others.update(step for step in steps if first <= step <= last)
        return cls(tuple(periods), frozenset(others), first, last, tuple(cadences), tuple(seconds))

    def due(self, step: int) -> bool:
        """Return True if the event occurs at this step."""
        if not self.first <= step <= self.last:
            return False
        for period in self.periods:
            if step % period == 0:
                return True
        return step in self.others

    def next_after(self, step: int) -> int | None:
        """Return the first step after `step` at which the event occurs; None if there is none."""
        start = max(step + 1, self.first)
        found = [-(-start // period) * period for period in self.periods]
        position = bisect.bisect_left(self._sorted_others, start)
        found += self._sorted_others[position : position + 1]
        return min((step for step in found if step <= self.last), default=None)

    @functools.cached_property
    def _sorted_others(self) -> list[int]:
        return sorted(self.others)

    @property
    def ever_due(self) -> bool:
        """Return True if the event occurs at least once in the run. This is computed without a list of the steps."""
        return bool(self.others) or any(-(-self.first // period) * period <= self.last for period in self.periods)

    @property
    def longest_gap(self) -> int:
        """Return an upper bound, at least 1, for the number of steps between two occurrences, or between an occurrence and the start or end
        of the run."""
        others = sorted({0, self.last, *self.others})
        between = max((after - before for before, after in pairwise(others)), default=1)
        return max(1, min(between, *self.periods) if self.periods else between)

    def steps(self) -> list[int]:
        """Return all steps at which the event occurs, in increasing order."""
        candidates = set(self.others)
        for period in self.periods:
            candidates.update(range(period, self.last + 1, period))
        return sorted(step for step in candidates if self.first <= step)


class TimeTrigger:
    """A timer that is due once every `seconds` of wall time, counted from its creation or its last restart.

    Use it on rank 0 only, because the clocks of processes differ."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self.restart()

    def restart(self) -> None:
        """Begin a new interval at the present time."""
        self.next = self.clock() + self.seconds

    @property
    def passed(self) -> bool:
        return self.clock() >= self.next

    def due(self) -> bool:
        """Return True if the interval has passed. In that case, begin a new interval."""
        if not self.passed:
            return False
        self.restart()
        return True


@dataclass(frozen=True)
class Ramp:
    """A number, such as a probability, that is `start` until step `begin_step`, `end` from step `until_step` on, and linear between them.

    From step `off_step` on the number is 0; if `off_step` is None, never. The step is the value of `global_step` before the update that
    uses the number."""

    start: float
    end: float
    begin_step: int
    until_step: int
    off_step: int | None = None

    @classmethod
    def resolve(cls, config: RampConfig | LinearGrowthConfig, key: str, total_steps: int, steps_per_epoch: int) -> Ramp:
        """Return the ramp of `config` with its durations converted to steps.

        Raise `ConfigError`, naming `key`, if `until` comes before `begin`."""
        return cls(config.start, config.end, *begin_and_until(config.begin, config.until, key, total_steps, steps_per_epoch))

    @property
    def is_constant(self) -> bool:
        return self.start == self.end

    def at(self, step: int) -> float:
        """Return the number at `step`. If `begin_step` equals `until_step`, the number jumps from `start` to `end` at that step."""
        if self.off_step is not None and step >= self.off_step:
            return 0.0
        if step >= self.until_step:
            return self.end
        if step <= self.begin_step:
            return self.start
        return self.start + (self.end - self.start) * (step - self.begin_step) / (self.until_step - self.begin_step)


def begin_and_until(begin: str, until: str, key: str, total_steps: int, steps_per_epoch: int) -> tuple[int, int]:
    """Return the durations `<key>.begin` and `<key>.until` in steps. Raise `ConfigError` if the second is shorter."""
    first = Duration.parse(begin, f"{key}.begin").to_steps(total_steps, steps_per_epoch)
    last = Duration.parse(until, f"{key}.until").to_steps(total_steps, steps_per_epoch)
    if last < first:
        order = f"{key}.until={until} (step {last}) comes before {key}.begin={begin} (step {first})"
        raise ConfigError(f"{order}; swap them or set a later {key}.until")
    return first, last
