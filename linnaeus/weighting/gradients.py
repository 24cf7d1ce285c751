"""Compute the gradient of each task's loss in one update, from the graphs of the micro-batches before their backward.

`weighting.place` selects the tensors at which the gradients are computed:

- `shared`: the parameters (scale and bias) of the last shared affine layer. The backward stops there; costs a few percent of a step.
- `features`: the features that the heads read. Costs the same, but is another quantity: the gradient of a sample at its features
  is a poor measure of its gradient at the trunk.
- `trunk`: all parameters shared by all tasks. Exact; costs a backward through the trunk and memory for one gradient per task.

Gradients at parameters are summed over micro-batches and ranks before norms and scalar products are computed. At features each sample has
its own gradient, so the scalar products are computed per micro-batch and summed. In both cases the result does not depend on how the global
batch is split. The graph is retained, no forward pass is repeated, and `.grad` does not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.distributed.summation_tree import PairwiseSum
from linnaeus.errors import ConfigError

Totals = tuple[Tensor, Tensor, Tensor, Tensor]  # losses [T], norms [T], gramian [T, T], gramian at the last shared layer [T, T]


class TaskGradients:
    """Gradients of the tasks in one update. Call `start`, then `add` for each micro-batch, then `total`."""

    def __init__(
        self, shared: Sequence[nn.Parameter], place: str = "shared", trunk: Sequence[nn.Parameter] = (), block: int | None = None
    ) -> None:
        """`shared`: parameters of the last shared layer. `trunk`: all shared parameters, including `shared`. Frozen parameters are left
        out.

        `place`: where gradients are computed: "shared", "features" or "trunk" (see the module). `block`: number of consecutive
        micro-batches whose gradients are added from left to right; the sums of blocks are added pairwise (see `SumOrder`). None: all of an
        update."""
        first = {id(parameter) for parameter in shared}
        self.place, self.shared = place, [parameter for parameter in shared if parameter.requires_grad]
        self.trunk = [*self.shared, *(parameter for parameter in trunk if parameter.requires_grad and id(parameter) not in first)]
        self.block, self._blocks = block, PairwiseSum()
        self._buffer: Tensor | None = None
        self.start(at_place=True)

    @property
    def possible(self) -> bool:
        """Return True if a parameter of the last shared layer is trained; False if all of them are frozen."""
        return bool(self.shared)

    def start(self, at_place: bool) -> None:
        """Start an update. With `at_place=False` only the gradients at the last shared layer are computed, not the gradients at `place`."""
        self._parameters = self.trunk if at_place and self.place == "trunk" else self.shared
        self._at_features = at_place and self.place == "features"
        self._micro_batches = self._in_block = 0

    def add(self, losses: Tensor | Sequence[Tensor], outputs: Any = None, scale: Tensor | None = None) -> None:
        """Compute and add the gradients of a micro-batch.

        `losses`: for each task the sum of its losses divided by the number of its valid labels in the whole global batch, with graph: [T],
        or a sequence of T scalars. T scalars are cheaper: from a stacked [T], the backward of each task also runs through the heads of the
        other tasks, with gradients of 0. `outputs`: outputs of the model, read only if gradients are computed at the features. `scale`:
        loss scale of fp16, []; losses are multiplied and gradients divided by it. Raise `ConfigError` with `weighting.place=features` if no
        loss depends on the features that the model returns."""
        features = [features_of(outputs)] if self._at_features else []
        inputs, count = [*self._parameters, *features], len(self._parameters)
        if self._in_block == 0:
            self._allocate(len(losses))
        rows, used = [], False
        for task, loss in enumerate(losses):
            grads = _gradients(loss if scale is None else loss * scale, inputs)
            self._accumulate(self._vectors[task], _vector(grads[:count], self._parameters), scale)
            if features:
                rows.append(_vector(grads[count:], features))
                used = used or grads[-1] is not None
        if features:
            if not used:
                raise ConfigError(
                    "weighting.place=features: the losses do not depend on the model's `per_rank`; use weighting.place=shared"
                )
            stacked = torch.stack(rows).to(self._vectors)
            self._accumulate(self._products, stacked @ stacked.T, None if scale is None else scale**2)
        self._accumulate(self._losses, torch.stack([loss.detach() for loss in losses]), None)
        self._micro_batches, self._in_block = self._micro_batches + 1, self._in_block + 1
        if self._in_block == self.block and self._buffer is not None:
            self._blocks.push([self._buffer])
            self._buffer, self._in_block = None, 0

    def _allocate(self, tasks: int) -> None:
        """Allocate one buffer for all sums, so that one all-reduce suffices.

        Later updates use the same buffer again: with `place` "trunk" it is as large as T models."""
        width = sum(parameter.numel() for parameter in self._parameters)
        sizes = [tasks * width, tasks * tasks * self._at_features, tasks]
        if self._buffer is None or len(self._buffer) != sum(sizes):
            self._buffer = self.shared[0].new_empty(sum(sizes))
        vectors, products, self._losses = self._buffer.split(sizes)
        self._vectors = vectors.view(tasks, width)  # the parameters of the last shared layer come first
        self._products = products.view(tasks, -1)  # [T, T] at the features

    def _accumulate(self, target: Tensor, values: Tensor, scale: Tensor | None) -> None:
        values = values.detach() if scale is None else values.detach() / scale
        target.add_(values) if self._in_block else target.copy_(values)

    @torch.no_grad()
    def total(self, all_reduce: Callable[[Tensor], Tensor]) -> Totals:
        """Return the losses, norms and scalar products of the task gradients, summed over the micro-batches and the ranks (see `Totals`).

        `all_reduce`: function that sums a tensor over the ranks in place and returns it; called once."""
        assert self._micro_batches, "total without a micro-batch"
        tasks, size = len(self._losses), self._vectors.numel()
        if self._buffer is None:
            (self._buffer,) = self._blocks.total()
        total = all_reduce(self._buffer)
        losses, vectors = total[-tasks:].clone(), total[:size].view(tasks, -1)
        at_shared = vectors[:, : sum(parameter.numel() for parameter in self.shared)]
        shared = at_shared @ at_shared.T
        if self._at_features:
            gramian = total[size:-tasks].view(tasks, tasks).clone()
            return losses, gramian.diagonal().sqrt(), gramian, shared
        gramian = shared if vectors.shape == at_shared.shape else vectors @ vectors.T
        return losses, torch.linalg.vector_norm(vectors, dim=1), gramian, shared


def features_of(outputs: Any) -> Tensor:
    """Return the features [B, ...] that the heads read, from the outputs of a model.

    Raise `ConfigError` if the model does not return them."""
    features = outputs.get("per_rank") if isinstance(outputs, Mapping) else None
    if not isinstance(features, Tensor):
        raise ConfigError("weighting.place=features: this model does not return the features its heads read; use weighting.place=shared")
    return features


def _gradients(loss: Tensor, inputs: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the gradient of `loss` at each of `inputs`; None for an input on which the loss does not depend. The graph is retained."""
    if not loss.requires_grad:
        return [None] * len(inputs)
    return torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)


def _vector(grads: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> Tensor:
    """Return `grads`, the gradients at `inputs`, flattened and concatenated into one vector. A gradient that is None gives zeros."""
    return torch.cat([(torch.zeros_like(x) if grad is None else grad).reshape(-1) for grad, x in zip(grads, inputs, strict=True)])


class GradientConflict:
    """Norm of each task gradient at the last shared layer, and cosine of each pair of them. A cosine below 0 means that the two tasks
    conflict.

    The gradients are those of the losses without their task weights. They are summed over the whole global batch before norms and cosines
    are computed. A mean over micro-batches or ranks would be another number, and would depend on the split. `norms`: float64 [T] on the
    device, of the last measurement. `cosines`: float64 [T, T]. `pending`: True until a log row has contained this measurement."""

    def __init__(self, tasks: Sequence[str], device: torch.device) -> None:
        self.tasks = tuple(tasks)
        self.cosines = torch.full((len(tasks), len(tasks)), torch.nan, dtype=torch.float64, device=device)
        self.norms = torch.full((len(tasks),), torch.nan, dtype=torch.float64, device=device)
        self.pending = False

    @torch.no_grad()
    def update(self, gramian: Tensor) -> None:
        """Compute norms and cosines from `gramian`, the scalar products [T, T] of the task gradients. The cosines of a task without a
        gradient are NaN."""
        products = gramian.double()
        norms = self.norms.copy_(products.diagonal().sqrt())
        self.cosines.copy_((products / (norms * norms.unsqueeze(1))).clamp(-1.0, 1.0))
        self.pending = True

    def row(self) -> dict[str, float]:
        """Return `{train/<task>/grad_norm: norm}` for each task and `{train/conflict/<task>/<task>: cosine}` for each pair of tasks, once
        per measurement; otherwise {}.

        This waits for the device, so call it only when a row is logged."""
        if not self.pending:
            return {}
        self.pending = False
        norms, *cosines = torch.cat([self.norms.unsqueeze(0), self.cosines]).tolist()
        pairs = combinations(range(len(self.tasks)), 2)
        own = {f"train/{task}/grad_norm": norm for task, norm in zip(self.tasks, norms, strict=True)}
        return own | {f"train/conflict/{self.tasks[a]}/{self.tasks[b]}": cosines[a][b] for a, b in pairs}

    def state_dict(self) -> dict[str, Any]:
        return {"cosines": self.cosines.clone(), "norms": self.norms.clone(), "pending": self.pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.cosines.copy_(state["cosines"])
        self.norms.copy_(state.get("norms", self.norms))  # not in checkpoints that were written before norms were logged
        self.pending = state["pending"]
