"""Keep the loss sums of each single update since the last log row, on the device.

In the mean over the 50 updates of a row of metrics, the spike of one update is invisible. So each update has its own row in a tensor and
adds its losses there. This takes the same operation as adding to a running total. The host reads all rows when a row of metrics is
logged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linnaeus.distributed.summation_tree import BlockwiseSum, SumOrder

MOST_ELEMENTS = 2**16  # of the parameter whose gradient norm is kept for each process; the norm of so many takes 13 us on a CPU core
MOST_ROWS = 10_000  # updates; 640 kB for 8 tasks. With more updates between two rows of metrics, the oldest are kept as a total only


class UpdateLosses(NamedTuple):
    """Loss sums and label counts since the last row of metrics, float64 on the host, for T tasks, W processes and the newest n updates.

    sums, valid: loss sums and label counts of each update over all processes, [n, T] each. processes: loss sum of each update over all
    tasks, on each process, [n, W]; [n, 1], over all processes, if the rows must not depend on W. gradients: norm of the gradient of one
    parameter on each process, before the gradients are summed over the processes, [n, W]; [n, 0] if it is not measured (see
    `UpdateSums.watch_gradient`). total_sums, total_valid: sums over all updates since the last row, [T] each. total_weighted: sums of
    losses times task weights over the same updates, [T]; None if these are not kept."""

    sums: Tensor
    valid: Tensor
    processes: Tensor
    gradients: Tensor
    total_sums: Tensor
    total_valid: Tensor
    total_weighted: Tensor | None


class UpdateSums:
    """Loss sums of this process and label counts of the global batch, per update and task, for T tasks and at most R - 1 updates.

    losses: float64 [R, T] on the device, or [R, 2 T] with the sums of losses times task weights in the columns from T on; rows before row
    `count` are of finished updates, row `count` is of the update in progress. valid: list with T label counts for each finished update.
    earlier_losses, earlier_valid: float64 [T or 2 T] and [T], totals of the updates before row 0."""

    def __init__(self, tasks: int, rows: int, device: torch.device, weighted: bool = False, order: SumOrder | None = None) -> None:
        """tasks: T. rows: largest number of updates between two rows of metrics. At most `MOST_ROWS` updates get a row of their own.
        weighted: True to keep the sums of losses times task weights. order: order of the sums over micro-batches and processes; None:
        any."""
        rows = min(rows, MOST_ROWS) + 1
        self._order = order if order is not None and order.anywhere else None
        self._update = None if self._order is None else BlockwiseSum(self._order.block)
        self.losses = torch.zeros(rows, 2 * tasks if weighted else tasks, dtype=torch.float64, device=device)
        self.valid: list[Sequence[float]] = []
        self.earlier_losses, self.earlier_valid = torch.zeros_like(self.losses[0]), torch.zeros(tasks, dtype=torch.float64)
        self._rows = self.losses.unbind()
        self._row = self._rows[0]  # of the update in progress
        self.gradient_norms: Tensor | None = None  # [R], as `losses`, in the dtype of the parameter

    def watch_gradient(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """From now on, keep for each update the norm of this process's own gradient of one parameter, from which an alarm finds the process
        whose part of the global batch has caused a large or non-finite gradient. The optimizer sees the same bits as without it.

        parameters: all parameters of the model in the order of the network, whose gradients are all reduced over the processes alike. Of
        the trained ones, the first with at most `MOST_ELEMENTS` elements is watched. It is near the input, so its gradient comes from
        nearly the whole backward pass. The hook runs before DDP reduces the gradient. A norm of all gradients would read every gradient
        once more; one small parameter costs a single operation per micro-batch."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if trained:
            watched = next((parameter for parameter in trained if parameter.numel() <= MOST_ELEMENTS), trained[-1])
            self.gradient_norms = torch.zeros(len(self._rows), device=watched.device, dtype=watched.dtype)
            slots = self.gradient_norms.unbind()

            def keep_norm(parameter: Tensor) -> None:
                """Write the norm of the gradient over the micro-batches so far, so that of the last micro-batch stays."""
                assert parameter.grad is not None
                torch.linalg.vector_norm(parameter.grad, out=slots[len(self.valid)])

            watched.register_post_accumulate_grad_hook(keep_norm)

    def add(self, loss_sums: Tensor, weights: Tensor | None = None) -> None:
        """Add the loss sums of a micro-batch, [T]. weights: task weights in the backward of the micro-batch, [T]; required if sums of
        losses times weights are kept."""
        found = loss_sums if weights is None else torch.cat([loss_sums, loss_sums * weights])
        if self._update is None:
            self._row += found
        else:
            self._update.add(found.double())

    @property
    def count(self) -> int:
        """Return the number of finished updates that have a row."""
        return len(self.valid)

    def end_update(self, valid: Sequence[float]) -> None:
        """Finish the row of the current update and begin the next one. valid: label counts of the global batch, T numbers."""
        if self._update is not None:
            self._row.copy_(self._update.total())
        self.valid.append(valid)
        if len(self.valid) == len(self._rows):
            self._fold()
        self._row = self._rows[len(self.valid)]

    def _fold(self) -> None:
        """Add all rows to the totals `earlier_losses` and `earlier_valid`, set the rows to 0, and continue at row 0.

        If the order of sums is fixed, the rows are first summed over the processes, and rank 0 keeps the totals."""
        if self._order is not None:
            self._order.all_reduce(self.losses)
        if self._order is None or self._order.rank == 0:
            self.earlier_losses += self.losses.sum(0)
        self.earlier_valid += self.valid_rows().sum(0)
        self._zero_rows()
        self.valid.clear()

    def _zero_rows(self) -> None:
        """Set all rows to 0. A process with no sample in an update does not write its gradient norm, and an older one must not stay."""
        self.losses.zero_()
        if self.gradient_norms is not None:
            self.gradient_norms.zero_()

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
        if self._order is not None or world_size == 1:
            sums = (own if self._order is None else self._order.all_reduce(own)).cpu()
            processes = sums[:-1, :tasks].sum(1, keepdim=True)
            gradients = sums.new_zeros(self.count, 0)
        else:  # one all-reduce for all of them: a second one would cost more than 2 W numbers per update
            width, both = own.shape[1], own.shape[1] + world_size
            message = own.new_zeros(len(own), both if self.gradient_norms is None else both + world_size)
            message[:, :width] = own
            message[:, width + rank] = own[:, :tasks].sum(1)
            if self.gradient_norms is not None:
                message[:-1, both + rank] = self.gradient_norms[: self.count]
            rows = all_reduce(message).cpu()
            sums, processes, gradients = rows[:, :width], rows[:-1, width:both], rows[:-1, both:]
        totals, own_valid = sums.sum(0), valid.sum(0) + self.earlier_valid
        weighted = totals[tasks:] if len(totals) > tasks else None
        return UpdateLosses(sums[:-1, :tasks], valid, processes, gradients, totals[:tasks], own_valid, weighted)

    def clear(self) -> None:
        """Set all sums to 0."""
        self._zero_rows()
        self.earlier_losses.zero_()
        self.earlier_valid.zero_()
        self.valid.clear()
        self._row = self._rows[0]

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
            self._row = self._rows[self.count]
        else:
            self.earlier_valid += state["valid"].sum(0)

    def load_losses(self, saved: Iterable[Mapping[str, Tensor]]) -> None:
        """Load the loss sums, added over all states in `saved`. Call this after `load_state_dict`.

        saved: states of processes of the saved run, with `losses` [saved number of rows, T or 2 T] and `earlier_losses` [T or 2 T]; of a
        single process also `gradient_norms` [saved number of rows]. Saved rows from row `count` on are added to `earlier_losses`. If
        `saved` is empty, the loss sums are 0."""
        self._zero_rows()
        self.earlier_losses.zero_()
        saved = list(saved)
        if self.gradient_norms is not None and len(saved) == 1 and "gradient_norms" in saved[0]:
            self.gradient_norms[: self.count] = saved[0]["gradient_norms"][: self.count].to(self.gradient_norms.device)
        for state in saved:
            rows, earlier = state["losses"].to(self.losses.device), state["earlier_losses"].to(self.losses.device)
            width = min(rows.shape[1], self.losses.shape[1])  # they differ if the weighting became fixed (`run.allow`)
            self.losses[: self.count, :width] += rows[: self.count, :width]
            self.earlier_losses[:width] += earlier[:width] + rows[self.count :, :width].sum(0)
            if "weighted_sums" in state:  # an older checkpoint has one total of the weighted losses
                self.earlier_losses[width:] += state["weighted_sums"].to(self.losses.device)
