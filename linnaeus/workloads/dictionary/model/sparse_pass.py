"""Forward and backward of a dictionary through its active features only, for variants that limit their number. Used on the CPU.

Of the five products of the sizes N x F x d in a dense update only the encoder's forward remains; the others take N k d operations. With k
active features of F, both passes take the same time at F = 32 k, and with F = 128 k this one takes half (d = 128, one core of an AMD EPYC).
On a GPU dense products are faster.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_FEATURES = 48  # for each active feature; with fewer the dense pass is used


class Active(NamedTuple):
    """P activities that are not 0, ordered by sample: feature int64 [P], sample int64 [P], and the first of each sample, int64 [N]."""

    feature: Tensor
    sample: Tensor
    first: Tensor


def active_places(activities: Tensor) -> Active:
    """Return the places of the activities [N, F] that are not 0."""
    sample, feature = activities.nonzero(as_tuple=True)
    counts = torch.bincount(sample, minlength=len(activities))
    return Active(feature, sample, counts.cumsum(0) - counts)


class SparseEncode(torch.autograd.Function):
    """Return the pre-activations [P] at the active places. x: input of the encoder [N, d]. pre: its result [N, F], without a graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, encoder: Tensor, bias: Tensor, pre: Tensor, active: Active) -> Tensor:
        ctx.save_for_backward(x, encoder)
        ctx.active = active
        return pre[active.sample, active.feature].to(encoder.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[override]
        x, encoder = ctx.saved_tensors
        active: Active = ctx.active
        of_encoder = torch.zeros_like(encoder).index_add_(0, active.feature, gradient.unsqueeze(1) * x[active.sample])
        of_bias = torch.zeros_like(encoder[:, 0]).index_add_(0, active.feature, gradient)
        return weighted_sum(active, gradient, encoder), of_encoder, of_bias, None, None


def weighted_sum(active: Active, values: Tensor, vectors: Tensor) -> Tensor:
    """Return for each sample the sum of its active `vectors` [F, d], each times its entry of `values` [P]: [N, d]."""
    return F.embedding_bag(active.feature, vectors, active.first, mode="sum", per_sample_weights=values)
