"""Keep the loss sums of each single update since the last log row, on the device.

A spike of one update disappears in the mean over the 50 updates of a row. Each update therefore adds its losses to its own row of a
tensor, which costs nothing: a running total would be the same addition. The host reads all rows at once when a row of metrics is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST_ROWS = 1000  # updates; 64 kB for 8 tasks. If rows of metrics are farther apart, only the newest updates before a row are kept apart


class UpdateLosses(NamedTuple):
    """Loss sums and label counts, float64 on the host. `sums`, `valid`: [n, T], of the newest n updates, over all processes. `processes`:
    [n, W], sum of the losses of all tasks on each process. `total_sums`, `total_valid`: [T], of all updates since the last row."""

    sums: Tensor
    valid: Tensor
    processes: Tensor
    total_sums: Tensor
    total_valid: Tensor


class UpdateSums:
    """Loss sums of this process and label counts of the global batch, per update and task.

    losses: float64 [R, T] on the device. Row `count` belongs to the update in progress. valid: label counts of the updates before it, one
    list of T numbers each. `earlier_losses` and `earlier_valid`, float64 [T], are the totals of the updates that no longer have a row."""

    def __init__(self, tasks: int, rows: int, device: torch.device) -> None:
        """`rows`: largest number of updates between two rows of metrics; at most `MOST_ROWS` are kept apart."""
        rows = min(rows, MOST_ROWS) + 1
        self.losses = torch.zeros(rows, tasks, dtype=torch.float64, device=device)
        self.valid: list[Sequence[float]] = []
        self.earlier_losses, self.earlier_valid = torch.zeros_like(self.losses[0]), torch.zeros(tasks, dtype=torch.float64)
        self._rows = self.losses.unbind()
        self.row = self._rows[0]

    @property
    def count(self) -> int:
        return len(self.valid)

    def end_update(self, valid: Sequence[float]) -> None:
        """Count an update with `valid` labels per task, T numbers, and start the next one."""
        self.valid.append(valid)
        if len(self.valid) == len(self._rows):
            self._fold()
        self.row = self._rows[len(self.valid)]

    def _fold(self) -> None:
        """Add all rows to the totals and start again at the first one."""
        self.earlier_losses += self.losses.sum(0)
        self.earlier_valid += self.valid_rows().sum(0)
        self.losses.zero_()
        self.valid.clear()

    def valid_rows(self) -> Tensor:
        """Return the label counts of the updates that have a row, float64 [count, T] on the host."""
        return torch.tensor(self.valid, dtype=torch.float64).reshape(-1, len(self.earlier_valid))

    def read(self, all_reduce: Callable[[Tensor], Tensor], rank: int = 0, world_size: int = 1) -> UpdateLosses:
        """Return the sums over all processes, of which this one is `rank`. `all_reduce` returns the sum of a tensor over them. This waits
        for the device."""
        valid, tasks = self.valid_rows(), len(self.earlier_valid)
        own = torch.cat([self.losses[: self.count], self.earlier_losses.unsqueeze(0)])
        if world_size == 1:
            sums = own.cpu()
            processes = sums[:-1].sum(1, keepdim=True)
        else:  # one message: a second all-reduce would cost more than W numbers per update
            message = own.new_zeros(len(own), tasks + world_size)
            message[:, :tasks] = own
            message[:, tasks + rank] = own.sum(1)
            rows = all_reduce(message).cpu()
            sums, processes = rows[:, :tasks], rows[:-1, tasks:]
        return UpdateLosses(sums[:-1], valid, processes, sums.sum(0), valid.sum(0) + self.earlier_valid)

    def clear(self) -> None:
        """Set all sums to 0."""
        for tensor in (self.losses, self.earlier_losses, self.earlier_valid):
            tensor.zero_()
        self.valid.clear()
        self.row = self._rows[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the part of the state that is equal on all processes."""
        return {"valid": self.valid_rows(), "earlier_valid": self.earlier_valid.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. If this run has fewer rows, the saved ones are added to the totals."""
        self.clear()
        self.earlier_valid.copy_(state["earlier_valid"])
        if len(state["valid"]) < len(self._rows):
            self.valid = state["valid"].tolist()
            self.row = self._rows[self.count]
        else:
            self.earlier_valid += state["valid"].sum(0)

    def load_losses(self, saved: Iterable[Mapping[str, Tensor]]) -> None:
        """Load the sum of the `losses` [R, T] and `earlier_losses` [T] of processes of the saved run, after `load_state_dict`."""
        self.losses.zero_()
        self.earlier_losses.zero_()
        for state in saved:
            rows = state["losses"].to(self.losses.device)
            self.losses[: self.count] += rows[: self.count]
            self.earlier_losses += state["earlier_losses"].to(self.losses.device) + rows[self.count :].sum(0)
