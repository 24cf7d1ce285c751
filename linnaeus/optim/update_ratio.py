"""Measure the update ratio of each parameter group: the norm of the change of its weights, divided by the norm of its weights.

About 0.001 is usual in the middle of a run; at a ratio near 1 an update replaces the weights. The ratio is measured only at some of the
logged updates, on a part of each weight tensor, so that no second copy of the model is needed."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from linnaeus.optim.param_groups import ParamGroup

PART = 16384  # elements of a tensor that are copied; for a ViT-S with its 150 tensors 10 MB instead of 88


class UpdateRatio:
    """Meter of the ratio |change| / |weights before the update|, per parameter group, of the update between `start` and `read`.

    sizes: name of a group -> number of its weights that are measured."""

    def __init__(self, groups: Sequence[ParamGroup], sharded: Collection[str] = ()) -> None:
        """groups: parameter groups of all optimizers. Groups with the same label are measured as one group with the name of the label.
        Groups without weight decay (norms, biases, tokens) are measured as another group, `<label>_no_decay`.

        sharded: names of parameters that are divided over the processes. They are not measured, so that the ratios, and the alarms about
        them, are the same on all processes."""
        parts: dict[str, list[Tensor]] = {}
        for group in groups:
            name = group.label if group.weight_decay else f"{group.label}_no_decay"
            measured = [parameter.tensor.detach() for parameter in group.parameters if parameter.name not in sharded]
            parts.setdefault(name, []).extend(map(_part, measured))
        # `torch.cat` needs a tensor, also if only sharded parameters are trained
        self._parts = [part for tensors in parts.values() for part in tensors] or [groups[0].tensors[0].new_empty(0)]
        self.sizes = {name: sum(len(part) for part in tensors) for name, tensors in parts.items()}
        self._before: Tensor | None = None  # all parts in one tensor, because one call for each tensor would cost more than the copy

    @torch.no_grad()
    def start(self) -> None:
        """Copy the measured weights. Call this before the update. It does not wait for the device."""
        self._before = torch.cat(self._parts)

    @torch.no_grad()
    def read(self) -> dict[str, float]:
        """Return parameter group -> ratio of the update since `start`; {} if `start` was not called since the last `read`. This waits for
        the device.

        The ratio of a group is NaN if all its measured weights were 0, or if no weight of the group is measured."""
        if self._before is None:
            return {}
        before, self._before = self._before, None
        change, sizes = torch.cat(self._parts).sub_(before), list(self.sizes.values())
        norms = torch.stack(torch._foreach_norm([*before.split(sizes), *change.split(sizes)])).tolist()
        ratios = zip(self.sizes, norms, norms[len(sizes) :])
        return {name: moved / weight if weight else math.nan for name, weight, moved in ratios}


def _part(tensor: Tensor) -> Tensor:
    """Return a view of the first `PART` elements in memory, [<= PART]; an empty tensor if the elements are not contiguous in memory."""
    in_memory = tensor.permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True))  # channels last, or transposed
    return in_memory.view(-1)[:PART] if in_memory.is_contiguous() else tensor.new_empty(0)
