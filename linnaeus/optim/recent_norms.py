"""Keep the gradient norm of each update since the last log row on the device, and count the skipped updates from these norms.

An update whose gradient norm is not finite is skipped. Counting on the host, when the norms are read, saves two operations on the device
per update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class RecentNorms:
    """Ring buffer of the gradient norms of the newest updates since the last log row, [rows] on the device.

    Each update writes its norm into a slot of the buffer, so nothing is copied. The host waits for the device only after `rows` updates
    without a call of `count_skipped`. skipped: number of skipped updates in the run. skipped_in_a_row: number of skipped updates since the
    last applied one. Both are as of the last call of `count_skipped`."""

    def __init__(self, rows: int, device: torch.device, dtype: torch.dtype) -> None:
        self.values = torch.zeros(rows, device=device, dtype=dtype)
        self._slots = self.values.unbind()
        self.count = self._counted = 0  # updates since the last `clear`, and those of them that `skipped` includes
        self.skipped = self.skipped_in_a_row = 0

    def next_slot(self) -> Tensor:
        """Return the slot for the norm of the next update, a view []. This waits for the device if all norms in the buffer are
        uncounted."""
        rows = len(self._slots)
        if self.count - self._counted == rows:
            self.count_skipped()
        slot = self._slots[self.count % rows]
        self.count += 1
        return slot

    def read(self) -> Tensor:
        """Return the norms since the last `clear`, oldest first, [n] on the host, n <= rows. This waits for the device."""
        rows, found = len(self._slots), self.values.cpu()
        return found[: self.count] if self.count <= rows else found.roll(-(self.count % rows))

    def count_skipped(self) -> None:
        """Update `skipped` and `skipped_in_a_row` with the uncounted updates. This waits for the device if there are any."""
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
        """Count the skipped updates (see `count_skipped`), then empty the buffer."""
        self.count_skipped()
        self.count = self._counted = 0

    def state_dict(self) -> dict[str, Any]:
        self.count_skipped()
        counts = {"skipped_updates": self.skipped, "skipped_in_a_row": self.skipped_in_a_row}
        return {**counts, "norms": {"count": self.count, "values": self.values.cpu().clone()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`. If the buffer of the saved run has another size, keep the newest norms that fit."""
        values, self.count = state["norms"]["values"], state["norms"]["count"]
        if len(values) != len(self._slots):
            values = values.roll(-(self.count % len(values))) if self.count > len(values) else values[: self.count]
            values = values[-len(self._slots) :]
            self.count = len(values)
        self.values.zero_()
        self.values[: len(values)] = values.to(self.values)
        self._counted = self.count
        self.skipped, self.skipped_in_a_row = state["skipped_updates"], state["skipped_in_a_row"]
