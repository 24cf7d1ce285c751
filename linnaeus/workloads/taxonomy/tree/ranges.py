"""Compute sums and log-sum-exps over contiguous ranges of the last dimension of a tensor, differentiable, in about the time of one pass
over the tensor.

Classes and leaves are numbered so that the descendants of a taxon, and its siblings, are a range; all losses on the tree use `range_sum`
and `range_logsumexp`. A batch [B, C] is reduced once, in blocks of about sqrt(C / 2). A range consists of whole blocks and two ends, so K
ranges per sample cost additional O(K sqrt(C)). No result is the difference of two prefix sums, which would lose digits.

The gradient of log-sum-exps lse_k, with output gradients g_k, at an element x that lies in ranges k is sum_k g_k exp(x - lse_k) = exp(x -
m) sum_k g_k exp(m - lse_k), with m the smallest of these lse_k. This takes one exponential per element, and no exponent is above 0, so even
a very improbable label has a correct gradient. If all ranges are short, their elements are gathered one by one instead."""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

GATHER_COST = 8  # time to gather an element and scatter its gradient / time per element of one pass; measured 1.5 to 7, by size


def range_sum(x: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the sums of x over K ranges per sample, [B, K]; 0 for an empty range. x: [B, C]. `first`, `last`: int64 [B, K], the first
    element of each range, and its last element + 1."""
    if _traced():
        return _per_range(x, first, last, 0.0, lambda inside: inside.sum(1))
    return cast(Tensor, _RangeSum.apply(x, first, last))


def range_logsumexp(x: Tensor, first: Tensor, last: Tensor, longest: int | None = None) -> Tensor:
    """Return the log-sum-exps of x over K ranges per sample, [B, K]; -inf for an empty range. x: [B, C]. `first`, `last`: int64 [B, K], the
    first element of each range, and its last element + 1. The result for a range of one element is exactly this element.

    `longest`: an upper bound of the range sizes. If `longest` is small, only the elements of the ranges are read, which takes a quarter to
    a half of the time for the siblings of labels."""
    if _traced():
        found = _per_range(x, first, torch.maximum(last, first + 1), -math.inf, lambda inside: inside.logsumexp(1))
        return torch.where(first < last, found, -math.inf)
    if longest is not None and GATHER_COST * longest * first.shape[1] <= x.shape[1]:
        return cast(Tensor, _ShortLogSumExp.apply(x, first, last, longest))
    return cast(Tensor, _RangeLogSumExp.apply(x, first, last))


def _traced() -> bool:
    """Return True while `torch.compile` traces the call. `linnaeus export` traces without Dynamo, so it uses the operations of a call
    without the compiler."""
    return torch.compiler.is_dynamo_compiling()


def _per_range(x: Tensor, first: Tensor, last: Tensor, outside: float, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `reduce` over each of K ranges per sample of x [B, C], as [B, K]. For each range, the elements outside of it are replaced by
    `outside`. first, last: [B, K], first element and last element + 1. reduce: from [B, C] to [B].

    The compiler fuses mask and reduction into one pass over x, forward and backward."""
    position = torch.arange(x.shape[1], device=x.device)
    ranges = zip(first.split(1, 1), last.split(1, 1), strict=True)
    return torch.stack([reduce(torch.where((position >= a) & (position < b), x, outside)) for a, b in ranges], 1)


def log_softmax(x: Tensor) -> Tensor:
    """Return the log-softmax of x [B, C] over its classes.

    `F.log_softmax` adds a million terms in a few float32 sums on a CPU, with a relative error of 1e-5. `logsumexp` adds the terms in a
    tree, with a smaller error."""
    return x - x.logsumexp(1, keepdim=True)


def argmax(x: Tensor) -> Tensor:
    """Return the index of the first largest element of each row of x [B, C], int64 [B]. On a CPU the search by blocks takes a quarter
    of the time of `Tensor.argmax`."""
    if _traced():
        return x.argmax(1)
    size = _block_size(x.shape[1])
    whole = x.shape[1] // size * size
    if whole < 2 * size:
        return x.argmax(1)
    blocks = x[:, :whole].unflatten(1, (-1, size))
    block = blocks.amax(2).argmax(1)
    inside = blocks[torch.arange(x.shape[0], device=x.device), block]
    best = inside.argmax(1) + block * size
    rest = x[:, whole:]
    if not rest.shape[1]:
        return best
    value, index = rest.max(1)
    return torch.where(value > inside.amax(1), index + whole, best)


def _block_size(classes: int) -> int:
    """Return the block size for a number of classes C: about sqrt(C / 2), which balances the cost of range ends and of whole blocks; a
    power of 2, at least 8."""
    return 1 << max(round(math.log2(max(classes / 2, 1)) / 2), 3)


class Blocks:
    """Ranges first..last - 1, int64 [B, K], of x [B, C]. Each range is divided into whole blocks and the elements at its two ends.

    x may be stored by sample, or by class (as the transpose of a contiguous [C, B]). The blocks are [B, n, size] or [n, size, B]
    accordingly, since reductions over the wrong dimension take ten times as long."""

    def __init__(self, x: Tensor, first: Tensor, last: Tensor) -> None:
        self.shape, classes = x.shape, x.shape[1]
        self.by_class = not x.is_contiguous() and x.t().is_contiguous()
        self.size = _block_size(classes)
        self.count = classes // self.size
        self.whole = self.count * self.size
        begin, end = -(-first // self.size), last // self.size
        block = torch.arange(self.count, device=first.device).view(-1, 1)
        self.covered = (block >= begin.unsqueeze(1)) & (block < end.unsqueeze(1))  # [B, n, K]: block n lies in range k
        steps = torch.arange(self.size, device=first.device)
        left = first.unsqueeze(2) + steps
        right = torch.maximum(end * self.size, first).unsqueeze(2) + steps
        in_left = left < torch.minimum(begin * self.size, last).unsqueeze(2)
        in_right = (right < last.unsqueeze(2)) & (begin <= end).unsqueeze(2)
        self.in_ends = torch.cat([in_left, in_right], 2)  # [B, K, 2 size]: the element of `ends` lies in the range
        self.ends = torch.cat([left, right], 2).clamp_(max=max(classes - 1, 0))

    def view(self, x: Tensor) -> Tensor:
        """Return the whole blocks of x as a view."""
        if self.by_class:
            return x.t()[: self.whole].unflatten(0, (self.count, self.size))
        return x[:, : self.whole].unflatten(1, (self.count, self.size))

    def reduce(self, x: Tensor, function: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Return `function`, such as `torch.sum`, of each block, [B, n, 1]."""
        found = function(self.view(x), 1).t() if self.by_class else function(self.view(x), 2)
        return found.unsqueeze(2)

    def expand(self, values: Tensor) -> Tensor:
        """Return `values` [B, n], one per block, in a shape that broadcasts with `view`."""
        return values.t().contiguous().unsqueeze(1) if self.by_class else values.unsqueeze(2)

    def at_ends(self, x: Tensor) -> Tensor:
        """Return the elements of x at the two ends of each range, [B, K, 2 size]. Elements where `in_ends` is False must be ignored."""
        return x.gather(1, self.ends.flatten(1)).view(self.ends.shape)

    def sums(self, x: Tensor) -> Tensor:
        """Return the sums of x [B, C] over the K ranges of each sample, [B, K]."""
        whole = torch.where(self.covered, self.reduce(x, torch.sum), 0).sum(1)
        return whole + torch.where(self.in_ends, self.at_ends(x), 0).sum(2)

    def per_block(self, values: Tensor) -> Tensor:
        """Return for each block the sum of `values` [B, K] over the ranges that contain the block, [B, n]."""
        return torch.where(self.covered, values.unsqueeze(1), 0).sum(2)

    def gradient(self, values: Tensor) -> Tensor:
        """Return the gradient [B, C] of `sums`: for every element, the sum of the output gradients `values` [B, K] over the ranges that
        contain the element."""
        samples, classes = self.shape
        grad = values.new_empty(classes, samples).t() if self.by_class else values.new_empty(samples, classes)
        grad[:, self.whole :] = 0
        self.view(grad).copy_(self.expand(self.per_block(values)))
        self.add_at_ends(grad, values)
        return grad

    def add_at_ends(self, grad: Tensor, values: Tensor) -> None:
        """Add `values` in place to the elements of `grad`, [B, C], in the two ends of each range.

        `values`: [B, K], one value per range, added to each element of its ends; or [B, K, 2 size], one value per element, in the order of
        `ends`."""
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
        sums = blocks.reduce(x, torch.logsumexp)
        result = torch.logaddexp(_logsumexp(sums, blocks.covered, 1), _logsumexp(blocks.at_ends(x), blocks.in_ends, 2))
        ctx.save_for_backward(x, sums, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        blocks, g = ctx.blocks, grads[0]
        x, sums, lse = ctx.saved_tensors
        least = torch.where(blocks.covered, lse.unsqueeze(1), math.inf).amin(2, keepdim=True)
        least = torch.where(least < math.inf, least, _finite(sums))  # for a block in no range, any finite value: it is multiplied by 0
        factor = torch.where(blocks.covered, g.unsqueeze(1) * torch.exp(least - lse.unsqueeze(1)), 0).sum(2)
        grad = torch.empty_like(x)  # keeps the memory layout of x
        grad[:, blocks.whole :] = 0
        torch.sub(blocks.view(x), blocks.expand(least.squeeze(2)), out=blocks.view(grad))
        blocks.view(grad).exp_().mul_(blocks.expand(factor))
        shares = torch.where(blocks.in_ends, blocks.at_ends(x) - lse.unsqueeze(2), 0).exp_()
        blocks.add_at_ends(grad, g.unsqueeze(2) * shares)
        return grad, None, None


class _ShortLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, last: Tensor, longest: int) -> Tensor:
        index = first.unsqueeze(2) + torch.arange(longest, device=first.device)
        inside = index < last.unsqueeze(2)
        index = index.clamp_(max=max(x.shape[1] - 1, 0)).flatten(1)
        found = x.gather(1, index).view(inside.shape)
        result = _logsumexp(found, inside, 2)
        ctx.save_for_backward(x, index, inside, found, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, index, inside, found, lse = ctx.saved_tensors
        shares = torch.where(inside, found - lse.unsqueeze(2), 0).exp_().mul_(grads[0].unsqueeze(2))
        grad = torch.zeros_like(x)  # keeps the memory layout of x
        return grad.scatter_add_(1, index, torch.where(inside, shares, 0).flatten(1)), None, None, None


def _logsumexp(x: Tensor, inside: Tensor, dim: int) -> Tensor:
    """Return the log-sum-exp over `dim` of those elements of x where `inside` is True; -inf if there are none. exp(-inf) is never computed,
    since on a CPU it takes 14 times as long as exp(0)."""
    if not x.shape[dim]:
        return x.sum(dim).sub(math.inf)
    largest = _finite(torch.where(inside, x, -math.inf).amax(dim, keepdim=True))
    shares = torch.where(inside, x - largest, 0).exp_()
    return torch.where(inside, shares, 0).sum(dim).log_().add_(largest.squeeze(dim))


def _finite(x: Tensor) -> Tensor:
    return x.clamp(min=torch.finfo(x.dtype).min)
