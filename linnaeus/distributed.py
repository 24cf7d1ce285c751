"""The only place that knows about process ranks.

`DistributedContext` is a singleton. Unlaunched it is one process and every collective is the identity; under torchrun it
joins a group with nccl for CUDA tensors and gloo for host ones, so that counts and flags are agreed without touching the device.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def launched() -> bool:
    """Whether torchrun (or the like) started this process as one of a group."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def get_rank_safely() -> int:
    """This process's rank; 0 before initialisation outside a launcher."""
    return int(os.environ.get("RANK", "0"))


def get_world_size() -> int:
    """Processes in the group; 1 outside a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class DistributedContext:
    """Rank, device and collectives of this process. Every construction returns the same object."""

    _instance: DistributedContext | None = None

    rank: int
    local_rank: int
    world_size: int
    device: Any
    _joined: bool

    def __new__(cls) -> DistributedContext:
        if cls._instance is None:
            self = super().__new__(cls)
            self.rank = self.local_rank = 0
            self.world_size = 1
            self.device = None
            self._joined = False
            cls._instance = self
        return cls._instance

    def initialize(
        self, is_distributed: bool | None = None, world_size: int | None = None, rank: int | None = None, device: str = "auto"
    ) -> DistributedContext:
        """Join the group (by default: when launched as one of several) and pick the device. `device` is auto, cpu or cuda.

        Raises `ConfigError` when cuda is asked for and there is none."""
        import torch

        from linnaeus.config.errors import ConfigError

        self.world_size = get_world_size() if world_size is None else world_size
        self.rank = get_rank_safely() if rank is None else rank
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("trainer.device=cuda, but torch sees no CUDA device here; use cpu or auto")
        cuda = device != "cpu" and torch.cuda.is_available()
        if cuda and self.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"local rank {self.local_rank} has no GPU of its own: {torch.cuda.device_count()} seen; start fewer processes"
            )
        self.device = torch.device("cuda", self.local_rank) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        if is_distributed is None:
            is_distributed = launched()
        if is_distributed and not self._joined:
            self._join(cuda)
        return self

    def _join(self, cuda: bool) -> None:
        import torch.distributed as dist

        dist.init_process_group(
            backend="cpu:gloo,cuda:nccl" if cuda else "gloo",
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(minutes=10),
            device_id=self.device if cuda else None,
        )
        self._joined = True

    @property
    def is_master(self) -> bool:
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self._joined

    def on_rank(self, rank: int) -> Callable[[F], F]:
        """Decorator: run on one rank only; the others get None. Never around a collective."""

        def decorate(function: F) -> F:
            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs) if self.rank == rank else None

            return wrapper  # type: ignore[return-value]

        return decorate

    def master_only(self, function: F) -> F:
        """Decorator: run on rank 0 only."""
        return self.on_rank(0)(function)

    def all_reduce(self, tensor: Any, op: str = "sum") -> Any:
        """Reduce `tensor` over the processes, in place, and return it; `op` is sum, max or min."""
        if self._joined:
            import torch.distributed as dist

            dist.all_reduce(tensor, {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[op])
        return tensor

    def all_gather(self, value: Any) -> list[Any]:
        """Every process's `value` (a picklable object), in rank order."""
        if not self._joined:
            return [value]
        import torch.distributed as dist

        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def broadcast_object(self, value: Any, source: int = 0) -> Any:
        """The `value` of process `source`, on every process."""
        if not self._joined:
            return value
        import torch.distributed as dist

        box = [value if self.rank == source else None]
        dist.broadcast_object_list(box, src=source, device=None if self.device.type == "cpu" else self.device)
        return box[0]

    def broadcast(self, tensor: Any, source: int = 0) -> Any:
        """Overwrite `tensor` on every process with that of process `source`."""
        if self._joined:
            import torch.distributed as dist

            dist.broadcast(tensor, src=source)
        return tensor

    def barrier(self) -> None:
        if self._joined:
            import torch.distributed as dist

            dist.barrier()

    def shutdown(self) -> None:
        """Leave the group and forget the singleton's state, so that another run may follow in this process."""
        if self._joined:
            import torch.distributed as dist

            dist.destroy_process_group()
        DistributedContext._instance = None
