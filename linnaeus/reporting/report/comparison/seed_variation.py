"""Compute the part of the uncertainty of a difference between two groups of runs that comes from their seeds."""

import math
from collections.abc import Sequence
from statistics import variance

from linnaeus.metrics.student import t_quantile


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
    return t_quantile(freedom) * math.sqrt(a + b)
