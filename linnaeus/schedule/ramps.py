"""A probability or a share over time: linear between two steps, constant outside them, a pure function of the step."""

from __future__ import annotations

from dataclasses import dataclass

from linnaeus.config.schema_optimization import LinearGrowthConfig
from linnaeus.config.schema_schedule import RampConfig
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError


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
