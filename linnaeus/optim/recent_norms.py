"""Keep the gradient norm of each update since the last log row on the device, and count the skipped updates by them.

An update whose gradient norm is not finite is skipped. Counters on the device would take two more operations per update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class RecentNorms:
    """Gradient norms of the updates since the last log row, at most the newest `rows`, on the device.

    Each update writes its norm into a slot of its own, so nothing is copied, and nothing waits unless there are more than `rows` updates.
    skipped: number of skipped updates. skipped_in_a_row: number of them since the last applied update. Both are those of the last call of
    `count_skipped`."""

    def __init__(self, rows: int, device: torch.device, dtype: torch.dtype) -> None:
        self.values = torch.zeros(rows, device=device, dtype=dtype)
        self._slots = self.values.unbind()
        self.count = self._counted = 0  # updates since the last `clear`, and those of them that `skipped` includes
        self.skipped = self.skipped_in_a_row = 0

    def next_slot(self) -> Tensor:
        """Return the tensor [] for the norm of the next update."""
        rows = len(self._slots)
        if self.count - self._counted == rows:
            self.count_skipped()
        slot = self._slots[self.count % rows]
        self.count += 1
        return slot

    def read(self) -> Tensor:
        """Return the norms since the last `clear`, oldest first, [n] on the host. This waits for the device."""
        rows, found = len(self._slots), self.values.cpu()
        return found[: self.count] if self.count <= rows else found.roll(-(self.count % rows))

    def count_skipped(self) -> None:
        """Bring `skipped` and `skipped_in_a_row` up to date. This waits for the device if there are updates that are not counted."""
        new, self._counted = self.count - self._counted, self.count
        norms = self.read()[-new:].tolist() if new else []
        if norms and math.isfinite(sum(norms)):
            self.skipped_in_a_row = 0
            return
        for norm in norms:
            skipped = not math.isfinite(norm)
            self.skipped += skipped
            self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0

    def clear(self) -> None:
        """Start again. The values stay in memory until they are overwritten."""
        self.count_skipped()
        self.count = self._counted = 0

    def state_dict(self) -> dict[str, Any]:
        self.count_skipped()
        counts = {"skipped_updates": self.skipped, "skipped_in_a_row": self.skipped_in_a_row}
        return {**counts, "norms": {"count": self.count, "values": self.values.cpu().clone()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. If this run has another number of slots, the newest norms are kept."""
        values, self.count = state["norms"]["values"], state["norms"]["count"]
        if len(values) != len(self._slots):
            values = values.roll(-(self.count % len(values))) if self.count > len(values) else values[: self.count]
            values = values[-len(self._slots) :]
            self.count = len(values)
        self.values.zero_()
        self.values[: len(values)] = values.to(self.values)
        self._counted = self.count
        self.skipped, self.skipped_in_a_row = state["skipped_updates"], state["skipped_in_a_row"]
