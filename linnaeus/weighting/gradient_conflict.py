"""Gradient conflict: the cosine of each pair of task gradients at the last shared layer. Below 0 the tasks work against each other.

The cosines are of the gradients summed over the whole global batch. A mean of cosines over micro-batches or ranks would be another
number, and would depend on the split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor


class GradientConflict:
    """The last measurement. `cosines`: float64 [T, T] on the device. `pending`: True until a row contains it."""

    def __init__(self, tasks: Sequence[str], device: torch.device) -> None:
        self.tasks = tuple(tasks)
        self.cosines = torch.full((len(tasks), len(tasks)), torch.nan, dtype=torch.float64, device=device)
        self.pending = False

    @torch.no_grad()
    def update(self, gramian: Tensor) -> None:
        """Compute the cosines from the scalar products [T, T] of the task gradients. NaN for a task without a gradient."""
        products = gramian.double()
        norms = products.diagonal().sqrt()
        self.cosines.copy_((products / (norms * norms.unsqueeze(1))).clamp(-1.0, 1.0))
        self.pending = True

    def row(self) -> dict[str, float]:
        """Return `train/conflict/<task>/<task>` of each pair, once per measurement, else {}. Reads the device: call only for a row."""
        if not self.pending:
            return {}
        self.pending = False
        cosines = self.cosines.tolist()
        pairs = combinations(range(len(self.tasks)), 2)
        return {f"train/conflict/{self.tasks[a]}/{self.tasks[b]}": cosines[a][b] for a, b in pairs}

    def state_dict(self) -> dict[str, Any]:
        return {"cosines": self.cosines.clone(), "pending": self.pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.cosines.copy_(state["cosines"])
        self.pending = state["pending"]
