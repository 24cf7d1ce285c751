"""`RowShards`: parameters whose rows are divided over the processes, such as the classes of a large output layer.

Each process holds consecutive rows of such a parameter, of its gradient, of its optimizer state and of its moving average. A checkpoint
contains whole tensors, as if nothing were divided: rank 0 receives the rows of the other processes piece by piece, and after a restart
every process reads its own rows. So the number of processes may change between two starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from linnaeus.distributed.context import DistributedContext

if TYPE_CHECKING:
    from torch import Tensor

PIECE_BYTES = 64 << 20  # of a tensor that is sent to rank 0: large enough for the bandwidth, and rank 0 holds one more piece only


def row_bounds(rows: int, processes: int) -> list[tuple[int, int]]:
    """Return (first row, last row + 1) of each process. The numbers of rows differ by at most 1; some are 0 if `rows` < `processes`."""
    return [(rows * p // processes, rows * (p + 1) // processes) for p in range(processes)]


class RowShards:
    """Parameters of a model whose rows are divided over the processes. rows: name of the parameter -> number of rows of the whole
    parameter; empty if no parameter is divided. All methods that return whole tensors are collectives."""

    def __init__(self, context: DistributedContext, rows: Mapping[str, int] | None = None) -> None:
        self.context, self.rows = context, dict(rows or {})

    @property
    def notes(self) -> list[str]:
        """Return a list with a line for the log; [] if no parameter is divided."""
        if not self.rows:
            return []
        spans = [self.bounds(name) for name in self.rows]
        own, total = sum(last - first for first, last in spans), sum(self.rows.values())
        return [f"{len(self.rows)} parameters are divided over {self.context.world_size} processes: {own:,} of {total:,} rows are here"]

    def bounds(self, name: str) -> tuple[int, int]:
        """Return (first row, last row + 1) of the parameter `name` that this process holds."""
        return row_bounds(self.rows[name], self.context.world_size)[self.context.rank]

    def whole_shape(self, name: str, own: Tensor) -> tuple[int, ...]:
        """Return the shape of the whole tensor `name`. own: the rows of this process."""
        return (self.rows[name], *own.shape[1:]) if name in self.rows else tuple(own.shape)

    # -- from the shards to whole tensors --------------------------------------------------------------------------------

    def whole(self, name: str, own: Tensor) -> Tensor:
        """Return the whole tensor `name` in host memory on rank 0, and `own` on the other ranks. own: the rows of this process."""
        if name not in self.rows:
            return own
        own = own.detach()
        step = max(PIECE_BYTES // max(own[:1].nbytes, 1), 1)
        if not self.context.is_master:
            for piece in own.split(step) if len(own) else ():
                self.context.send(piece, 0)
            return own
        found = own.new_empty(self.whole_shape(name, own), device="cpu")
        found[: len(own)].copy_(own)
        for source, (first, last) in enumerate(row_bounds(self.rows[name], self.context.world_size)[1:], 1):
            for start in range(first, last, step):
                end = min(start + step, last)
                found[start:end].copy_(self.context.receive(own.new_empty(end - start, *own.shape[1:]), source))
        return found

    def whole_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a state dict with whole tensors, on rank 0. state: parameter name -> the rows of this process."""
        return {name: self.whole(name, tensor) for name, tensor in state.items()}

    def whole_optimizer_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return `state`, a result of `Optimizers.state_dict`, with whole tensors on rank 0. A tensor with rows, such as a moment, is
        divided as its parameter is; a tensor [], such as a number of steps, is the same on all processes."""
        if not self.rows:
            return state
        parts = {name: {key: self.whole(name, t) if t.ndim else t for key, t in one.items()} for name, one in state["state"].items()}
        return state | {"state": parts}

    # -- from whole tensors to the shards --------------------------------------------------------------------------------

    def own(self, name: str, whole: Tensor) -> Tensor:
        """Return the rows of this process as a view of `whole`, the whole tensor of the parameter `name`; `whole` itself if the parameter
        is not divided.

        A tensor with another number of rows comes from the file of another model. It is returned with one more dimension, so that its shape
        differs from that of the rows of this process."""
        if name not in self.rows:
            return whole
        first, last = self.bounds(name)
        return whole[first:last] if whole.ndim and len(whole) == self.rows[name] else whole.unsqueeze(0)

    def own_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a state dict with the rows of this process. state: parameter name -> whole tensor."""
        return {name: self.own(name, tensor) for name, tensor in state.items()}

    def own_optimizer_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return an optimizer state with the rows of this process. state: one with whole tensors, as `whole_optimizer_state` returns it."""
        if not self.rows:
            return state
        parts = {name: {key: self.own(name, t) if t.ndim else t for key, t in one.items()} for name, one in state["state"].items()}
        return state | {"state": parts}
