"""Measurements for tests of weightings, made from lists of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from linnaeus.weighting import Measurements

ONES = (1.0, 1.0, 1.0)


def vector(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def gradients(norms: Sequence[float], losses: Sequence[float] | None = None) -> Measurements:
    """Return measurements with these gradient norms and mean losses (default 1)."""
    return Measurements(1, True, losses=vector(losses or [1.0] * len(norms)), grad_norms=vector(norms))


def losses(
    sums: Sequence[float], valid: Sequence[float] | None = None, after: Sequence[float] | None = None, due: bool = True
) -> Measurements:
    """Return measurements with these loss sums over `valid` labels (default 1), before and after the update."""
    labels = vector(valid or [1.0] * len(sums))
    return Measurements(1, due, loss_sums=vector(sums), valid=labels, loss_sums_after=None if after is None else vector(after))
