"""Log-sum-exps and softmaxes over all groups of neighbours at once (siblings under each taxon), differentiable, linear in [n, B].

Nodes come first and samples last, [n, B]: rows are then added and taken whole, which is half the time of the same on [B, n].
Where few groups of each sample are asked for, `ranges.py` is many times cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

PART_BYTES = 1 << 18


def group_logsumexp(x: Tensor, group: Tensor, groups: int) -> Tensor:
    """[G, B]: log of the sum of exp x [n, B] over the rows of each of `groups`; `group` int64 [n] says which each is in. -inf for an
    empty one."""
    return cast(Tensor, _GroupLogSumExp.apply(x, group, groups))


def sibling_log_softmax(x: Tensor, above: Tensor | None, group: Tensor, groups: int) -> Tensor:
    """[n, B]: log of the softmax of x [n, B] within each group, plus `above` [G, B], the log-probability of the group's parent."""
    return cast(Tensor, _SiblingLogSoftmax.apply(x, above, group, groups))


def _logsumexp(x: Tensor, group: Tensor, groups: int) -> Tensor:
    largest = x.new_full((groups, x.shape[1]), -math.inf).scatter_reduce_(0, group.unsqueeze(1).expand_as(x), x, "amax")
    total = torch.zeros_like(largest)
    for part in parts(x):
        total.index_add_(0, group[part], (x[part] - largest.index_select(0, group[part])).exp_())
    return total.log_().add_(largest)


def parts(x: Tensor, multiple: int = 1) -> Iterator[slice]:
    """Rows of x [n, B] in parts, a `multiple` of rows each but the last, that stay in a CPU's cache while they are worked on: an eighth
    of a training step at 100,000 leaves. On other devices all at once."""
    rows = PART_BYTES // max(x.shape[1] * x.element_size(), 1) if x.device.type == "cpu" else len(x)
    rows = max(rows // multiple, 1) * multiple
    return (slice(first, min(first + rows, len(x))) for first in range(0, len(x), rows))


class _GroupLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Tensor, groups: int) -> Tensor:
        result = _logsumexp(x, group, groups)
        ctx.save_for_backward(x, group, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, group, result = ctx.saved_tensors
        grad = torch.empty_like(x)
        for part in parts(x):
            share = torch.sub(x[part], result.index_select(0, group[part]), out=grad[part]).exp_()
            share.mul_(grads[0].index_select(0, group[part]))
        return grad, None, None


class _SiblingLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, above: Tensor | None, group: Tensor, groups: int) -> Tensor:
        normaliser = _logsumexp(x, group, groups)
        ctx.groups, ctx.below = groups, above is not None
        ctx.save_for_backward(x, group, normaliser)
        result = torch.empty_like(x)
        for part in parts(x):
            torch.sub(x[part], normaliser.index_select(0, group[part]), out=result[part])
            if above is not None:  # added last: far down the tree it is large, and is to be rounded once
                result[part].add_(above.index_select(0, group[part]))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, group, normaliser = ctx.saved_tensors
        g = grads[0].contiguous()
        total = g.new_zeros(ctx.groups, g.shape[1]).index_add_(0, group, g)
        grad = torch.empty_like(x)
        for part in parts(x):
            share = (x[part] - normaliser.index_select(0, group[part])).exp_()
            torch.addcmul(g[part], share, total.index_select(0, group[part]), value=-1, out=grad[part])
        return grad, total if ctx.below else None, None, None
