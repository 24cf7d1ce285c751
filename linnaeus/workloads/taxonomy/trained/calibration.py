"""`Calibration`: a temperature per rank, thresholds of rolled-up answers with a stated precision, and thresholds of prediction sets.

It is fitted on photographs that trained nothing. A fifth of them chooses temperatures and candidates for thresholds, the others decide
(`guarantee.py`). Of each observation one photograph is used, chosen by a hash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from linnaeus.errors import ConfigError
from linnaeus.randomness import hashes, key
from linnaeus.workloads.taxonomy.trained import guarantee
from linnaeus.workloads.taxonomy.trained.rollup import Paths

VERSION = 1
PRECISIONS = (0.9, 0.95, 0.99)
COVERAGES = (0.9, 0.95)
CONFIDENCE = 0.95
FEWEST = 60  # photographs; with fewer, no threshold has a precision of 0.95 with a confidence of 0.95
TUNING = 5  # a fifth of the photographs
LOWEST, HIGHEST = 0.05, 20.0  # temperatures


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


@dataclass(frozen=True)
class Evidence:
    """Results of the network, under its temperatures, for N photographs that were not used for training."""

    paths: Paths
    true_probability: np.ndarray  # float64 [N, R]: of the label; NaN where it is unknown
    label: np.ndarray  # int64 [N, R], -1 where unknown

    def take(self, rows: np.ndarray) -> Evidence:
        """Return the evidence of the given rows."""
        return Evidence(Paths(*(values[rows] for values in self.paths)), self.true_probability[rows], self.label[rows])


def one_of_each(group: np.ndarray | None, count: int) -> np.ndarray:
    """Return a photograph of each observation, int64 [M] in ascending order. `group`: int64 [N], the observations; None: all differ."""
    if group is None:
        return np.arange(count)
    order = np.argsort(hashes(key(0), np.arange(count)), kind="stable")
    return np.sort(order[np.unique(group[order], return_index=True)[1]])


def is_tuning(count: int) -> np.ndarray:
    """Return True for a fifth of the photographs, bool [N], chosen by a hash."""
    return hashes(key(1), np.arange(count)) % np.uint64(TUNING) == 0


def fit_temperature(log_probs: torch.Tensor, label: torch.Tensor) -> float:
    """Return the temperature T that makes `label` int64 [n] most likely under softmax(log_probs / T), log_probs [n, C]. 1 without labels.

    The mean negative log-likelihood is convex in 1 / T, so that a search by thirds finds its minimum."""
    if not len(label) or log_probs.shape[1] < 2:
        return 1.0

    def loss(log_inverse: float) -> float:
        return float(torch.nn.functional.cross_entropy(log_probs * math.exp(log_inverse), label))

    low, high = -math.log(HIGHEST), -math.log(LOWEST)
    for _ in range(40):
        third = (high - low) / 3
        low, high = (low, high - third) if loss(low + third) <= loss(high - third) else (low + third, high)
    return math.exp(-(low + high) / 2)


def fit_thresholds(
    evidence: Evidence, tuning: np.ndarray, weights: str, temperature: Sequence[float], precisions: Sequence[float], confidence: float
) -> Calibration:
    """Return the calibration from the evidence of N photographs, `tuning` bool [N]. Raise `ConfigError` for too few photographs."""
    own, other = evidence.take(np.flatnonzero(tuning)), evidence.take(np.flatnonzero(~tuning))
    if len(other.label) < FEWEST:
        raise ConfigError(f"{len(evidence.label)} observations are too few for a calibration; it needs {2 * FEWEST}, better 2,000")
    fitted = []
    for precision in sorted(set(precisions)):
        threshold = guarantee.with_confidence(own.paths, own.label, other.paths, other.label, precision, confidence)
        average = guarantee.on_average(other.paths, other.label, precision)
        fitted.append(Precision(precision, threshold, average, guarantee.precision_of(other.paths, other.label, threshold)[1]))
    sets = {
        f"{coverage:g}": tuple(guarantee.set_threshold(column[~np.isnan(column)], coverage) for column in other.true_probability.T)
        for coverage in COVERAGES
    }
    return Calibration(weights, len(evidence.label), tuple(temperature), confidence, tuple(fitted), sets)
