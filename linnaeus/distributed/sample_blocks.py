"""`SampleBlocks`: exchange rows of samples between processes that each hold some columns of a large result, differentiable.

Each of W processes has the B samples of its own micro-batch and computes something for the samples of all processes, such as the scores of
its share of the classes. Two operations, each of which is the backward of the other, do all of the communication:

    gather   own rows [B, ...]      ->  the rows of all processes [W P, ...]                          (all-gather)
    sum      terms of all rows [W P, k] on every process  ->  their sums for the own rows [B, k]      (reduce-scatter)

With x_q the rows of process q, and L = sum_q L_q the sum of the losses of all processes, dL/dx_q is the sum over the processes p of the
gradients that p computes for the rows of q: this is `sum` of these gradients. The gradient of a term of p for a row of q is the gradient of
L_q with respect to the sum, which q has: this is `gather`. Neither message grows with the number of columns.

Micro-batches may have different sizes. P is the largest B, and rows after B are 0. Every process must call the same operations in the same
order, also one without a sample; autograd runs their backward in the reverse order on all of them."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnaeus.distributed.context import DistributedContext


class SampleBlocks:
    """Layout of the samples of W processes in one tensor: a block of P rows for each process, in rank order. samples: B, the number of
    samples of this process."""

    def __init__(self, context: DistributedContext, samples: int, rows: int) -> None:
        """samples: B. rows: P, at least B, and the same on every process."""
        self.context, self.samples, self.rows = context, samples, rows

    def gather(self, own: Tensor) -> Tensor:
        """Return the rows of all processes, [W P, ...], from the rows of this process, [B, ...]. Differentiable for floats."""
        return cast(Tensor, _Gather.apply(own, self)) if own.is_floating_point() else self.gathered(own)

    def sum(self, *terms: Tensor) -> list[Tensor]:
        """Return the sums of the terms over the processes for the samples of this process, [B, k] each. terms: [W P, k] each, of one dtype.
        Differentiable.

        All terms are sent in one message. Backward sends the gradients of the sums, in one message, without sums that do not have a
        gradient."""
        return list(_Sum.apply(self, *terms))  # type: ignore[no-untyped-call]

    def maximum(self, terms: Tensor) -> Tensor:
        """Return the elementwise maximum of `terms` [W P, k] over the processes, [W P, k], without a gradient."""
        return cast(Tensor, self.context.all_reduce(terms.detach().clone(), "max"))

    def own(self, terms: Tensor) -> Tensor:
        """Return the rows of the samples of this process, [B, ...] from [W P, ...], as a view."""
        first = self.context.rank * self.rows
        return terms[first : first + self.samples]

    def gathered(self, own: Tensor) -> Tensor:
        """Do as `gather`, without a gradient."""
        padded = own
        if self.samples < self.rows:
            padded = torch.cat([own, own.new_zeros(self.rows - self.samples, *own.shape[1:])])
        if own.is_meta:  # operations are counted on one process only
            return padded.repeat(self.context.world_size, *[1] * (own.ndim - 1))
        return cast(Tensor, self.context.gather_rows(padded))

    def summed(self, terms: Tensor) -> Tensor:
        """Do as `sum`, with one tensor [W P, ...] and without a gradient."""
        if terms.is_meta:
            return self.own(terms)
        return cast(Tensor, self.context.reduce_rows(terms)[: self.samples])


def agree_on_blocks(context: DistributedContext, samples: int, features: int) -> tuple[SampleBlocks, int]:
    """Return (blocks as large as the largest micro-batch of a process, the largest `features` of a process). A collective of 16 bytes on
    the host.

    samples: samples of this process, which may be 0. features: any number, such as the number of features of a sample; 0 if this process
    does not know it."""
    sizes = context.all_reduce(torch.tensor([samples, features]), "max").tolist()
    return SampleBlocks(context, samples, max(sizes[0], 1)), sizes[1]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, blocks: SampleBlocks) -> Tensor:
        ctx.blocks = blocks
        return blocks.gathered(own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.blocks.summed(grads[0]), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blocks: SampleBlocks, *terms: Tensor) -> tuple[Tensor, ...]:
        ctx.blocks = blocks
        ctx.set_materialize_grads(False)  # a sum without a gradient has None, and its terms need no backward
        found = blocks.summed(torch.cat(terms, 1))
        return tuple(part.clone() for part in found.split([term.shape[1] for term in terms], 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        used = [grad for grad in grads if grad is not None]
        found = iter(ctx.blocks.gathered(torch.cat(used, 1)).split([grad.shape[1] for grad in used], 1))
        return None, *(None if grad is None else next(found) for grad in grads)
