"""Forward and backward of a dictionary through its active features only, for variants that limit the number of active features. Used on the
CPU.

A dense update has five matrix products with N F d multiplications each (N samples, F features, width d). Here only one of them remains, the
forward of the encoder. The other four take N k d multiplications each, for k active features per sample: `embedding_bag` sums a few rows
for each result. For the gradients of encoder and decoder, the activities are first sorted by feature, which is 40 times as fast as
`index_add_`. On a GPU dense products are faster.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_FEATURES = 8  # for each active feature; with fewer the dense pass is used (with 16, an update takes 12 ms in place of 31)


class Active(NamedTuple):
    """Indices of the P activities that are not 0 in a matrix of N samples and F features, sorted by sample.

    place: int64 [P], flat index of each activity in the matrix. feature, sample: int64 [P], feature and sample of each activity. first:
    int64 [N], position of the first activity of each sample. order: int64 [P], permutation that sorts the activities by feature.
    ordered_sample: int64 [P], sample of each activity in that order. of_feature: int64 [F], position of the first activity of each feature
    in that order."""

    place: Tensor
    feature: Tensor
    sample: Tensor
    first: Tensor
    order: Tensor
    ordered_sample: Tensor
    of_feature: Tensor

    def per_sample(self) -> Tensor:
        """Return the number of activities of each sample, int64 [N]."""
        return self.first.diff(append=torch.tensor([len(self.place)]))

    def per_feature(self) -> Tensor:
        """Return the number of activities of each feature, int64 [F]."""
        return self.of_feature.diff(append=torch.tensor([len(self.place)]))


def active_places(places: Tensor, samples: int, features: int) -> Active:
    """Convert flat indices of active features to `Active`.

    places: int64 [P], flat indices in a matrix of shape [samples, features], sorted by sample, in any order within a sample."""
    place: np.ndarray = places.numpy()
    edges = np.searchsorted(place, np.arange(samples + 1) * features)  # all in numpy: 0.7 ms in place of 1.8 for 32,768 activities
    sample = np.repeat(np.arange(samples), np.diff(edges))
    feature = place - sample * features
    uses = np.bincount(feature, minlength=features)
    order = np.argsort(feature.astype(np.uint16) if features <= 1 << 16 else feature, kind="stable")  # 16 bits: a radix sort
    arrays = (feature, sample, edges[:-1], order, sample[order], uses.cumsum() - uses)
    return Active(places, *(torch.from_numpy(array) for array in arrays))


class Scratch:
    """Memory for pre-activations that every forward pass uses again. A new tensor of 4 MB costs 3 ms of page faults, as much as computing
    it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return x weight^T + bias, [N, F], for x [N, d], weight [F, d] and bias [F]. Call this under `torch.no_grad`. The next call
        overwrites the result, except under autocast, where each result has new memory."""
        size = len(x) * len(weight)
        if torch.is_autocast_enabled("cpu"):
            return F.linear(x, weight, bias)
        if self._memory.dtype != x.dtype or self._memory.numel() < size:
            self._memory = torch.empty(size, dtype=x.dtype)
        return torch.addmm(bias, x, weight.T, out=self._memory[:size].view(len(x), len(weight)))


class SparseEncode(torch.autograd.Function):
    """Autograd function that returns the pre-activations [P] at the places `active`, with gradients for `bias`, `encoder` and `shift`.

    x: input of the encoder, scaled activations minus `bias`, [N, d], without a gradient of its own. bias: [d]. encoder: [F, d]. shift: [F].
    pre: x encoder^T + shift, [N, F], already computed without a graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, encoder: Tensor, shift: Tensor, pre: Tensor, active: Active) -> Tensor:
        ctx.save_for_backward(x, encoder)
        ctx.active = active
        return pre.view(-1).index_select(0, active.place).to(encoder.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, Tensor, None, None]:  # type: ignore[override]
        x, encoder = ctx.saved_tensors
        active: Active = ctx.active
        of_shift = torch.zeros_like(encoder[:, 0]).index_add_(0, active.feature, gradient)
        return None, -(of_shift @ encoder), _sum_of_samples(active, gradient, x), of_shift, None, None


class SparseDecode(torch.autograd.Function):
    """Autograd function that returns the sum of activity x vector over the active features of each sample, [N, d].

    values: activities [P], in the order of `active`. vectors: [F, d], one for each feature. active: indices of the activities."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, vectors: Tensor, active: Active) -> Tensor:
        ctx.active = active
        with torch.enable_grad():  # the gradient of the values is that of embedding_bag
            ctx.values, ctx.vectors = values.detach().requires_grad_(), vectors.detach()
            ctx.found = _sum_of_features(active, ctx.values, ctx.vectors)
        return ctx.found.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        (of_values,) = torch.autograd.grad(ctx.found, ctx.values, gradient)
        return of_values, _sum_of_samples(ctx.active, ctx.values.detach(), gradient), None


def weighted_sum(active: Active, values: Tensor, vectors: Tensor) -> Tensor:
    """Return the sum of activity x vector over the active features of each sample, [N, d].

    values: activities [P], in the order of `active`. vectors: [F, d], one for each feature."""
    found: Tensor = SparseDecode.apply(values, vectors, active)
    return found


def _sum_of_features(active: Active, values: Tensor, rows: Tensor) -> Tensor:
    return F.embedding_bag(active.feature, rows, active.first, mode="sum", per_sample_weights=values)


def _sum_of_samples(active: Active, values: Tensor, rows: Tensor) -> Tensor:
    """Return the sum of activity x row over the samples in which each feature is active, [F, d].

    values: activities [P], in the order of `active`. rows: [N, d], one for each sample."""
    ordered = values.index_select(0, active.order)
    return F.embedding_bag(active.ordered_sample, rows, active.of_feature, mode="sum", per_sample_weights=ordered)
