"""Durations: a time in a run with its unit (`500steps`, `2epochs`, `10%`, `15min`), turned into steps once.

One rule rounds all of them: a moment is the first step at which that much of the run has been done, so 25 % of 9 steps is step
3, and a cadence, a ramp and the 25 % mark of the run agree on it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from linnaeus.errors import ConfigError

_UNITS = {
    "step": "steps",
    "epoch": "epochs",
    "%": "%",
    "s": "s",
    "sec": "s",
    "second": "s",
    "min": "min",
    "minute": "min",
    "h": "h",
    "hour": "h",
}
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_PATTERN = re.compile(r"\s*([+-]?)(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+|%)\s*", re.IGNORECASE)
_TOLERANCE = 1e-6  # of a step: floats such as 0.07 * 100 lie a little above the step they mean


def first_step_at(steps: float) -> int:
    """The first whole step at or past a moment given in (fractional) steps."""
    return math.ceil(steps - _TOLERANCE)


@dataclass(frozen=True)
class Duration:
    """`amount` of `unit` (steps, epochs, %, s, min, h); `key` is where the config says so, for messages."""

    amount: float
    unit: str
    key: str = field(default="duration", compare=False)

    @classmethod
    def parse(cls, text: object, key: str = "duration") -> Duration:
        """Read `500steps`, `1epoch`, `0.5epochs`, `10%`, `30s`, `15min`, `2h`. Raises `ConfigError` in one line that names `key`."""
        match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
        word = match[3].lower() if match else ""
        unit = _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))
        if match is None or unit is None:
            raise ConfigError(f"{key} is {text!r}; a duration is a number and a unit: 500steps, 2epochs, 10%, 30s, 15min or 2h")
        amount = float(match[2])
        if match[1] == "-":
            raise ConfigError(f"{key} is {text!r}; a duration cannot be negative")
        if unit == "%" and amount > 100:
            raise ConfigError(f"{key} is {text!r}; a percentage of the run is between 0% and 100%")
        if unit == "steps" and amount != int(amount):
            raise ConfigError(f"{key} is {text!r}; steps are whole: {int(amount)}steps or {int(amount) + 1}steps")
        return cls(amount, unit, key)

    @property
    def is_time(self) -> bool:
        """Whether it is measured by the clock, and so says nothing about steps."""
        return self.unit in _SECONDS

    @property
    def seconds(self) -> float:
        assert self.is_time, f"{self} is no time of the clock"
        return self.amount * _SECONDS[self.unit]

    def in_steps(self, total_steps: int, steps_per_epoch: int) -> float:
        """The duration in steps, not rounded. Raises `ConfigError` for one measured by the clock."""
        if self.is_time:
            raise ConfigError(f"{self.key} is {self}; minutes do not say at which update, use steps, epochs or %")
        return self.amount * {"steps": 1, "epochs": steps_per_epoch, "%": total_steps / 100}[self.unit]

    def to_steps(self, total_steps: int, steps_per_epoch: int) -> int:
        """The first step at which the duration has passed; 0 for none. Raises `ConfigError` for one measured by the clock."""
        return first_step_at(self.in_steps(total_steps, steps_per_epoch))

    def __str__(self) -> str:
        return f"{self.amount:.12g}{self.unit}"
