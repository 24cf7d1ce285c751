"""Compute log-sum-exps and softmaxes within all groups of siblings of a tree at once, differentiable, in time linear in n x B.

Tensors are [n, B], with n nodes and B samples. Whole rows are then added and gathered, which takes half the time of the same operations on
[B, n]. If only a few groups per sample are needed, `ranges.py` is many times faster.

Sums over the members of a group are accumulated in float64, in the order of the rows. In float32 the sum over a genus of 180,000 species
has a relative error of up to 3e-4, since every addition to a large sum is rounded."""

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnaeus.workloads.taxonomy.tree.ranges import Blocks

CHUNK_BYTES = 1 << 18


def group_logsumexp(x: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return the log-sum-exp [G, B] of x [n, B] over the rows of each group; -inf for an empty group.

    `group`: int64 [n], the group of each row. `groups`: G."""
    return cast(Tensor, _GroupLogSumExp.apply(x, group, groups))


def sibling_log_softmax(x: Tensor, parent: Tensor | None, group: Tensor, groups: int) -> Tensor:
    """Return the log-softmax of x [n, B] within each group, plus `parent`, [n, B]. `parent`: [G, B], the log-probability of each group's
    parent; None: 0. `group`: int64 [n], the group of each row. `groups`: G."""
    return cast(Tensor, _SiblingLogSoftmax.apply(x, parent, group, groups))


def sibling_log_softmax_range_sums(x: Tensor, parent: Tensor | None, group: Tensor, start: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the sums of `sibling_log_softmax(x, parent, group, G)` over K ranges of rows per sample, [B, K]; 0 for an empty range.

    `first`, `last`: int64 [B, K], the first row of each range, and its last row + 1. `start`: int64 [G + 1], the first row of each group,
    then n. The softmax itself is not computed. With z [n, B] the raw scores, N [G, B] the log-sum-exp of a group and A [G, B] the
    log-probability of its parent, log p = z - N + A. So the sum over a range is (1) the sum of z over the range, minus (2) the sum over
    groups of (N - A) x (number of the group's members in the range). (1) is one pass over z; (2) is cheap, because there are few groups.
    The gradients of (1) and of the log-sum-exps take one pass together."""
    return cast(Tensor, _RangeSums.apply(x, parent, group, start, first, last))


def _logsumexp(x: Tensor, group: Tensor, groups: int) -> Tensor:
    largest = x.new_full((groups, x.shape[1]), -math.inf).scatter_reduce_(0, group.unsqueeze(1).expand_as(x), x, "amax")
    total = torch.zeros_like(largest, dtype=torch.float64)
    for rows in row_chunks(x):
        total.index_add_(0, group[rows], (x[rows] - largest.index_select(0, group[rows])).exp_().double())
    return total.to(x.dtype).log_().add_(largest)


def _group_sums(x: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return the sums over the rows of each group, [G, B], of x [n, B]. `group`: int64 [n], the group of each row. `groups`: G."""
    total = x.new_zeros(groups, x.shape[1], dtype=torch.float64)
    for rows in row_chunks(x):
        total.index_add_(0, group[rows], x[rows].double())
    return total.to(x.dtype)


def row_chunks(x: Tensor, multiple: int = 1) -> Iterator[slice]:
    """Return slices of the rows of x [n, B]. The number of rows of each slice but the last is a multiple of `multiple`.

    On a CPU a slice fits into the cache, which saves an eighth of a training step at 100,000 leaves. On other devices, and in an exported
    graph, one slice contains all rows (or all but the rest of the division by `multiple`)."""
    whole = x.device.type != "cpu" or torch.compiler.is_exporting()  # an exported graph is for any B
    rows = len(x) if whole else CHUNK_BYTES // max(x.shape[1] * x.element_size(), 1)
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
        for rows in row_chunks(x):
            share = torch.sub(x[rows], result.index_select(0, group[rows]), out=grad[rows]).exp_()
            share.mul_(grads[0].index_select(0, group[rows]))
        return grad, None, None


class _SiblingLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, parent: Tensor | None, group: Tensor, groups: int) -> Tensor:
        normaliser = _logsumexp(x, group, groups)
        ctx.groups, ctx.has_parent = groups, parent is not None
        ctx.save_for_backward(x, group, normaliser)
        result = torch.empty_like(x)
        for rows in row_chunks(x):
            torch.sub(x[rows], normaliser.index_select(0, group[rows]), out=result[rows])
            if parent is not None:  # added last, so that a value that is large far down the tree is rounded once
                result[rows].add_(parent.index_select(0, group[rows]))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, group, normaliser = ctx.saved_tensors
        g = grads[0].contiguous()
        total = _group_sums(g, group, ctx.groups)
        grad = torch.empty_like(x)
        for rows in row_chunks(x):
            share = (x[rows] - normaliser.index_select(0, group[rows])).exp_()
            torch.addcmul(g[rows], share, total.index_select(0, group[rows]), value=-1, out=grad[rows])
        return grad, total if ctx.has_parent else None, None, None


class _RangeSums(torch.autograd.Function):
    """Autograd function of `sibling_log_softmax_range_sums`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parent: Tensor | None, group: Tensor, start: Tensor, first: Tensor, last: Tensor) -> Tensor:
        normaliser = group_logsumexp(x, group, len(start) - 1)
        ctx.rows, ctx.members = Blocks(x.t(), first, last), _GroupMembers(normaliser, group, start, first, last)
        ctx.has_parent = parent is not None
        ctx.save_for_backward(x, group, normaliser)
        subtracted = normaliser if parent is None else normaliser - parent
        return ctx.rows.sums(x.t()) - ctx.members.sums(subtracted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradient of a raw score: the sum over ranges of the output gradient x (1 if the range contains the score, minus the
        score's softmax x the number of the group's members in the range)."""
        x, group, normaliser = ctx.saved_tensors
        blocks, total = ctx.rows, ctx.members.gradient(grads[0])
        covered = blocks.per_block(grads[0]).t().contiguous().unsqueeze(1)  # [blocks, 1, B]
        minus, grad = total.neg(), x.new_empty(x.shape)
        for rows in row_chunks(x, blocks.size):
            share = (x[rows] - normaliser.index_select(0, group[rows])).exp_()
            torch.mul(share, minus.index_select(0, group[rows]), out=grad[rows])
            own = covered[rows.start // blocks.size : rows.stop // blocks.size]
            grad[rows][: len(own) * blocks.size].view(len(own), blocks.size, x.shape[1]).add_(own)
        blocks.add_at_ends(grad.t(), grads[0])
        return grad, total if ctx.has_parent else None, None, None, None, None


class _GroupMembers:
    """Numbers of members that each group has in ranges of rows.

    A range contains some members of its first and its last group, and all members of the groups between them."""

    def __init__(self, like: Tensor, group: Tensor, start: Tensor, first: Tensor, last: Tensor) -> None:
        """Count the members in ranges first..last - 1, int64 [B, K]. `group` and `start`: as in `sibling_log_softmax_range_sums`.

        `like`: tensor [G, B] with the type and device of the results."""
        self.sizes = start.diff().unsqueeze(1)
        begin = group[first.clamp(max=len(group) - 1)]
        end = torch.maximum(group[(last - 1).clamp(min=0)], begin)
        self.ends = torch.cat([begin, end], 1)
        in_last = torch.where(end > begin, last - start[end], 0)
        self.at_ends = torch.cat([torch.minimum(start[begin + 1], last) - first, in_last], 1)
        self.between = Blocks(like.t(), begin + 1, torch.maximum(end, begin + 1))

    def sums(self, values: Tensor) -> Tensor:
        """Return for each range the sum over groups of (value of the group) x (number of the group's members in the range), [B, K].
        `values`: [G, B]."""
        ends = values.t().gather(1, self.ends) * self.at_ends
        return self.between.sums((values * self.sizes).t()) + sum(ends.chunk(2, 1))

    def gradient(self, values: Tensor) -> Tensor:
        """Return the gradient of `sums` with respect to its argument, [G, B]. `values`: [B, K], the output gradient."""
        found = self.between.gradient(values).mul_(self.sizes.t())
        return found.scatter_add_(1, self.ends, values.repeat(1, 2) * self.at_ends).t()
