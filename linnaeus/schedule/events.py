"""When something recurs: `Every` in steps, `TimeTrigger` by the clock.

The plan lists `Every.steps()` and the run asks `Every.due(step)`: the same arithmetic, so what is listed is what fires.
`step` is the number of an update, counted from 1: the value of `global_step` once that update is done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from linnaeus.config.schema_optimization import LinearGrowthConfig
from linnaeus.config.schema_schedule import RampConfig
from linnaeus.durations import Duration, first_step_at
from linnaeus.errors import ConfigError


@dataclass(frozen=True)
class Every:
    """The steps in first..last that are a multiple of one of `periods` or in `others`. Whole periods need no memory: a row of
    metrics each step of a million costs nothing; fractional ones (33 % of 10 steps) are few and listed."""

    periods: tuple[int, ...] = ()
    others: frozenset[int] = frozenset()
    first: int = 1
    last: int = 0
    cadences: tuple[str, ...] = ()  # as the user wrote them
    seconds: tuple[float, ...] = ()  # cadences by the clock, for `TimeTrigger`

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
        """From durations: multiples of N steps, of N epochs or of X % of `total_steps`, of which those in first..last happen;
        `at_end` adds `last`. Raises `ConfigError` for a cadence of zero, or by the clock where that is not allowed."""
        periods: list[int] = []
        others: set[int] = {last} if at_end and last >= first else set()
        cadences, seconds = [], []
        for text in texts:
            duration = Duration.parse(text, key)
            cadences.append(str(duration))
            if duration.amount == 0:
                raise ConfigError(f"{key} is {text!r}; nothing can happen every {text}, use [] for never")
            if duration.is_time and by_clock:
                seconds.append(duration.seconds)
                continue
            period = max(1.0, duration.in_steps(total_steps, steps_per_epoch))
            if abs(period - round(period)) < 1e-9:
                periods.append(round(period))
            else:
                others.update(multiples(period, first, last))
        return cls(tuple(periods), frozenset(others), first, last, tuple(cadences), tuple(seconds))

    def due(self, step: int) -> bool:
        """Whether it happens at this step."""
        if not self.first <= step <= self.last:
            return False
        for period in self.periods:
            if step % period == 0:
                return True
        return step in self.others

    @property
    def ever_due(self) -> bool:
        """Whether it is ever due, without listing when."""
        return bool(self.others) or any(-(-self.first // period) * period <= self.last for period in self.periods)

    def steps(self) -> list[int]:
        """Every step at which it happens, in order."""
        candidates = set(self.others)
        for period in self.periods:
            candidates.update(range(period, self.last + 1, period))
        return sorted(step for step in candidates if self.first <= step)


def multiples(period: float, first: int, last: int) -> list[int]:
    """The first whole step at or past each multiple of a fractional `period`, as far as they lie in first..last."""
    steps = (first_step_at(k * period) for k in range(1, math.ceil(last / period) + 1))
    return [step for step in steps if first <= step <= last]


class TimeTrigger:
    """True once every `seconds` of the clock, which starts when it is made. Only rank 0 may ask: clocks differ."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self.restart()

    def restart(self) -> None:
        """Count the interval from now."""
        self.next = self.clock() + self.seconds

    def due(self) -> bool:
        """Whether the interval has passed; if so the next one begins now."""
        if self.clock() < self.next:
            return False
        self.restart()
        return True


@dataclass(frozen=True)
class Ramp:
    """`start` up to `begin_step`, `end` from `until_step` on. Steps are `global_step` before the update that uses the value."""

    start: float
    end: float
    begin_step: int
    until_step: int

    @classmethod
    def resolve(cls, config: RampConfig | LinearGrowthConfig, key: str, total_steps: int, steps_per_epoch: int) -> Ramp:
        """Raises `ConfigError` when it would end before it begins."""
        begin = Duration.parse(config.begin, f"{key}.begin").to_steps(total_steps, steps_per_epoch)
        until = Duration.parse(config.until, f"{key}.until").to_steps(total_steps, steps_per_epoch)
        if until < begin:
            beyond = f"{key}.until={config.until} (step {until}) comes before {key}.begin={config.begin} (step {begin})"
            raise ConfigError(f"{beyond}; swap them or make it later")
        return cls(config.start, config.end, begin, until)

    @property
    def is_constant(self) -> bool:
        return self.start == self.end

    def at(self, step: int) -> float:
        """The value at `step`; `until_step` itself has `end`, so an empty ramp is a jump."""
        if step >= self.until_step:
            return self.end
        if step <= self.begin_step:
            return self.start
        return self.start + (self.end - self.start) * (step - self.begin_step) / (self.until_step - self.begin_step)
