"""The only place that knows about process ranks.

`DistributedContext` is a singleton. Unlaunched it is one process and every collective is the identity; under torchrun it
joins a group with nccl for CUDA tensors and gloo for host ones, so that counts and flags are agreed without touching the device.
The launcher's key-value store is reached before the group exists: what rank 0 reads from the command line is told through it, and
`distributed/watchdog.py` watches over it whether the others live.
"""

from __future__ import annotations

import functools
import gc
import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from linnaeus.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
RENDEZVOUS = timedelta(minutes=30)  # for the other nodes to arrive, before any setting is known
REACHED = timedelta(seconds=20)  # for the store of a launcher that made it before it started us: else it has died since


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
    _store: Any

    def __new__(cls) -> DistributedContext:
        if cls._instance is None:
            self = super().__new__(cls)
            self.rank = self.local_rank = 0
            self.world_size = 1
            self.device = None
            self._joined = False
            self._store = None
            cls._instance = self
        return cls._instance

    @property
    def store(self) -> Any:
        """The launcher's key-value store, under names of this attempt (torchrun may restart a group). Only where `launched()`."""
        if self._store is None:
            import torch.distributed as dist

            there = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            within = REACHED if there else RENDEZVOUS
            self._store, *_ = next(dist.rendezvous("env://", get_rank_safely(), get_world_size(), timeout=within))
            self._store.set_timeout(RENDEZVOUS)
        return _of_this_attempt(self._store)

    def from_master(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` returns on rank 0 (JSON can hold it), on every process; before the group is joined. A `ConfigError` of
        rank 0 is everybody's. Unlaunched, or alone, simply `make()`."""
        if get_world_size() == 1:
            return make()
        if get_rank_safely() != 0:
            told = json.loads(self.store.get(name))
            if "error" in told:
                raise ConfigError(told["error"])
            return told["value"]
        try:
            value = make()
        except ConfigError as error:
            self.store.set(name, json.dumps({"error": str(error)}))
            raise
        self.store.set(name, json.dumps({"value": value}))
        return value

    def initialize(
        self,
        is_distributed: bool | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        device: str = "auto",
        timeout: float = 600.0,
    ) -> DistributedContext:
        """Join the group (by default: when launched as one of several) and pick the device. `device` is auto, cpu or cuda;
        `timeout` (seconds) is how long a collective waits for the others.

        Raises `ConfigError` when cuda is asked for and there is none."""
        import torch

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
            self._join(cuda, timedelta(seconds=timeout))
        return self

    def _join(self, cuda: bool, timeout: timedelta) -> None:
        import torch.distributed as dist

        # default arguments of this module are the group there is when it is first imported (by DDP), and would keep it to the very end
        import torch.distributed.nn.functional  # noqa: F401

        self.store  # noqa: B018 (reached)
        dist.init_process_group(
            backend="cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timeout,
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

    def start_all_reduce(self, tensor: Any) -> Callable[[], Any]:
        """Begin to sum `tensor` over the processes, in place; the returned function waits until it is done."""
        if not self._joined:
            return lambda: None
        import torch.distributed as dist

        return dist.all_reduce(tensor, async_op=True).wait

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

    def shutdown(self, in_order: bool = True) -> None:
        """Leave the group and forget the singleton's state, so that another run may follow in this process. Unless the others leave
        too (`in_order`), nothing that is queued on a GPU is waited for: it may wait for them.

        The threads of gloo and of the store end with the last reference to them, and what a run leaves in cycles may hold some: one that
        lets go of a tensor while the interpreter ends would abort the process."""
        if self._joined:
            import torch.distributed as dist

            if in_order or self.device.type == "cpu":
                dist.destroy_process_group()
            else:
                dist.distributed_c10d._abort_process_group()
        joined, self._joined, self._store = self._joined, False, None
        DistributedContext._instance = None
        if joined:
            gc.collect()


def _of_this_attempt(store: Any) -> Any:
    import torch.distributed as dist

    return dist.PrefixStore(f"linnaeus/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/", store)
