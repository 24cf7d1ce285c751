"""`Calibration`: a temperature per rank, thresholds of rolled-up answers with a stated precision, and thresholds of prediction sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from linnaeus.errors import ConfigError

VERSION = 1


@dataclass(frozen=True)
class Precision:
    """Thresholds for a stated precision. `answered`: share of the photographs of the calibration that get an answer."""

    precision: float
    threshold: float  # with the confidence of the calibration; above 1: no answers
    on_average: float
    answered: float


@dataclass(frozen=True)
class Calibration:
    """Temperatures and thresholds for one set of weights, as `linnaeus calibrate` fits them."""

    weights: str  # SHA-256
    photographs: int
    temperature: tuple[float, ...]  # per rank
    confidence: float
    precisions: tuple[Precision, ...]
    sets: Mapping[str, tuple[float, ...]]  # coverage, as text -> least probability of a class of the set, per rank

    def threshold(self, precision: float) -> float:
        """Return the threshold of a precision. Raise `ConfigError` if it was not fitted."""
        found = {one.precision: one.threshold for one in self.precisions}
        if precision not in found:
            listed = ", ".join(f"{value:g}" for value in found)
            raise ConfigError(
                f"precision is {precision:g}; the model is calibrated for {listed} (linnaeus calibrate --precision adds others)"
            )
        return found[precision]

    def set_thresholds(self, coverage: float) -> tuple[float, ...]:
        """Return the thresholds of the sets of a coverage, per rank. Raise `ConfigError` if it was not fitted."""
        if f"{coverage:g}" not in self.sets:
            raise ConfigError(f"coverage is {coverage:g}; the model is calibrated for {', '.join(self.sets)}")
        return self.sets[f"{coverage:g}"]

    def plain(self) -> dict[str, Any]:
        """Return the calibration for JSON. `from_plain` reads it."""
        return {"version": VERSION} | asdict(self)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any], ranks: int) -> Calibration:
        """Return the calibration that `plain` wrote. Raise `ConfigError` for another content."""
        try:
            if content["version"] != VERSION:
                raise ConfigError(f"the calibration is of version {content['version']!r}; this program reads version {VERSION}")
            precisions = tuple(Precision(**{k: float(v) for k, v in one.items()}) for one in content["precisions"])
            sets = {str(float(name)): tuple(map(float, values)) for name, values in content["sets"].items()}
            temperature = tuple(map(float, content["temperature"]))
            if not all(len(values) == ranks for values in (temperature, *sets.values())) or not min(temperature) > 0:
                raise ConfigError("the calibration is of a model with other ranks")
            return cls(str(content["weights"]), int(content["photographs"]), temperature, float(content["confidence"]), precisions, sets)
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the calibration is damaged ({type(error).__name__}); calibrate again") from None
