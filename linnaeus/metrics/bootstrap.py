"""Compute confidence intervals of means and fractions, and of differences between two models, by the cluster bootstrap.

A metric is a fraction: the sum of numerators over the sum of denominators of all samples. The samples are in G groups (photographs of one
observation, one observer, one site); without groups, every sample is a group. A resample draws G of the G groups with replacement. The 95 %
interval is between the 2.5th and the 97.5th percentile of the fraction over 1000 resamples (Efron and Tibshirani 1993, ch. 8 and 13). Draws
are hashes of (resample, draw), so two runs on the same validation set have the same resamples. The cost is 10 to 25 us per sample. Sums of
integers below 2^53 are exact."""

from collections.abc import Mapping

import numpy as np

from linnaeus import randomness

RESAMPLES, CONFIDENCE = 1000, 0.95
BLOCK = 2**15  # draws computed at once; they fit into a CPU cache, and blocks of eight times the size take three times as long

Fractions = Mapping[str, tuple[np.ndarray, np.ndarray]]  # metric -> (numerator, denominator) of each sample, [N] each


def group_sums(parts: Fractions, groups: np.ndarray | None, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays, float64 [G, m] each: the sums of the numerators and the sums of the denominators over each of G groups, for the m
    metrics in `parts`.

    parts: metric -> (numerators [N], denominators [N]) of N samples. groups: group index of each sample, int64 [N]; None: every sample is a
    group. size: N."""
    group = np.arange(size) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    count = int(group.max(initial=-1)) + 1
    sums = np.stack([np.bincount(group, column, count) for pair in parts.values() for column in pair], 1)
    return sums[:, 0::2], sums[:, 1::2]


def intervals(numerator: np.ndarray, denominator: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower ends [m] and the upper ends [m] of the 95 % confidence intervals of m fractions. The ends of a fraction are NaN if
    fewer than two groups have a denominator above 0. numerator, denominator: sums over each group, [G, m] each."""
    columns = numerator.shape[1]
    few = (denominator > 0).sum(0) < 2
    if few.all():
        return np.full(columns, np.nan), np.full(columns, np.nan)
    sums = resampled_sums(np.concatenate([numerator, denominator], 1).astype(np.float64))
    return _percentiles(quotients(sums[:, :columns], sums[:, columns:]), few)


def difference_intervals(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the differences [m] of m fractions (second minus first), and the lower ends [m] and upper ends [m] of their 95 % confidence
    intervals. The ends are NaN if fewer than two groups have a denominator above 0 in `first` or in `second`.

    first, second: (numerators [G, m], denominators [G, m]) of each model, sums over the same G groups. Both models use the same resamples,
    so the differences are paired."""
    columns = first[0].shape[1]
    value = quotients(*(part.sum(0) for part in second)) - quotients(*(part.sum(0) for part in first))
    few = ((first[1] > 0).sum(0) < 2) | ((second[1] > 0).sum(0) < 2)
    if few.all():
        return value, np.full(columns, np.nan), np.full(columns, np.nan)
    a, n_a, b, n_b = np.split(resampled_sums(np.concatenate([*first, *second], 1).astype(np.float64)), 4, axis=1)
    return value, *_percentiles(quotients(b, n_b) - quotients(a, n_a), few)


def quotients(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return numerator / denominator elementwise, float64; NaN where the denominator is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)


def _percentiles(values: np.ndarray, few: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower ends [m] and upper ends [m] of the 95 % intervals of the m columns of `values` [RESAMPLES, m]. NaN values are
    ignored.

    few: bool [m], True for a column whose ends are set to NaN. The values of such a column are overwritten with 0 in place."""
    values[:, few] = 0.0  # `nanquantile` warns about columns of NaN
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(values, [tail, 1 - tail], axis=0)
    return np.where(few, np.nan, low), np.where(few, np.nan, high)


def resampled_sums(sums: np.ndarray) -> np.ndarray:
    """Return, for each resample, the totals of `sums` [G, m] over G groups drawn with replacement; float64 [RESAMPLES, m]."""
    groups = len(sums)
    at_once = max(BLOCK // max(groups, 1), 1)
    return np.concatenate([times_drawn(groups, a, min(a + at_once, RESAMPLES)) @ sums for a in range(0, RESAMPLES, at_once)])


def times_drawn(groups: int, first: int, last: int) -> np.ndarray:
    """Return how often each of G = `groups` groups is drawn in the resamples `first` to `last` - 1, float64 [last - first, G].

    Each hash of 64 bits gives two draws of 32 bits. The relative bias of a draw is below G x 2^-32."""
    pairs, rows = (groups + 1) // 2, last - first
    index = np.arange(first * pairs, last * pairs, dtype=np.uint64).reshape(rows, pairs)
    bits = randomness.hashes(randomness.key(0, randomness.BOOTSTRAP, groups), index)
    halves = np.concatenate([bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)], 1)[:, :groups]
    drawn = (halves * np.uint64(groups)) >> np.uint64(32)
    flat = drawn.astype(np.int64) + np.arange(rows).reshape(-1, 1) * groups
    return np.bincount(flat.reshape(-1), minlength=rows * groups).reshape(rows, groups).astype(np.float64)
