"""Fit a `Calibration` (temperatures and thresholds) on labelled photographs that were not used for training.

Temperatures and candidates for thresholds are chosen on some of the photographs. Thresholds are fitted on the other photographs
(`guarantee.py`). Only one photograph of each observation is used, chosen by a hash."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from linnaeus.errors import ConfigError, counted
from linnaeus.randomness import hashes, key, uniforms
from linnaeus.workloads.taxonomy.trained.calibrate import guarantee
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration, Precision
from linnaeus.workloads.taxonomy.trained.probabilities.rollup import Paths, answered_at

PRECISIONS = (0.9, 0.95, 0.99)
COVERAGES = (0.9, 0.95)
CONFIDENCE = 0.95
KEPT = 0.95  # share of the photographs of taxa of the model that are not "none of these"
FEWEST = 60  # photographs; with fewer, no threshold has a precision of 0.95 with a confidence of 0.95
TUNING, LEAST, MOST = 400, 0.1, 0.2  # photographs on which temperatures and candidates are chosen, and the limits of their share
LOWEST, HIGHEST = 0.05, 20.0  # limits of the temperatures


@dataclass(frozen=True)
class Evidence:
    """Results of the network, after the temperatures, for N photographs that were not used for training."""

    paths: Paths
    true_probability: np.ndarray  # float64 [N, R]: probability of the label; NaN where the label is null
    label: np.ndarray  # int64 [N, R]: class, -1 for null
    familiarity: np.ndarray  # float64 [N]

    def take(self, rows: np.ndarray) -> Evidence:
        """Return the results of the photographs at the positions `rows`, int64 [M]."""
        paths = Paths(*(values[rows] for values in self.paths))
        return Evidence(paths, self.true_probability[rows], self.label[rows], self.familiarity[rows])

    def answered(self, familiar: float) -> Paths:
        """Return the paths, without any taxon for photographs whose familiarity is below `familiar`: these photographs get no answer."""
        return self.paths._replace(path=np.where(self.familiarity[:, None] < familiar, -1, self.paths.path))


def one_of_each(group: np.ndarray | None, count: int) -> np.ndarray:
    """Choose one photograph of each observation, by a hash. Return the positions of the M chosen photographs, int64 [M], in ascending
    order.

    `group`: int64 [count], the observation of each photograph; None: each photograph is its own observation, so all are chosen."""
    if group is None:
        return np.arange(count)
    order = np.argsort(hashes(key(0), np.arange(count)), kind="stable")
    return np.sort(order[np.unique(group[order], return_index=True)[1]])


def is_tuning(count: int) -> np.ndarray:
    """Return bool [count], True for the photographs on which temperatures and candidates for thresholds are chosen.

    A hash of the position selects about `TUNING` photographs. Their expected share is at least `LEAST` and at most `MOST`."""
    share = min(max(TUNING / max(count, 1), LEAST), MOST)
    return uniforms(key(1), np.arange(count)) < share


def fit_temperature(log_probs: torch.Tensor, label: torch.Tensor) -> float:
    """Return the temperature T under which `label`, int64 [n], is most likely: the probabilities are softmax(log_probs / T).

    Return 1.0 if there are no labels, or only one class. `log_probs`: [n, C], or raw scores; -inf for an impossible class. The mean
    negative log-likelihood is convex in 1 / T, so a ternary search finds its minimum."""
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
    evidence: Evidence,
    tuning: np.ndarray,
    weights: str,
    temperature: Sequence[float],
    precisions: Sequence[float],
    confidence: float,
    kept: float = KEPT,
) -> Calibration:
    """Return the calibration from the results of N photographs. Raise `ConfigError` if there are too few photographs.

    `tuning`: bool [N], as `is_tuning` returns. `weights`: SHA-256 of the weights. `temperature`: one value per rank. `precisions`: required
    precisions of rolled-up answers. `confidence`: probability with which each precision is reached. `kept`: share of the photographs of
    known taxa that do not get the answer "none of these"."""
    own, other = evidence.take(np.flatnonzero(tuning)), evidence.take(np.flatnonzero(~tuning))
    if len(other.label) < FEWEST:
        raise ConfigError(f"{counted(len(evidence.label), 'observation')}: too few for a calibration; it needs {2 * FEWEST}, better 2,000")
    familiar = guarantee.set_threshold(own.familiarity, kept)  # not chosen by the tests, so that they also hold with it
    chosen, paths = own.answered(familiar), other.answered(familiar)
    fitted = []
    for precision in sorted(set(precisions)):
        threshold = guarantee.with_confidence(chosen, own.label, paths, other.label, precision, confidence)
        average = guarantee.on_average(paths, other.label, precision)
        answered = guarantee.precision_of(paths, other.label, threshold)[1]
        fitted.append(Precision(precision, threshold, average, answered, answered_at(paths, threshold)))
    sets = {
        f"{coverage:g}": tuple(guarantee.set_threshold(column[~np.isnan(column)], coverage) for column in other.true_probability.T)
        for coverage in COVERAGES
    }
    return Calibration(weights, len(evidence.label), tuple(temperature), confidence, tuple(fitted), sets, kept, familiar)
