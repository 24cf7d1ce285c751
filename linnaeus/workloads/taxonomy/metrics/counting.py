"""Integer counts, fractions in fixed point, and ratios that are NaN for a denominator of 0.

A fraction in [0, 1] is counted in units of 2^-32, so sums of up to 2^31 samples are exact integers in any order; each sample is
rounded by less than 1.2e-10.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIT = 2.0**32


def zero_counts(device: torch.device, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=device)


def ratio(hits: Tensor, total: Tensor) -> Tensor:
    """Return hits / total, float64; NaN for a total of 0."""
    return hits.double() / torch.where(total > 0, total.double(), torch.nan)


def to_fixed_point(fraction: Tensor) -> Tensor:
    """Return fractions in [0, 1] in units of 1 / UNIT, int64; 0 for NaN."""
    return (fraction.double().nan_to_num(nan=0.0) * UNIT).round().long()


def fixed_point_mean(total: Tensor, count: Tensor) -> Tensor:
    """Return the mean of `count` fractions whose fixed-point sum is `total`, float64."""
    return ratio(total, count) / UNIT
