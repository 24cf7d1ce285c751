"""Define `Calibration`, the result of `linnaeus calibrate` for a trained classifier, and its conversion to and from JSON.

A calibration has a temperature per rank, thresholds of rolled-up answers (`rollup`) for several precisions, thresholds of prediction sets,
and the record of a `PlacePrior` (likely taxa at a place and in a season), if one was fitted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.trained.probabilities.answers import Asked
from linnaeus.workloads.taxonomy.trained.probabilities.place_prior import PriorRecord

VERSION = 2  # 1: the temperatures of heads with one distribution over the tree divided the scores of whole ranks


@dataclass(frozen=True)
class Precision:
    """Two thresholds of the confidence for one required precision, the share of right answers among all answers.

    A photograph gets a rolled-up answer if the confidence of the answer is at least the threshold. One threshold reaches the precision with
    a stated probability, the other on average."""

    precision: float
    threshold: float  # the precision is reached with the probability `Calibration.confidence`; above 1: no answers
    on_average: float  # threshold at which the precision is reached on average
    answered: float  # share of the calibration photographs that get an answer at `threshold`
    answered_at: tuple[float, ...] = ()  # the same by the rank of the answer, coarse to fine; (): fitted by an earlier program

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Precision:
        """Return the `Precision` from `content`, its dict in calibration.json (`dataclasses.asdict`)."""
        shares = tuple(map(float, content.get("answered_at", ())))
        return cls(**{name: float(value) for name, value in content.items() if name != "answered_at"}, answered_at=shares)


@dataclass(frozen=True)
class Calibration:
    """Temperatures and thresholds for the predictions of one set of weights, as `linnaeus calibrate` fits them."""

    weights: str  # SHA-256 of the weights
    photographs: int  # number of calibration photographs
    temperature: tuple[float, ...]  # per rank
    confidence: float  # probability with which the thresholds of `precisions` reach their precision
    precisions: tuple[Precision, ...]
    sets: Mapping[str, tuple[float, ...]]  # coverage, as text -> least probability of a class of the set, per rank
    kept: float | None = None  # share of the photographs of taxa of the model that are at least as familiar as `familiar`
    familiar: float | None = None  # None: fitted by an earlier program, so that no photograph is "none of these"
    prior: PriorRecord | None = None  # with which all of it was fitted; None: without
    data: str = ""  # what the photographs are, such as "the test rows of the run"; "": written by an earlier program

    def threshold(self, precision: float) -> float:
        """Return the least confidence of rolled-up answers for a precision. Raise `ConfigError` if no threshold was fitted for this
        precision."""
        found = {one.precision: one.threshold for one in self.precisions}
        if precision not in found:
            listed = ", ".join(f"{value:g}" for value in found)
            raise ConfigError(
                f"precision is {precision:g}; the model is calibrated for {listed} (linnaeus calibrate --precision adds others)"
            )
        return found[precision]

    def set_thresholds(self, coverage: float) -> tuple[float, ...]:
        """Return, per rank, the least probability of the classes in a prediction set. `coverage`: probability that a set has the true
        class.

        Raise `ConfigError` if no thresholds were fitted for this coverage."""
        if f"{coverage:g}" not in self.sets:
            raise ConfigError(f"coverage is {coverage:g}; the model is calibrated for {', '.join(self.sets)}")
        return self.sets[f"{coverage:g}"]

    def plain(self) -> dict[str, Any]:
        """Return the calibration as a dict for JSON, which `from_plain` reads."""
        return {"version": VERSION} | asdict(self)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any], ranks: int) -> Calibration:
        """Return the calibration from the dict that `plain` returned. `ranks`: number of ranks of the model.

        Raise `ConfigError` if the content is damaged, of another version, or of a model with another number of ranks."""
        try:
            if content["version"] != VERSION:
                raise ConfigError(
                    f"the calibration is of version {content['version']!r}; this program reads version {VERSION}; calibrate again"
                )
            precisions = tuple(map(Precision.from_plain, content["precisions"]))
            sets = {str(float(name)): tuple(map(float, values)) for name, values in content["sets"].items()}
            temperature = tuple(map(float, content["temperature"]))
            shares = [one.answered_at for one in precisions if one.answered_at]
            if not all(len(values) == ranks for values in (temperature, *sets.values(), *shares)):
                raise ConfigError("the calibration is of a model with other ranks")
            kept, familiar = (None if content.get(name) is None else float(content[name]) for name in ("kept", "familiar"))
            numbers = (*temperature, *(value for values in sets.values() for value in values), *(one.threshold for one in precisions))
            if not precisions or not all(map(math.isfinite, (*numbers, kept or 0, familiar or 0))) or not min(temperature) > 0:
                raise ConfigError("the calibration has no precision, or a number that none can have; calibrate again")
            confidence = float(content["confidence"])
            prior = None if content.get("prior") is None else PriorRecord.from_plain(content["prior"])
            counts = str(content["weights"]), int(content["photographs"])
            return cls(*counts, temperature, confidence, precisions, sets, kept, familiar, prior, str(content.get("data", "")))
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ConfigError(f"the calibration is damaged ({type(error).__name__}); calibrate again") from None


def calibration_notes(calibration: Calibration | None, asked: Asked, together: bool = False) -> list[str]:
    """Return lines of text about the precision of the answers. `calibration`: of the model; None: not calibrated. `asked`: options of the
    predictions. `together`: True if each answer is for a sequence of photographs."""
    if calibration is None:
        return ["the model is not calibrated: probabilities are those of the network"]
    fitted = ", ".join(f"{one.precision:g}" for one in calibration.precisions)
    if asked.threshold > 1:
        reached = " or ".join(f"--precision {one.precision:g}" for one in calibration.precisions if one.threshold <= 1)
        remedy = f"use {reached}" if reached else "calibrate with more photographs, or for a lower precision"
        return [f"no answers: no threshold reaches the precision {asked.precision:g} (calibrated for {fitted}); {remedy}"]
    single = ["the calibration was fitted on single photographs: its precision is not promised for sequences"] if together else []
    return [f"precision of the answers: {asked.precision:g} (calibrated for {fitted})", *single]
