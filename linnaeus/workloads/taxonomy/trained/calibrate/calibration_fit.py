"""Fit a `Calibration` on photographs that trained nothing.

A fifth of them chooses temperatures and candidates for thresholds, the others decide (`guarantee.py`). Of each observation one photograph
is used, chosen by a hash.
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
from linnaeus.workloads.taxonomy.trained.rollup import Paths

PRECISIONS = (0.9, 0.95, 0.99)
COVERAGES = (0.9, 0.95)
CONFIDENCE = 0.95
FEWEST = 60  # photographs; with fewer, no threshold has a precision of 0.95 with a confidence of 0.95
TUNING = 5  # a fifth of the photographs
LOWEST, HIGHEST = 0.05, 20.0  # temperatures


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
    """Return bool [count], True for the photographs that choose temperatures and candidates: about a fifth, by a hash."""
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
