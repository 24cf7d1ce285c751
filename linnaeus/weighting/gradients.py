"""The gradient of every task's loss over one update, taken from the graphs of its micro-batches before their backward.

Three places. `shared`: scale and bias of the last shared affine; the backward ends there, a few percent of a step. `features`: the
features the heads read; as cheap, but not the same quantity: what a sample asks of its features says little of what that asks of the
trunk. `trunk`: every parameter that all tasks share, exact, a backward through the trunk for each task, and T
gradients of its size in memory.

A gradient at parameters is summed over micro-batches and processes before anything is made of it, and so are the scalar products of
gradients at features, where each sample has its own: neither depends on how the global batch is split. The graph is kept, nothing is run
forward again, and `.grad` is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.errors import ConfigError

Totals = tuple[Tensor, Tensor, Tensor, Tensor]  # losses [T], norms [T], gramian [T, T], gramian at the last shared layer [T, T]


class TaskGradients:
    """`start`, `add` for each micro-batch, `total`."""

    def __init__(self, shared: Sequence[nn.Parameter], place: str = "shared", trunk: Sequence[nn.Parameter] = ()) -> None:
        """`place`: shared, features or trunk; `trunk`: all parameters that all tasks share, those of `shared` among them. Frozen ones
        are left out."""
        first = {id(parameter) for parameter in shared}
        self.place, self.shared = place, [parameter for parameter in shared if parameter.requires_grad]
        self.trunk = [*self.shared, *(parameter for parameter in trunk if parameter.requires_grad and id(parameter) not in first)]
        self._message: Tensor | None = None
        self.start(at_place=True)

    @property
    def possible(self) -> bool:
        """Whether the last shared layer has gradients: not where all of it is frozen."""
        return bool(self.shared)

    def start(self, at_place: bool) -> None:
        """Start an update. Without `at_place` the last shared layer is all that is looked at."""
        self._parameters = self.trunk if at_place and self.place == "trunk" else self.shared
        self._at_features = at_place and self.place == "features"
        self._micro_batches = 0

    def add(self, losses: Tensor | Sequence[Tensor], outputs: Any = None, scale: Tensor | None = None) -> None:
        """Add a micro-batch. `losses`: [T] or T scalars, each task's sum of losses divided by its valid labels in the whole
        global batch, with their graph, which is kept. `outputs` of the model. `scale`: the loss scale of fp16, [], multiplied in
        and divided out.

        Separate scalars are cheaper: through a stacked [T] each task's gradient runs through the heads of all, as zeros."""
        features = [features_of(outputs)] if self._at_features else []
        inputs, count = [*self._parameters, *features], len(self._parameters)
        if self._micro_batches == 0:
            self._make_room(len(losses))
        rows, used = [], False
        for task, loss in enumerate(losses):
            grads = _gradients(loss if scale is None else loss * scale, inputs)
            self._put(self._vectors[task], _vector(grads[:count], self._parameters), scale)
            if features:
                rows.append(_vector(grads[count:], features))
                used = used or grads[-1] is not None
        if features:
            if not used:
                raise ConfigError(
                    "weighting.place=features: the losses do not depend on the model's `per_rank`; use weighting.place=shared"
                )
            stacked = torch.stack(rows).to(self._vectors)
            self._put(self._products, stacked @ stacked.T, None if scale is None else scale**2)
        self._put(self._losses, torch.stack([loss.detach() for loss in losses]), None)
        self._micro_batches += 1

    def _make_room(self, tasks: int) -> None:
        """One message of everything, kept from update to update: at the trunk a copy of it would be as large as T models."""
        width = sum(parameter.numel() for parameter in self._parameters)
        sizes = [tasks * width, tasks * tasks * self._at_features, tasks]
        if self._message is None or len(self._message) != sum(sizes):
            self._message = self.shared[0].new_empty(sum(sizes))
        vectors, products, self._losses = self._message.split(sizes)
        self._vectors = vectors.view(tasks, width)  # the last shared layer's parameters first
        self._products = products.view(tasks, -1)  # [T, T] at the features

    def _put(self, place: Tensor, values: Tensor, scale: Tensor | None) -> None:
        values = values.detach() if scale is None else values.detach() / scale
        place.add_(values) if self._micro_batches else place.copy_(values)

    @torch.no_grad()
    def total(self, all_reduce: Callable[[Tensor], Tensor]) -> Totals:
        """Sums over the window and, by one `all_reduce` (in place, returns its argument), over the processes."""
        assert self._micro_batches and self._message is not None, "total without a micro-batch"
        tasks, size = len(self._losses), self._vectors.numel()
        total = all_reduce(self._message)
        losses, vectors = total[-tasks:].clone(), total[:size].view(tasks, -1)
        at_shared = vectors[:, : sum(parameter.numel() for parameter in self.shared)]
        shared = at_shared @ at_shared.T
        if self._at_features:
            gramian = total[size:-tasks].view(tasks, tasks).clone()
            return losses, gramian.diagonal().sqrt(), gramian, shared
        gramian = shared if vectors.shape == at_shared.shape else vectors @ vectors.T
        return losses, torch.linalg.vector_norm(vectors, dim=1), gramian, shared


def features_of(outputs: Any) -> Tensor:
    """The features [B, ...] the heads read. Raises ConfigError for a model that does not hand them out."""
    features = outputs.get("per_rank") if isinstance(outputs, Mapping) else None
    if not isinstance(features, Tensor):
        raise ConfigError("weighting.place=features: this model does not return the features its heads read; use weighting.place=shared")
    return features


def _gradients(loss: Tensor, inputs: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """None where an input does not enter the loss."""
    if not loss.requires_grad:
        return [None] * len(inputs)
    return torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)


def _vector(grads: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> Tensor:
    return torch.cat([(torch.zeros_like(x) if grad is None else grad).reshape(-1) for grad, x in zip(grads, inputs, strict=True)])
