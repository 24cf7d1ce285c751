"""Confidence intervals by resampling groups of samples (photographs of one observation, one observer, one site) with replacement.

Percentile intervals of the cluster bootstrap (Efron and Tibshirani 1993, chapters 8 and 13): G groups are drawn from the G groups, a metric
is the sum of its numerators over the sum of its denominators, and the interval is between the 2.5th and 97.5th percentile of 1000 such
values. Without groups, every sample is a group. Draws are hashes of (resample, draw), the same for every run on the same validation
set, so that two runs can be compared draw by draw. The cost is 10 to 25 us per sample; all sums are integers below 2^53.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linnaeus import randomness
from linnaeus.workloads.taxonomy.metrics.sample_record import Samples

RESAMPLES, CONFIDENCE = 1000, 0.95
BLOCK = 2**15  # draws at once, which fit into a CPU cache; eight times as many take three times as long


def confidence_intervals(ranks: Sequence[str], samples: Samples, groups: np.ndarray | None) -> dict[str, float]:
    """Return `<name>_low` and `<name>_high` of `<rank>/top1`, `chain`, `hd1` and `severity`; NaN if fewer than two groups have a sample.

    `groups` int64 [N]: the group of each sample; None: every sample is one."""
    size = len(samples.known)
    assert groups is None or len(groups) == size, "one group per validation sample"
    parts = _fractions(ranks, samples)
    group = np.arange(size) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    count = int(group.max(initial=-1)) + 1
    sums = np.stack([np.bincount(group, column, count) for pair in parts.values() for column in pair], 1)
    low, high = intervals(sums[:, 0::2], sums[:, 1::2])
    return {f"{name}_{end}": float(values[i]) for i, name in enumerate(parts) for end, values in (("low", low), ("high", high))}


def _fractions(ranks: Sequence[str], samples: Samples) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return metric -> the terms of each sample in its numerator and its denominator, both [N]."""
    known, right = samples.known, samples.right
    parts = {f"{rank}/top1": (right[:, r], known[:, r]) for r, rank in enumerate(ranks)}
    parts["chain"] = (right.all(1), known.all(1))
    parts["hd1"] = (samples.height, known[:, -1])
    parts["severity"] = (samples.height, known[:, -1] & ~right[:, -1])
    return parts


def intervals(numerator: np.ndarray, denominator: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper ends [m] of m fractions, from sums of numerators and denominators over each group, [G, m]. NaN if fewer
    than two groups have a denominator above 0."""
    columns = numerator.shape[1]
    few = (denominator > 0).sum(0) < 2
    if few.all():
        return np.full(columns, np.nan), np.full(columns, np.nan)
    sums = resampled_sums(np.concatenate([numerator, denominator], 1).astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(sums[:, columns:] > 0, sums[:, :columns] / sums[:, columns:], np.nan)
    values[:, few] = 0.0  # `nanquantile` warns about columns of NaN
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(values, [tail, 1 - tail], axis=0)
    return np.where(few, np.nan, low), np.where(few, np.nan, high)


def resampled_sums(sums: np.ndarray) -> np.ndarray:
    """Return the totals of `sums` [G, m] over G groups drawn with replacement, for each resample, float64 [RESAMPLES, m]."""
    groups = len(sums)
    at_once = max(BLOCK // max(groups, 1), 1)
    return np.concatenate([times_drawn(groups, a, min(a + at_once, RESAMPLES)) @ sums for a in range(0, RESAMPLES, at_once)])


def times_drawn(groups: int, first: int, last: int) -> np.ndarray:
    """Return how often each group is drawn in resamples first..last - 1, float64 [last - first, G]. One hash makes two draws of 32 bits,
    whose bias is below G x 2^-32."""
    pairs, rows = (groups + 1) // 2, last - first
    index = np.arange(first * pairs, last * pairs, dtype=np.uint64).reshape(rows, pairs)
    bits = randomness.hashes(randomness.key(0, randomness.BOOTSTRAP, groups), index)
    halves = np.concatenate([bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)], 1)[:, :groups]
    drawn = (halves * np.uint64(groups)) >> np.uint64(32)
    flat = drawn.astype(np.int64) + np.arange(rows).reshape(-1, 1) * groups
    return np.bincount(flat.reshape(-1), minlength=rows * groups).reshape(rows, groups).astype(np.float64)
