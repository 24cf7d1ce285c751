"""What every metric is made of: integer counts, fractions in fixed point, and ratios that are NaN where there is nothing to divide by.

A fraction in [0, 1] is counted in units of 2^-32, so sums of up to 2^31 samples are exact integers in any order; the rounding
of each sample is below 1.2e-10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView

UNIT = 2.0**32


class Counter(Protocol):
    """Looks at batches."""

    counts: dict[str, Tensor]  # int64, on the device; names are unique among all counters

    def count(self, view: BatchView) -> None:
        """Add a batch to `counts`."""
        ...


class Part(Counter, Protocol):
    """A few metrics made of their own counts."""

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Results from counts on the host, summed over the processes."""
        ...


def zeros(device: torch.device, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=device)


def ratio(hits: Tensor, total: Tensor) -> Tensor:
    """float64, NaN where the total is 0."""
    return hits.double() / torch.where(total > 0, total.double(), torch.nan)


def fixed(fraction: Tensor) -> Tensor:
    """int64 of fractions in [0, 1]; one that is no number is 0."""
    return (fraction.double().nan_to_num(nan=0.0) * UNIT).round().long()


def mean_fixed(total: Tensor, count: Tensor) -> Tensor:
    """float64: the mean of `count` fractions whose fixed-point sum is `total`."""
    return ratio(total, count) / UNIT
