"""Sums and log-sum-exps over contiguous ranges of the last dimension, differentiable, at the cost of one pass over it.

Classes and leaves are numbered so that what lies below a taxon, and its siblings, are a range: all losses on the tree are made of these
first two functions. A batch [B, C] is reduced in blocks of about sqrt(C / 2) once; a range is its whole blocks and two ends, so K
ranges a sample cost O(K sqrt(C)) more, and nothing is ever the difference of two prefix sums.

The gradient of log-sum-exps g_k at an element x of ranges k is sum_k g_k exp(x - lse_k) = exp(x - m) sum_k g_k exp(m - lse_k), m the
least of these lse: a single exponential an element, every exponent at most 0, so that a label of any improbability has its gradient.
Ranges that are all short are fetched instead, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

FETCHED = 8  # elements passed over in the time that it takes to fetch one from its place and put its gradient there: 1.5 to 7, by size


def range_sum(x: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """[B, K]: sums of x [B, C] over first..last - 1, int64 [B, K]; 0 for an empty range."""
    return cast(Tensor, _RangeSum.apply(x, first, last))


def range_logsumexp(x: Tensor, first: Tensor, last: Tensor, longest: int | None = None) -> Tensor:
    """[B, K]: log of the sum of exp x [B, C] over first..last - 1, int64 [B, K]; -inf for an empty range. A range of one is x itself.

    `longest`: the size of no range is larger. Where it is small, nothing but the ranges is looked at, which for the families of labels
    takes a quarter to a half of the time."""
    if longest is not None and FETCHED * longest * first.shape[1] <= x.shape[1]:
        return cast(Tensor, _ShortLogSumExp.apply(x, first, last, longest))
    return cast(Tensor, _RangeLogSumExp.apply(x, first, last))


def argmax(x: Tensor) -> Tensor:
    """int64 [B]: the first largest element of each row of x [B, C]; by blocks a quarter of the time of torch's own on a CPU."""
    size = _block_size(x.shape[1])
    whole = x.shape[1] // size * size
    if whole < 2 * size:
        return x.argmax(1)
    blocks = x[:, :whole].unflatten(1, (-1, size))
    block = blocks.amax(2).argmax(1)
    inside = blocks[torch.arange(len(x), device=x.device), block]
    best = inside.argmax(1) + block * size
    rest = x[:, whole:]
    if not rest.shape[1]:
        return best
    value, place = rest.max(1)
    return torch.where(value > inside.amax(1), place + whole, best)


def _block_size(classes: int) -> int:
    """About sqrt(C / 2), which balances the ends of a range with its whole blocks; a power of 2, at least 8."""
    return 1 << max(round(math.log2(max(classes / 2, 1)) / 2), 3)


class Blocks:
    """Where ranges lie on the blocks of x [B, C]: the whole blocks of each, and the elements of its two ends.

    x lies in memory by samples or, being the transpose of [C, B], by classes; reductions over the wrong one of the two take ten times
    as long, so blocks are [B, n, size] or [n, size, B]."""

    def __init__(self, x: Tensor, first: Tensor, last: Tensor) -> None:
        self.shape, classes = x.shape, x.shape[1]
        self.by_class = not x.is_contiguous() and x.t().is_contiguous()
        self.size = _block_size(classes)
        self.count = classes // self.size
        self.whole = self.count * self.size
        begin, end = -(-first // self.size), last // self.size
        block = torch.arange(self.count, device=first.device).view(-1, 1)
        self.inside = (block >= begin.unsqueeze(1)) & (block < end.unsqueeze(1))  # [B, n, K]
        steps = torch.arange(self.size, device=first.device)
        left = first.unsqueeze(2) + steps
        right = torch.maximum(end * self.size, first).unsqueeze(2) + steps
        in_left = left < torch.minimum(begin * self.size, last).unsqueeze(2)
        in_right = (right < last.unsqueeze(2)) & (begin <= end).unsqueeze(2)
        self.in_ends = torch.cat([in_left, in_right], 2)  # [B, K, 2 size]
        self.ends = torch.cat([left, right], 2).clamp_(max=max(classes - 1, 0))

    def of(self, x: Tensor) -> Tensor:
        """The whole blocks, without a copy."""
        if self.by_class:
            return x.t()[: self.whole].unflatten(0, (self.count, self.size))
        return x[:, : self.whole].unflatten(1, (self.count, self.size))

    def reduced(self, x: Tensor, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
        """[B, n, 1]: each block reduced."""
        found = reduce(self.of(x), 1).t() if self.by_class else reduce(self.of(x), 2)
        return found.unsqueeze(2)

    def spread(self, values: Tensor) -> Tensor:
        """[B, n], one of each block, to go with its elements."""
        return values.t().contiguous().unsqueeze(1) if self.by_class else values.unsqueeze(2)

    def at_ends(self, x: Tensor) -> Tensor:
        """[B, K, 2 size] elements; those that are not `in_ends` mean nothing."""
        return x.gather(1, self.ends.flatten(1)).view(self.ends.shape)

    def sums(self, x: Tensor) -> Tensor:
        """[B, K] of x [B, C] over each range."""
        whole = torch.where(self.inside, self.reduced(x, torch.sum), 0).sum(1)
        return whole + torch.where(self.in_ends, self.at_ends(x), 0).sum(2)

    def per_block(self, values: Tensor) -> Tensor:
        """[B, n]: the sum of values [B, K] over the ranges that each block lies in whole."""
        return torch.where(self.inside, values.unsqueeze(1), 0).sum(2)

    def gradient(self, values: Tensor) -> Tensor:
        """[B, C], that of `sums`: to every element, the sum of values [B, K] over the ranges it lies in."""
        samples, classes = self.shape
        grad = values.new_empty(classes, samples).t() if self.by_class else values.new_empty(samples, classes)
        grad[:, self.whole :] = 0
        self.of(grad).copy_(self.spread(self.per_block(values)))
        self.add_ends(grad, values)
        return grad

    def add_ends(self, grad: Tensor, values: Tensor) -> None:
        """Add values [B, K] or [B, K, 2 size] to the elements of [B, C] at the ends of each range."""
        values = torch.where(self.in_ends, values if values.ndim == 3 else values.unsqueeze(2), 0)
        grad.scatter_add_(1, self.ends.flatten(1), values.flatten(1))


class _RangeSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, last: Tensor) -> Tensor:
        blocks = ctx.blocks = Blocks(x, first, last)
        return cast(Tensor, blocks.sums(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.blocks.gradient(grads[0]), None, None


class _RangeLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, last: Tensor) -> Tensor:
        blocks = ctx.blocks = Blocks(x, first, last)
        sums = blocks.reduced(x, torch.logsumexp)
        result = torch.logaddexp(_logsumexp(sums, blocks.inside, 1), _logsumexp(blocks.at_ends(x), blocks.in_ends, 2))
        ctx.save_for_backward(x, sums, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        blocks, g = ctx.blocks, grads[0]
        x, sums, lse = ctx.saved_tensors
        least = torch.where(blocks.inside, lse.unsqueeze(1), math.inf).amin(2, keepdim=True)
        least = torch.where(least < math.inf, least, _finite(sums))  # where no range covers a block anything will do: it is multiplied by 0
        factor = torch.where(blocks.inside, g.unsqueeze(1) * torch.exp(least - lse.unsqueeze(1)), 0).sum(2)
        grad = torch.empty_like(x)  # of the same layout
        grad[:, blocks.whole :] = 0
        torch.sub(blocks.of(x), blocks.spread(least.squeeze(2)), out=blocks.of(grad))
        blocks.of(grad).exp_().mul_(blocks.spread(factor))
        shares = torch.where(blocks.in_ends, blocks.at_ends(x) - lse.unsqueeze(2), 0).exp_()
        blocks.add_ends(grad, g.unsqueeze(2) * shares)
        return grad, None, None


class _ShortLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, last: Tensor, longest: int) -> Tensor:
        place = first.unsqueeze(2) + torch.arange(longest, device=first.device)
        counts = place < last.unsqueeze(2)
        place = place.clamp_(max=max(x.shape[1] - 1, 0)).flatten(1)
        found = x.gather(1, place).view(counts.shape)
        result = _logsumexp(found, counts, 2)
        ctx.save_for_backward(x, place, counts, found, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, place, counts, found, lse = ctx.saved_tensors
        shares = torch.where(counts, found - lse.unsqueeze(2), 0).exp_().mul_(grads[0].unsqueeze(2))
        grad = torch.zeros_like(x)  # of the same layout
        return grad.scatter_add_(1, place, torch.where(counts, shares, 0).flatten(1)), None, None, None


def _logsumexp(x: Tensor, counts: Tensor, dim: int) -> Tensor:
    """Of the elements that count; -inf where there are none. On a CPU exp(-inf) takes 14 times as long as exp(0): none is computed."""
    if not x.shape[dim]:
        return x.sum(dim).sub(math.inf)
    largest = _finite(torch.where(counts, x, -math.inf).amax(dim, keepdim=True))
    shares = torch.where(counts, x - largest, 0).exp_()
    return torch.where(counts, shares, 0).sum(dim).log_().add_(largest.squeeze(dim))


def _finite(x: Tensor) -> Tensor:
    return x.clamp(min=torch.finfo(x.dtype).min)
