"""GradientConflict between tasks: the cosine of each pair of task gradients at the last shared layer. Below 0 one works against the other.

Of the gradients summed over the whole global batch; a mean of cosines over micro-batches or processes would be another number, and
depend on the split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor


class GradientConflict:
    """The last measurement, until the row of a log boundary has taken it. `cosines`: float [T, T] on the device."""

    def __init__(self, tasks: Sequence[str], device: torch.device) -> None:
        self.tasks = tuple(tasks)
        self.cosines = torch.full((len(tasks), len(tasks)), torch.nan, dtype=torch.float64, device=device)
        self.waiting = False  # for a row

    @torch.no_grad()
    def update(self, gramian: Tensor) -> None:
        """The scalar products [T, T] of the task gradients at the last shared layer. NaN where a task has no gradient."""
        products = gramian.double()
        norms = products.diagonal().sqrt()
        self.cosines.copy_((products / (norms * norms.unsqueeze(1))).clamp(-1.0, 1.0))
        self.waiting = True

    def row(self) -> dict[str, float]:
        """What a row says of it, once; empty when nothing was measured since the last row. Reads the device: log boundaries only."""
        if not self.waiting:
            return {}
        self.waiting = False
        found = self.cosines.tolist()
        pairs = combinations(range(len(self.tasks)), 2)
        return {f"train/conflict/{self.tasks[a]}/{self.tasks[b]}": found[a][b] for a, b in pairs}

    def state_dict(self) -> dict[str, Any]:
        return {"cosines": self.cosines.clone(), "waiting": self.waiting}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.cosines.copy_(state["cosines"])
        self.waiting = state["waiting"]
