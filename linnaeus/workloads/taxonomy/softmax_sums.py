"""Sums over ranges of log-softmaxes among siblings, which are never made: what smoothed targets want of the finest rank.

With z [n, B] raw scores, N the log-sum-exp of a family and A the log-probability of the taxon above it, log p = z - N + A. So the
sum over a range is that of z, less (N - A) times as many members of each family as lie in the range. The first is one pass over z; the
second sums over families, of which there are few. Sums and log-sum-exps are differentiated together, in one pass as well.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnaeus.workloads.taxonomy.ranges import Blocks
from linnaeus.workloads.taxonomy.segments import group_logsumexp, parts


def softmax_range_sums(x: Tensor, above: Tensor | None, group: Tensor, starts: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """[B, K]: sums over the rows first..last - 1, int64 [B, K], of `sibling_log_softmax(x, above, group, G)`; 0 for an empty range.

    `starts` int64 [G + 1]: the first row of each group, and n."""
    return cast(Tensor, _SoftmaxRangeSums.apply(x, above, group, starts, first, last))


class _Families:
    """How many members of each family lie in ranges of rows: of the first and the last of a range some, of those between all."""

    def __init__(self, like: Tensor, group: Tensor, starts: Tensor, first: Tensor, last: Tensor) -> None:
        self.sizes = starts.diff().unsqueeze(1)
        begin = group[first.clamp(max=len(group) - 1)]
        end = torch.maximum(group[(last - 1).clamp(min=0)], begin)
        self.ends = torch.cat([begin, end], 1)
        some = torch.where(end > begin, last - starts[end], 0)
        self.at_ends = torch.cat([torch.minimum(starts[begin + 1], last) - first, some], 1)
        self.between = Blocks(like.t(), begin + 1, torch.maximum(end, begin + 1))

    def sums(self, values: Tensor) -> Tensor:
        """[B, K] of values [G, B], each as often as its family has members in the range."""
        ends = values.t().gather(1, self.ends) * self.at_ends
        return self.between.sums((values * self.sizes).t()) + sum(ends.chunk(2, 1))

    def gradient(self, values: Tensor) -> Tensor:
        """[G, B], that of `sums` times values [B, K]."""
        found = self.between.gradient(values).mul_(self.sizes.t())
        return found.scatter_add_(1, self.ends, values.repeat(1, 2) * self.at_ends).t()


class _SoftmaxRangeSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, above: Tensor | None, group: Tensor, starts: Tensor, first: Tensor, last: Tensor) -> Tensor:
        normaliser = group_logsumexp(x, group, len(starts) - 1)
        ctx.rows, ctx.families = Blocks(x.t(), first, last), _Families(normaliser, group, starts, first, last)
        ctx.below = above is not None
        ctx.save_for_backward(x, group, normaliser)
        less = normaliser if above is None else normaliser - above
        return ctx.rows.sums(x.t()) - ctx.families.sums(less)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """A raw score is in the sums of its ranges, and by its share of the family in as many as the family's members are."""
        x, group, normaliser = ctx.saved_tensors
        rows, total = ctx.rows, ctx.families.gradient(grads[0])
        covered = rows.per_block(grads[0]).t().contiguous().unsqueeze(1)  # [blocks, 1, B]
        minus, grad = total.neg(), x.new_empty(x.shape)
        for part in parts(x, rows.size):
            share = (x[part] - normaliser.index_select(0, group[part])).exp_()
            torch.mul(share, minus.index_select(0, group[part]), out=grad[part])
            own = covered[part.start // rows.size : part.stop // rows.size]
            grad[part][: len(own) * rows.size].view(len(own), rows.size, x.shape[1]).add_(own)
        rows.add_ends(grad.t(), grads[0])
        return grad, total if ctx.below else None, None, None, None, None
