"""Differences between two models in metrics that are not a quotient of two sums: accuracy as the mean over classes, and calibration error.

Both metrics are computed from sums over bins: a bin is a class, or a range of confidence. The intervals are from a bootstrap that draws
whole observations, the same observations for both models. The mean of the resamples is shifted: classes of few photographs are missing in
many of them, and noise adds to a calibration error. The intervals are moved by this shift, otherwise they could exclude the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from linnaeus.metrics.bootstrap import CONFIDENCE, RESAMPLES, times_drawn
from linnaeus.workloads.taxonomy.metrics.confidence import BINS


class Binned(NamedTuple):
    """A metric of n photographs that is a function of sums over bins: each photograph adds its value to the sum of its bin."""

    bins: np.ndarray  # int64 [n]
    values: np.ndarray  # float64 [n]
    metric: Callable[[np.ndarray, np.ndarray], float]  # of the sums of the values and of the numbers of photographs, both [bins]


def macro(label: np.ndarray, right: np.ndarray) -> Binned:
    """Return the mean over classes of the share of right photographs, as a `Binned`. `label`: int64 [n], class of each photograph.

    `right`: bool [n], True if the predicted class is the label."""
    return Binned(label, right.astype(np.float64), lambda sums, counts: float((sums[counts > 0] / counts[counts > 0]).mean()))


def expected_calibration_error(best_right: np.ndarray, best_log_p: np.ndarray) -> Binned:
    """Return the calibration error as a `Binned`. `best_right`: bool [n], True if the most probable class is right.

    `best_log_p`: float [n], log-probability of the most probable class."""
    confidence = np.exp(best_log_p.astype(np.float64)).clip(max=1)
    bins = (np.ceil(confidence * BINS).astype(np.int64) - 1).clip(0, BINS - 1)
    return Binned(bins, best_right - confidence, lambda sums, counts: float(np.abs(sums).sum() / counts.sum()))


def paired(first: Binned, other: Binned, group: np.ndarray | None) -> tuple[float, float, float, float, float]:
    """Return five numbers: the metric of the first model, of the other model, other - first, and the ends of the difference's 95 %
    interval.

    The ends are NaN for fewer than two observations. All five are NaN without photographs. `group`: int64 [n], the observation of each
    photograph; None: each photograph is its own observation."""
    size = len(first.bins)
    if not size:
        return (float("nan"),) * 5
    number = np.arange(size) if group is None else np.unique(group, return_inverse=True)[1]
    groups = int(number.max()) + 1
    counts = [int(one.bins.max()) + 1 for one in (first, other)]

    def metrics(weight: np.ndarray) -> list[float]:
        sums = [(np.bincount(one.bins, one.values * weight, n), np.bincount(one.bins, weight, n)) for one, n in zip((first, other), counts)]
        return [one.metric(*own) for one, own in zip((first, other), sums, strict=True)]

    values = metrics(np.ones(size))
    if groups < 2:
        return values[0], values[1], values[1] - values[0], float("nan"), float("nan")
    drawn = (metrics(times_drawn(groups, i, i + 1)[0][number]) for i in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    resampled = np.array([second - one for one, second in drawn])
    difference = values[1] - values[0]
    low, high = (np.quantile(resampled, [tail, 1 - tail]) - (resampled.mean() - difference)).clip(-1, 1)  # both metrics are in [0, 1]
    return values[0], values[1], difference, float(low), float(high)
