"""Fit a `Calibration` (temperatures and thresholds) on labelled photographs that were not used for training.

Temperatures and candidates for thresholds are chosen on a fifth of the photographs. Thresholds are fitted on the others
(`guarantee.py`). One photograph of each observation is used, chosen by a hash.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from linnaeus.errors import ConfigError
from linnaeus.randomness import hashes, key
from linnaeus.workloads.taxonomy.trained.calibrate import guarantee
from linnaeus.workloads.taxonomy.trained.calibration import Calibration, Precision
from linnaeus.workloads.taxonomy.trained.rollup import Paths, answered_at

PRECISIONS = (0.9, 0.95, 0.99)
COVERAGES = (0.9, 0.95)
CONFIDENCE = 0.95
FEWEST = 60  # photographs; with fewer, no threshold has a precision of 0.95 with a confidence of 0.95
TUNING = 5  # one photograph in five chooses temperatures and candidates
LOWEST, HIGHEST = 0.05, 20.0  # limits of the temperatures


@dataclass(frozen=True)
class Evidence:
    """Results of the network for N photographs that were not used for training. Probabilities are those with temperatures."""

    paths: Paths
    true_probability: np.ndarray  # float64 [N, R]: probability of the label; NaN where the label is null
    label: np.ndarray  # int64 [N, R]: class, -1 for null

    def take(self, rows: np.ndarray) -> Evidence:
        """Return the results of the photographs with these numbers, int64 [M]."""
        return Evidence(Paths(*(values[rows] for values in self.paths)), self.true_probability[rows], self.label[rows])


def one_of_each(group: np.ndarray | None, count: int) -> np.ndarray:
    """Return the number of one photograph of each observation, int64 [M] in ascending order.

    `group`: int64 [count], the observation of each photograph; None: each photograph is its own observation."""
    if group is None:
        return np.arange(count)
    order = np.argsort(hashes(key(0), np.arange(count)), kind="stable")
    return np.sort(order[np.unique(group[order], return_index=True)[1]])


def is_tuning(count: int) -> np.ndarray:
    """Return bool [count], True for the photographs on which temperatures and candidates are chosen: about a fifth, by a hash."""
    return hashes(key(1), np.arange(count)) % np.uint64(TUNING) == 0


def fit_temperature(log_probs: torch.Tensor, label: torch.Tensor) -> float:
    """Return the temperature T that makes `label`, int64 [n], most likely under softmax(log_probs / T); 1.0 if there are no labels.

    `log_probs`: [n, C]. The mean negative log-likelihood is convex in 1 / T, so a ternary search finds its minimum."""
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
    """Return the calibration from the results of N photographs. Raise `ConfigError` if there are too few.

    `tuning`: bool [N], as `is_tuning` returns. `weights`: SHA-256 of the weights. `confidence`: probability with which each precision is
    reached."""
    own, other = evidence.take(np.flatnonzero(tuning)), evidence.take(np.flatnonzero(~tuning))
    if len(other.label) < FEWEST:
        raise ConfigError(f"{len(evidence.label)} observations are too few for a calibration; it needs {2 * FEWEST}, better 2,000")
    fitted = []
    for precision in sorted(set(precisions)):
        threshold = guarantee.with_confidence(own.paths, own.label, other.paths, other.label, precision, confidence)
        average = guarantee.on_average(other.paths, other.label, precision)
        answered = guarantee.precision_of(other.paths, other.label, threshold)[1]
        fitted.append(Precision(precision, threshold, average, answered, answered_at(other.paths, threshold)))
    sets = {
        f"{coverage:g}": tuple(guarantee.set_threshold(column[~np.isnan(column)], coverage) for column in other.true_probability.T)
        for coverage in COVERAGES
    }
    return Calibration(weights, len(evidence.label), tuple(temperature), confidence, tuple(fitted), sets)
