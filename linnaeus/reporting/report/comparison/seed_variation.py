"""Compute the part of the uncertainty of a difference between two groups of runs that comes from their seeds."""

import math
from collections.abc import Sequence
from statistics import variance

import numpy as np

# 97.5 % quantiles of Student's t, by degrees of freedom; interpolated between these
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 15: 2.131, 20: 2.086}
QUANTILES |= {30: 2.042, 60: 2.0, 120: 1.98}


def seed_half_width(first: Sequence[float], other: Sequence[float]) -> float | None:
    """Return half the width of the 95 % interval of the difference of two means over runs with different seeds (Welch 1947, "The
    generalization of Student's problem when several different population variances are involved").

    Return None if it is unknown: a group has fewer than two runs, or all runs of both groups have equal values. first, other: the value of
    a metric in each run of a group."""
    if len(first) < 2 or len(other) < 2:
        return None
    a, b = variance(first) / len(first), variance(other) / len(other)
    if a + b == 0:
        return None
    freedom = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(other) - 1))
    inverse, quantiles = zip(*((1 / known, quantile) for known, quantile in sorted(QUANTILES.items(), reverse=True)), strict=True)
    return float(np.interp(1 / max(freedom, 1), inverse, quantiles)) * math.sqrt(a + b)
