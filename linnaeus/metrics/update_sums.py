"""Keep the loss sums of each single update since the last log row, on the device.

In the mean over the 50 updates of a row of metrics, the spike of one update is invisible. So each update has its own row in a tensor and
adds its losses there. This takes the same operation as adding to a running total. The host reads all rows when a row of metrics is
logged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST_ROWS = 1000  # updates; 64 kB for 8 tasks. With more updates between two rows of metrics, the oldest are kept as a total only


class UpdateLosses(NamedTuple):
    """Loss sums and label counts since the last row of metrics, float64 on the host, for T tasks and W processes.

    Of each of the newest n updates: sums, the loss sums over all processes, [n, T]; valid, the label counts over all processes, [n, T];
    processes, the loss sum of all tasks on each process, [n, W]. Of all updates since the last row: total_sums and total_valid, [T]
    each."""

    sums: Tensor
    valid: Tensor
    processes: Tensor
    total_sums: Tensor
    total_valid: Tensor


class UpdateSums:
    """Loss sums of this process and label counts of the global batch, per update and task, for T tasks and at most R - 1 updates.

    losses: float64 [R, T] on the device; rows before row `count` are of finished updates, row `count` is of the update in progress. valid:
    list with T label counts for each finished update. earlier_losses, earlier_valid: float64 [T], totals of the updates before row 0. row:
    a view of row `count`, to which the losses of a micro-batch are added."""

    def __init__(self, tasks: int, rows: int, device: torch.device) -> None:
        """tasks: T. rows: largest number of updates between two rows of metrics. At most `MOST_ROWS` updates get a row of their own."""
        rows = min(rows, MOST_ROWS) + 1
        self.losses = torch.zeros(rows, tasks, dtype=torch.float64, device=device)
        self.valid: list[Sequence[float]] = []
        self.earlier_losses, self.earlier_valid = torch.zeros_like(self.losses[0]), torch.zeros(tasks, dtype=torch.float64)
        self._rows = self.losses.unbind()
        self.row = self._rows[0]

    @property
    def count(self) -> int:
        """Return the number of finished updates that have a row."""
        return len(self.valid)

    def end_update(self, valid: Sequence[float]) -> None:
        """Finish the row of the current update and begin the next one. valid: label counts of the global batch, T numbers."""
        self.valid.append(valid)
        if len(self.valid) == len(self._rows):
            self._fold()
        self.row = self._rows[len(self.valid)]

    def _fold(self) -> None:
        """Add all rows to the totals `earlier_losses` and `earlier_valid`, set the rows to 0, and continue at row 0."""
        self.earlier_losses += self.losses.sum(0)
        self.earlier_valid += self.valid_rows().sum(0)
        self.losses.zero_()
        self.valid.clear()

    def valid_rows(self) -> Tensor:
        """Return the label counts of the finished updates that have a row, float64 [count, T] on the host."""
        return torch.tensor(self.valid, dtype=torch.float64).reshape(-1, len(self.earlier_valid))

    def read(self, all_reduce: Callable[[Tensor], Tensor], rank: int = 0, world_size: int = 1) -> UpdateLosses:
        """Return the sums over all processes since the last `clear`, without setting them to 0. This waits for the device. Call it on all
        ranks.

        all_reduce: function that returns the sum of a tensor over all processes; not called if `world_size` is 1. rank: rank of this
        process. world_size: number of processes."""
        valid, tasks = self.valid_rows(), len(self.earlier_valid)
        own = torch.cat([self.losses[: self.count], self.earlier_losses.unsqueeze(0)])
        if world_size == 1:
            sums = own.cpu()
            processes = sums[:-1].sum(1, keepdim=True)
        else:  # one all-reduce for both: a second one would cost more than W numbers per update
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
        """Load the label counts from a result of `state_dict`. Set the loss sums to 0; `load_losses` loads the loss sums.

        If the saved run has more finished updates than this run has rows, all saved counts are added to `earlier_valid`."""
        self.clear()
        self.earlier_valid.copy_(state["earlier_valid"])
        if len(state["valid"]) < len(self._rows):
            self.valid = state["valid"].tolist()
            self.row = self._rows[self.count]
        else:
            self.earlier_valid += state["valid"].sum(0)

    def load_losses(self, saved: Iterable[Mapping[str, Tensor]]) -> None:
        """Load the loss sums, added over all states in `saved`. Call this after `load_state_dict`.

        saved: states of processes of the saved run, with `losses` [saved number of rows, T] and `earlier_losses` [T]. Saved rows from row
        `count` on are added to `earlier_losses`. If `saved` is empty, the loss sums are 0."""
        self.losses.zero_()
        self.earlier_losses.zero_()
        for state in saved:
            rows = state["losses"].to(self.losses.device)
            self.losses[: self.count] += rows[: self.count]
            self.earlier_losses += state["earlier_losses"].to(self.losses.device) + rows[self.count :].sum(0)
