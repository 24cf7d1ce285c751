"""Log-sum-exp over all groups of neighbours at once (siblings under each taxon), in log space, differentiable, linear in [n, B].

Nodes come first and samples last, [n, B]: rows are then added and taken whole, which is half the time of the same on [B, n].
Where few groups of each sample are asked for, `ranges.py` is many times cheaper.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def group_logsumexp(x: Tensor, group: Tensor, groups: int) -> Tensor:
    """[G, B]: log of the sum of exp x [n, B] over the rows of each of `groups`; `group` int64 [n] says which each is in. -inf for an
    empty one."""
    return cast(Tensor, _GroupLogSumExp.apply(x, group, groups))


class _GroupLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Tensor, groups: int) -> Tensor:
        largest = x.new_full((groups, x.shape[1]), -math.inf).scatter_reduce_(0, group.unsqueeze(1).expand_as(x), x, "amax")
        total = torch.zeros_like(largest).index_add_(0, group, (x - largest.index_select(0, group)).exp_())
        result = total.log_().add_(largest)
        ctx.save_for_backward(x, group, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, group, result = ctx.saved_tensors
        share = (x - result.index_select(0, group)).exp_()
        return share.mul_(grads[0].index_select(0, group)), None, None
