"""Sum the values of micro-batches in one fixed order on any number of processes (`trainer.deterministic=anywhere`).

A sum of floats depends on the order of its additions. Here the order is a tree over the G micro-batches of a global batch, G = 2^k x m with
m odd: blocks of m consecutive micro-batches are summed from left to right, and the sums of the 2^k blocks in a binary tree, neighbours
first. A process holds G / W consecutive micro-batches. If the number of processes W is a power of two up to 2^k, these are a subtree, which
the process adds alone; the additions above are made by pairs of processes. So every such W gives the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linnaeus.distributed.context import DistributedContext


class PairwiseSum:
    """Sum of a sequence of values in a binary tree, neighbours first. A value is a list of tensors; all values have the same shapes.

    Call `push` for each of 2^n values, then `total`. At most n values are kept at a time, beside the newest."""

    def __init__(self) -> None:
        self._subtrees: list[list[Tensor]] = []  # sums of subtrees, the largest first
        self._count = 0

    def push(self, value: list[Tensor]) -> None:
        """Add the next value. Its tensors become part of the sum and may be changed."""
        finished = self._count
        self._count += 1
        while finished & 1:  # a subtree as large as `value` is to its left
            left = self._subtrees.pop()
            torch._foreach_add_(left, value)
            value, finished = left, finished >> 1
        self._subtrees.append(value)

    def part_of_total(self, indices: Sequence[int], last: list[Tensor]) -> list[Tensor]:
        """Return the tensors at `indices` of the sum of all values. Call this instead of pushing the last value. last: the tensors at
        `indices` of the last value.

        The additions are in place, so call this only once for each index."""
        for left in reversed(self._subtrees):
            found = [left[index] for index in indices]
            torch._foreach_add_(found, last)
            last = found
        return last

    def total(self) -> list[Tensor]:
        """Return the sum of all values, and begin a new sum. The number of values must be a power of two."""
        (found,) = self._subtrees
        self.clear()
        return found

    def clear(self) -> None:
        """Begin a new sum."""
        self._subtrees, self._count = [], 0


class BlockwiseSum:
    """Sum of one small tensor per micro-batch, in the order of the tree. Call `add` for each micro-batch of a process, then `total`."""

    def __init__(self, block: int) -> None:
        """block: number of consecutive micro-batches that are summed from left to right."""
        self.block, self._in_block = block, 0
        self._sum, self._blocks = torch.empty(0), PairwiseSum()

    def add(self, value: Tensor) -> None:
        """Add the value of the next micro-batch. `value` is not changed."""
        self._sum = self._sum + value if self._in_block else value.clone()
        self._in_block += 1
        if self._in_block == self.block:
            self._blocks.push([self._sum])
            self._in_block = 0

    def total(self) -> Tensor:
        """Return the sum, and begin a new one. The number of values must be a power of two times `block`."""
        return self._blocks.total()[0]


@dataclass(frozen=True)
class SumOrder:
    """Order in which the values of the micro-batches of an update are summed.

    block: number of consecutive micro-batches of a process that are summed from left to right; the sums of blocks are added pairwise.
    all_reduce: function that sums a tensor over the processes, in place, and returns it. anywhere: True if the bits of a sum are the same
    on every possible number of processes. rank: rank of this process."""

    block: int
    all_reduce: Callable[[Tensor], Tensor]
    anywhere: bool = False
    rank: int = 0

    @functools.cached_property
    def sum(self) -> Callable[[Iterable[Tensor]], Tensor]:
        """Return a function that sums small tensors in the order of this object: one tensor for each micro-batch of this process."""
        return self._tree_sum if self.anywhere else functools.partial(functools.reduce, torch.add)

    def _tree_sum(self, values: Iterable[Tensor]) -> Tensor:
        found = BlockwiseSum(self.block)
        for value in values:
            found.add(value)
        return found.total()


def sum_order(context: DistributedContext, accumulation: int, block: int | None) -> SumOrder:
    """Return the order of the sums of a run.

    accumulation: micro-batches of an update on this process. block: number of micro-batches in a block of the tree; None: without a tree, a
    process adds its micro-batches from left to right, and the order over the processes is that of the library."""
    if block is None:
        return SumOrder(accumulation, context.all_reduce, rank=context.rank)
    return SumOrder(block, lambda tensor: tree_all_reduce(context, tensor), anywhere=True, rank=context.rank)


def tree_all_reduce(context: DistributedContext, tensor: Tensor) -> Tensor:
    """Sum a contiguous `tensor` over the processes, in place, as a binary tree of ranks, neighbours first. Return it.

    In round i each process adds the tensor of the process whose rank differs in bit i. Both compute the same bits, because a + b = b + a.
    The number of processes must be a power of two."""
    partners = tree_partners(context)
    received = torch.empty_like(tensor) if partners else tensor
    for partner in partners:
        context.start_exchange(tensor, received, partner)()
        tensor += received
    return tensor


def tree_partners(context: DistributedContext) -> list[int]:
    """Return the ranks with which this process exchanges its sum, round by round, nearest first; [] with one process."""
    return [context.rank ^ (1 << bit) for bit in range((context.world_size - 1).bit_length())]
