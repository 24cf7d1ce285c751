"""Sum the gradients of a global batch in the order of `summation_tree.py`, in place of DDP (`trainer.deterministic=anywhere`).

Autograd sums the gradients of a block of micro-batches in `.grad`. At the end of a block they are moved to a stack of subtrees. In the last
backward of an update, the gradients are copied to flat buckets as soon as those of a bucket are computed, and the exchange with the first
partner starts while backward continues. The exchanges with the other partners follow after backward."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.distributed.context import DistributedContext
from linnaeus.distributed.summation_tree import PairwiseSum, tree_partners

BUCKET_BYTES = 25 << 20  # as in DDP: large enough for the bandwidth, small enough to start before backward ends
ALIGNMENT = 16  # elements: each gradient in a bucket begins at a cache line, as a tensor of its own does


def copies_of_gradients(accumulation: int, block: int, processes: int) -> int:
    """Return how many copies of all gradients a process holds at most, in addition to `.grad`: one for each level of its subtree, and two
    for the exchange with other processes. accumulation, block: as for `TreeReduction`."""
    return (accumulation // block).bit_length() - 1 + 2 * (processes > 1)


class TreeReduction:
    """Gradients of an update, summed in the order of the tree. Call `micro_batch` around forward and backward of each micro-batch of an
    update, then `finish`.

    factor: 1, by which the losses must be multiplied, because the gradients of processes are summed and not averaged. copies: how many
    copies of all gradients this process holds at most, in addition to `.grad`."""

    factor, waits_in_backward = 1, False

    def __init__(self, model: nn.Module, context: DistributedContext, block: int, accumulation: int) -> None:
        """Copy the parameters and buffers of rank 0 to all processes. block: micro-batches in a block of the tree. accumulation:
        micro-batches of an update on this process."""
        self.context, self.block = context, block
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._blocks, self._number = PairwiseSum(), 0
        self._partners = tree_partners(context)
        self._buckets: list[Bucket] = []
        self._sent, self._last = 0, False
        self.copies = copies_of_gradients(accumulation, block, context.world_size)
        if self._partners:
            self._buckets = make_buckets(self.parameters)
            self._add_hooks()
            for tensor in [*model.parameters(), *model.buffers()]:
                context.broadcast(tensor.detach())

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Return a context manager for forward and backward of a micro-batch. last: True for the last micro-batch of an update."""
        self._last = last
        yield
        self._number += 1
        if self._number % self.block == 0 and not (last and self._partners):
            self._blocks.push(take_gradients(self.parameters))

    def finish(self) -> None:
        """Set `.grad` of each parameter to the sum over the global batch. Call this after the last backward.

        A parameter on which no loss depends gets zeros, as on a process whose micro-batches do not use it."""
        self._number, self._last = 0, False
        if not self._partners:
            for parameter, grad in zip(self.parameters, self._blocks.total(), strict=True):
                parameter.grad = grad
            return
        for bucket in self._buckets[self._sent :]:
            self._send(bucket)
        for partner in self._partners[1:]:
            for bucket in self._buckets:
                bucket.add_received()
                bucket.start(self.context, partner)
        for bucket in self._buckets:
            bucket.add_received()
            for index, view in zip(bucket.indices, bucket.views, strict=True):
                self.parameters[index].grad = view
        self._blocks.clear()
        self._sent = 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.indices)

    def _add_hooks(self) -> None:
        """Let backward call `_computed` when it has computed the gradient of a parameter.

        The hook has a weak reference, because the garbage collector does not find a cycle through a hook."""
        method = weakref.WeakMethod(self._computed)
        for number, bucket in enumerate(self._buckets):
            for index in bucket.indices:
                self.parameters[index].register_post_accumulate_grad_hook(functools.partial(_call, method, number))

    def _computed(self, number: int) -> None:
        """Record that backward has computed one more gradient of bucket `number`. Do nothing before the last micro-batch of an update.

        Send complete buckets in the order of the buckets, which is the same on all processes."""
        if not self._last:
            return
        self._buckets[number].missing -= 1
        while self._sent < len(self._buckets) and self._buckets[self._sent].missing == 0:
            self._send(self._buckets[self._sent])
            self._sent += 1

    @torch.no_grad()
    def _send(self, bucket: Bucket) -> None:
        """Copy the sums of this process to `bucket`, and start the exchange with the first partner."""
        grads = self._blocks.part_of_total(bucket.indices, take_gradients([self.parameters[index] for index in bucket.indices]))
        torch._foreach_copy_(bucket.views, grads)
        bucket.start(self.context, self._partners[0])


class Bucket:
    """Gradients of some parameters, one after the other in a flat tensor.

    indices: places of the parameters in the list of all parameters. views: a view of `flat` for each of them, with the shape and the
    strides of the parameter. missing: number of gradients that the last backward of the update has not computed yet."""

    def __init__(self, parameters: Sequence[nn.Parameter], indices: Sequence[int]) -> None:
        self.indices = list(indices)
        own = [parameters[index] for index in indices]
        starts = [0]
        for parameter in own:
            starts.append(starts[-1] + -(-parameter.numel() // ALIGNMENT) * ALIGNMENT)
        self.flat = torch.zeros(starts[-1], dtype=own[0].dtype, device=own[0].device)
        self.received = torch.zeros_like(self.flat)
        self.views = [_view(self.flat, start, parameter) for start, parameter in zip(starts, own)]
        self.missing = len(self.indices)
        self._wait: Callable[[], None] = _nothing

    def start(self, context: DistributedContext, partner: int) -> None:
        """Start the exchange of the sums with process `partner`."""
        self._wait = context.start_exchange(self.flat, self.received, partner)

    def add_received(self) -> None:
        """Wait until the exchange is complete, and add the sums of the other process."""
        self._wait()
        self._wait = _nothing  # frees the request, which would keep the process group alive
        self.flat += self.received


def make_buckets(parameters: Sequence[nn.Parameter]) -> list[Bucket]:
    """Return the buckets of all `parameters`, the last parameters first, because backward computes their gradients first."""
    groups: list[list[int]] = []
    size = 0
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        size += parameter.numel() * parameter.element_size()
        if not groups or size > BUCKET_BYTES or parameter.dtype != parameters[groups[-1][0]].dtype:
            groups.append([])
            size = parameter.numel() * parameter.element_size()
        groups[-1].append(index)
    return [Bucket(parameters, group) for group in groups]


def take_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradients of `parameters`, and remove them from the parameters. A parameter without a gradient has zeros."""
    grads = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return grads


def _nothing() -> None:
    pass


def _call(method: weakref.WeakMethod[Any], number: int, parameter: Tensor) -> None:
    """Call `method` with `number`, if its object exists. This is a hook of `parameter`."""
    function = method()
    if function is not None:
        function(number)


def _view(flat: Tensor, start: int, parameter: Tensor) -> Tensor:
    """Return elements of `flat`, from `start` on, as a view in the shape of `parameter`. It has the strides of `parameter` if that has no
    gaps."""
    part = flat[start : start + parameter.numel()]
    return part.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride())
