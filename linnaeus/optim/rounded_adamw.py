"""AdamW whose moments are stored in bf16, half of the memory (`optimizer.state_precision=bf16`).

The moments of a batch of parameters are expanded to float32 in a buffer, updated by torch's fused kernel, and rounded to bf16 again. bf16
has 8 significant bits, so rounding to the nearest would lose every change below 1 in 512: with beta2 = 0.999 the second moment would not
move any more. So a moment is rounded up or down at random, with probabilities that make its mean exact (stochastic rounding; Gupta et al.
2015, "Deep Learning with Limited Numerical Precision").

The random bits are a function of the seed, the number of the update and the place in the parameters: a fixed table of hashed 16-bit numbers
XOR a key of the update and the batch. So a resumed run draws the same bits, all processes round in the same way on any device, and no
generator is used. Over the updates each element draws independent, uniform numbers. This takes one pass over memory; a hash takes ten."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.optim.optimizers import FusedAdamW, with_gradient
from linnaeus.optim.param_groups import ParamGroup
from linnaeus.randomness import ROUNDING, continued_key, hashes, key

BATCH = 1 << 21  # elements that are expanded at once: 32 MB of buffers, and few enough kernels for a GPU
LOW_BITS = 0xFFFF  # the bits of a float32 that a bf16 lacks


@dataclass
class Batch:
    """Parameters, or parts of parameters, of one group that are updated together.

    group: number of the group. place: elements of the stored moments that belong to this batch. indices: number of each parameter. parts:
    for each parameter, the elements that belong to this batch, in their order in memory; None: all. params: the parameters or parts.
    moments: first and second moments of each of `params`, float32 views of the buffers."""

    group: int
    place: slice
    indices: list[int]
    parts: list[slice | None]
    params: list[Tensor]
    moments: tuple[list[Tensor], list[Tensor]]


class RoundedAdamW(FusedAdamW):
    """AdamW with both moments in bf16 and stochastic rounding."""

    def __init__(
        self, groups: Sequence[ParamGroup], betas: tuple[float, float], eps: float, seed: int, sharded: Collection[str] = ()
    ) -> None:
        """sharded: names of the parameters that are divided over the processes. Their batches come after all other batches, so that all
        processes draw the same bits for the other parameters. Raise `ConfigError` if the parameters are not float32."""
        super().__init__(groups, betas, eps)
        self._key = key(seed, ROUNDING)
        device, total = self.params[0].device, sum(p.numel() for p in self.params)
        size = max(min(BATCH, total), *(0 if is_dense(p) else p.numel() for p in self.params))
        self._buffers = [torch.empty(size, device=device) for _ in range(2)]
        numbers = hashes(key(ROUNDING), np.arange(size)) >> np.uint64(48)
        self._table = torch.from_numpy(numbers.astype(np.int32)).to(device)
        self._noise = torch.empty_like(self._table)
        starts = [0, *accumulate(p.numel() for p in self.params)]
        self._batches = self._cut(starts, lambda index: self.names[index] not in sharded)
        self._batches += self._cut(starts, lambda index: self.names[index] in sharded)

    def _new_moments(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the stored moments of each parameter: bf16 zeros in its shape, views of one tensor for each moment."""
        if any(p.dtype != torch.float32 for p in self.params):
            raise ConfigError(
                "optimizer.state_precision=bf16 is for float32 parameters; use it with trainer.precision=float32, bf16 or fp16"
            )
        sizes = [p.numel() for p in self.params]
        self._stored = [torch.zeros(sum(sizes), dtype=torch.bfloat16, device=self.params[0].device) for _ in range(2)]
        first, second = ([_like(part, p) for part, p in zip(stored.split(sizes), self.params, strict=True)] for stored in self._stored)
        return first, second

    def _cut(self, starts: Sequence[int], chosen: Callable[[int], bool]) -> list[Batch]:
        """Return batches of the parameters for whose numbers `chosen` returns True. A batch has at most as many elements as a buffer. A
        parameter with more elements, which always has dense memory, is cut. starts: place of each parameter in the stored moments."""
        size, batches = len(self._table), list[Batch]()
        for number, part in enumerate(self.slices):
            newest = -2  # number of the last parameter in the newest batch; the next one may follow in it
            for index in filter(chosen, range(part.start, part.stop)):
                count = self.params[index].numel()
                for first in range(0, count, size):
                    elements = slice(starts[index] + first, starts[index] + min(first + size, count))
                    if index - newest > 1 or elements.stop - batches[-1].place.start > size:
                        batches.append(Batch(number, slice(elements.start, elements.start), [], [], [], ([], [])))
                    self._add(batches[-1], index, None if count <= size else slice(first, first + size), elements)
                    newest = index
        return batches

    def _add(self, batch: Batch, index: int, part: slice | None, elements: slice) -> None:
        """Add a parameter, or a `part` of it, to the end of `batch`. elements: its place in the stored moments."""
        p, used, end = self.params[index].detach(), elements.start - batch.place.start, elements.stop - batch.place.start
        batch.place = slice(batch.place.start, elements.stop)
        batch.indices.append(index)
        batch.parts.append(part)
        batch.params.append(p if part is None else in_memory(p)[part])
        for moments, buffer in zip(batch.moments, self._buffers, strict=True):
            moments.append(_like(buffer[used:end], p) if part is None else buffer[used:end])

    def _move(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        for number, batch in enumerate(self._batches):
            size = batch.place.stop - batch.place.start
            for buffer, stored in zip(self._buffers, self._stored, strict=True):
                buffer[:size].copy_(stored[batch.place])
            own_grads = [_part_of(grads[i], part) for i, part in zip(batch.indices, batch.parts, strict=True)]
            lists = (batch.params, own_grads, *batch.moments, [self.step_views[i] for i in batch.indices])
            self._call_kernel(lists if complete else with_gradient(lists, own_grads), batch.group, lr, found_inf, divisor)
            bits = continued_key(self._key, self.number, number)
            for buffer, stored in zip(self._buffers, self._stored, strict=True):
                noise = torch.bitwise_xor(self._table[:size], bits & LOW_BITS, out=self._noise[:size])
                round_at_random(buffer[:size], noise)
                stored[batch.place].copy_(buffer[:size])
                bits >>= 16


def round_at_random(values: Tensor, noise: Tensor) -> None:
    """Round float32 `values` to values of bf16, in place. noise: int32 in the shape of `values`, uniform in 0 to 65535.

    Each value lies between two neighbouring values of bf16. The sum of its bits and the noise carries into the upper 16 bits, which rounds
    away from 0, with a probability proportional to its distance from the neighbour nearer to 0. A value of bf16 does not change."""
    values.view(torch.int32).add_(noise).bitwise_and_(~LOW_BITS)


def is_dense(tensor: Tensor) -> bool:
    """Return True if the elements of `tensor` fill a range of memory, in any order of the dimensions."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1 == tensor.numel()


def in_memory(tensor: Tensor) -> Tensor:
    """Return a view [N] of a dense tensor with its N elements in their order in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _like(flat: Tensor, tensor: Tensor) -> Tensor:
    """Return `flat` [N] as a view in the shape of `tensor`, in the same order in memory if `tensor` is dense."""
    return flat.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride())


def _part_of(grad: Tensor | None, part: slice | None) -> Tensor | None:
    """Return the elements `part` of a gradient, counted in their order in memory. part: None for the whole gradient. Return None if the
    parameter does not have a gradient.

    autograd gives a gradient the strides of its parameter, so the elements of both are in the same order in memory."""
    return grad if grad is None or part is None else in_memory(grad)[part]
