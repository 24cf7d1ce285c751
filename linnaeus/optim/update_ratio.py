"""Measure how far an update moves the weights, relative to their size, per parameter group.

About 0.001 is usual in the middle of a run; a ratio near 1 replaces the weights at every update. It is measured at the updates that are
logged, on a part of each weight tensor, so that no second copy of the model is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from linnaeus.optim.param_groups import ParamGroup

PART = 16384  # elements of a tensor that are copied; a ViT-S with its 150 tensors takes 10 MB instead of 88


class UpdateRatio:
    """Ratio |change| / |weights| of the update between `start` and `read`, per parameter group."""

    def __init__(self, groups: Sequence[ParamGroup]) -> None:
        """`groups`: those of all optimizers. Groups of one label are measured together, but those without weight decay (norms, biases,
        tokens) apart as `<label>_no_decay`."""
        parts: dict[str, list[Tensor]] = {}
        for group in groups:
            name = group.label if group.weight_decay else f"{group.label}_no_decay"
            parts.setdefault(name, []).extend(_part(tensor.detach()) for tensor in group.tensors)
        self.parts = parts
        self._all = [tensor for tensors in parts.values() for tensor in tensors]
        self._before: list[Tensor] | None = None
        self.started = False

    @torch.no_grad()
    def start(self) -> None:
        """Copy the weights. Call this before the update. The host does not wait for the device."""
        if self._before is None:
            self._before = [torch.empty_like(tensor) for tensor in self._all]
        torch._foreach_copy_(self._before, self._all)
        self.started = True

    @torch.no_grad()
    def read(self) -> dict[str, float]:
        """Return {group: ratio} of the update since `start`; {} without one. A ratio is NaN if all weights of a group were 0. This waits
        for the device."""
        if not self.started or self._before is None:
            return {}
        self.started = False
        weights = torch.stack(torch._foreach_norm(self._before))
        changes = torch.stack(torch._foreach_norm(torch._foreach_sub(self._all, self._before)))
        squares = torch.stack([weights, changes]).double().square().cpu()
        ratios, first = {}, 0
        for name, tensors in self.parts.items():
            weight, change = squares[:, first : first + len(tensors)].sum(1).tolist()
            ratios[name], first = math.sqrt(change / weight) if weight else math.nan, first + len(tensors)
        return ratios


def _part(tensor: Tensor) -> Tensor:
    """Return a view of the first rows of a tensor with about `PART` elements."""
    rows = max(1, PART // max(1, tensor[:1].numel())) if tensor.ndim else 0
    return tensor[:rows] if rows else tensor
