"""Durations: a number with a unit (`500steps`, `2epochs`, `10%`, `15min`), converted to steps once at start-up.

All durations are rounded up: 25 % of 9 steps is step 3, the first step at which 25 % of the run is done. Intervals, ramps and progress
fractions therefore agree on the step.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from linnaeus.errors import ConfigError, shorten

_UNITS = {"step": "steps", "epoch": "epochs", "%": "%", "s": "s", "sec": "s", "second": "s", "min": "min", "minute": "min"}
_UNITS |= {"h": "h", "hour": "h"}
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_PATTERN = re.compile(r"\s*([+-]?)(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+|%)\s*", re.IGNORECASE)
_TOLERANCE = 1e-6  # of a step: 0.07 * 100 is a little above 7 in floating point


def first_step_at(steps: float) -> int:
    """Round a number of steps up to a whole number. A number at most 1e-6 above a whole number is rounded down to that whole number."""
    return math.ceil(steps - _TOLERANCE)


@dataclass(frozen=True)
class Duration:
    """A length of time in a run: `amount` of `unit` ("steps", "epochs", "%" of the run, "s", "min" or "h").

    `key`: the configuration key that the duration was read from, for error messages."""

    amount: float
    unit: str
    key: str = field(default="duration", compare=False)

    @classmethod
    def parse(cls, text: object, key: str = "duration") -> Duration:
        """Return the duration written in `text`, such as `500steps`, `1epoch`, `0.5epochs`, `10%`, `30s`, `15min` or `2h`.

        Raise `ConfigError`, naming `key`, if `text` is not a duration, is negative, is above 100% or is a fractional number of steps."""
        match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
        word = match[3].lower() if match else ""
        unit = _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))
        if match is None or unit is None:
            raise ConfigError(f"{key} is {text!r}; a duration must be a number and a unit: 500steps, 2epochs, 10%, 30s, 15min or 2h")
        amount = float(match[2])
        if match[1] == "-":
            raise ConfigError(f"{key} is {text!r}; a duration must not be negative")
        if unit == "%" and amount > 100:
            raise ConfigError(f"{key} is {text!r}; a percentage of the run must be between 0% and 100%")
        if not math.isfinite(amount):
            raise ConfigError(f"{key} is {shorten(str(text))!r}; the number is too large")
        if unit == "steps" and amount != int(amount):
            raise ConfigError(f"{key} is {text!r}; the number of steps must be whole: {int(amount)}steps or {int(amount) + 1}steps")
        return cls(amount, unit, key)

    @property
    def is_time(self) -> bool:
        """Return True if the unit is seconds, minutes or hours. Such a duration cannot be converted to steps."""
        return self.unit in _SECONDS

    @property
    def seconds(self) -> float:
        """Return the length in seconds. Raise `AssertionError` if the unit is not seconds, minutes or hours."""
        assert self.is_time, f"{self} is not in seconds, minutes or hours"
        return self.amount * _SECONDS[self.unit]

    def in_steps(self, total_steps: int, steps_per_epoch: int) -> float:
        """Return the duration in steps, not rounded, for a run of `total_steps`.

        Raise `ConfigError` if the unit is seconds, minutes or hours."""
        if self.is_time:
            raise ConfigError(f"{self.key} is {self}; a time cannot be converted to steps, use steps, epochs or %")
        return self.amount * {"steps": 1, "epochs": steps_per_epoch, "%": total_steps / 100}[self.unit]

    def to_steps(self, total_steps: int, steps_per_epoch: int) -> int:
        """Return the duration in steps, rounded up, for a run of `total_steps`.

        Raise `ConfigError` if the unit is seconds, minutes or hours."""
        return first_step_at(self.in_steps(total_steps, steps_per_epoch))

    def __str__(self) -> str:
        return f"{self.amount:.12g}{self.unit}"
