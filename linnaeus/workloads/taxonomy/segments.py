"""Log-sum-exp over all groups of neighbours at once (siblings under each taxon), in log space, differentiable, linear in [B, n].

Where few groups of each sample are asked for, `ranges.py` is many times cheaper.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def group_logsumexp(x: Tensor, group: Tensor, groups: int) -> Tensor:
    """[B, G]: log of the sum of exp x [B, n] over the elements of each of `groups`; `group` int64 [n] says which each is in. None is
    empty."""
    return cast(Tensor, _GroupLogSumExp.apply(x, group, groups))


class _GroupLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Tensor, groups: int) -> Tensor:
        largest = x.new_full((len(x), groups), -math.inf).scatter_reduce_(1, group.expand_as(x), x, "amax")
        total = torch.zeros_like(largest).index_add_(1, group, (x - largest.index_select(1, group)).exp_())
        result = total.log_().add_(largest)
        ctx.save_for_backward(x, group, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, group, result = ctx.saved_tensors
        share = (x - result.index_select(1, group)).exp_()
        return share.mul_(grads[0].index_select(1, group)), None, None
