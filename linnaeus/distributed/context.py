"""`DistributedContext`: the rank, the device and the collectives of this process.

Without a launcher there is one process, and every collective returns its argument. Under torchrun the process joins a group with nccl for
CUDA tensors and gloo for host tensors, so that counts and flags are reduced without the device. The launcher's key-value store can be used
before the group exists: rank 0 broadcasts the configuration through the store, and the watchdog exchanges statuses through it."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from linnaeus.distributed.launch_environment import check_environment, get_rank_safely, get_world_size, launched, store_made_by_agent
from linnaeus.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
RENDEZVOUS_TIMEOUT = timedelta(minutes=30)  # for the other nodes to start; `trainer.startup_timeout` is not known yet
AGENT_STORE_TIMEOUT = timedelta(seconds=20)  # for a store that the launcher made before it started this process


class DistributedContext:
    """Rank, device and collectives of this process. A singleton: every call of the constructor returns the same object.

    is_master: True on rank 0. is_distributed: True if a process group was joined, even one with a single process."""

    _instance: DistributedContext | None = None

    rank = local_rank = 0
    world_size = 1
    device: Any = None
    is_master, is_distributed = True, False
    _store: Any = None

    def __new__(cls) -> DistributedContext:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    @property
    def store(self) -> Any:
        """Return the key-value store of the launcher. The first use connects to the store. Use it only if `launched()` is True.

        Each key gets a prefix with the number of the attempt, because torchrun may restart a group. Raise `ConfigError` if the environment
        of the launcher is incomplete."""
        if self._store is None:
            check_environment()
            timeout = AGENT_STORE_TIMEOUT if store_made_by_agent() else RENDEZVOUS_TIMEOUT
            self._store, *_ = next(_dist().rendezvous("env://", get_rank_safely(), get_world_size(), timeout=timeout))
            self._store.set_timeout(RENDEZVOUS_TIMEOUT)
        return _dist().PrefixStore(f"linnaeus/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/", self._store)

    def from_master(self, name: str, compute: Callable[[], Any]) -> Any:
        """Call `compute` on rank 0 only and return its result, a JSON value, on every process. This works before the process group is
        joined.

        `name`: key under which the store passes the result. A `ConfigError` that `compute` raises is raised on every process. After any
        other error of `compute`, the other processes raise a `ConfigError` that names it, so that they do not wait for the result."""
        if get_world_size() == 1:
            return compute()
        if get_rank_safely() != 0:
            received = json.loads(self.store.get(name))
            if "error" in received:
                raise ConfigError(received["error"])
            return received["value"]
        try:
            value = compute()
        except ConfigError as error:
            self.store.set(name, json.dumps({"error": str(error)}))
            raise
        except Exception as error:
            self.store.set(name, json.dumps({"error": f"process rank 0 failed with {type(error).__name__}: {error}"}))
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
        """Join the process group and choose the device. Return this object.

        is_distributed: True to join a group; by default `launched()`. world_size, rank: by default from the launcher's environment.
        device: "auto", "cpu" or "cuda". timeout: seconds for which a collective waits for the other processes.

        Raise `ConfigError` if `device` is "cuda" and torch finds no CUDA device, or if there are fewer GPUs than processes on this node."""
        import torch

        self.world_size = get_world_size() if world_size is None else world_size
        self.rank = get_rank_safely() if rank is None else rank
        self.is_master = self.rank == 0
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("trainer.device is cuda, but torch does not find a CUDA device; use cpu or auto")
        cuda = device != "cpu" and torch.cuda.is_available()
        if cuda and self.local_rank >= torch.cuda.device_count():
            raise ConfigError(f"local rank {self.local_rank} has no GPU: this node has {torch.cuda.device_count()}; use fewer processes")
        self.device = torch.device("cuda", self.local_rank) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        if is_distributed is None:
            is_distributed = launched()
        if is_distributed and not self.is_distributed:
            self._join(cuda, timedelta(seconds=timeout))
        return self

    def alone(self) -> DistributedContext:
        """Return the context of a single process with the device of this process, for work without collectives. The singleton does not
        change."""
        found: DistributedContext = object.__new__(DistributedContext)
        found.device, found.local_rank = self.device, self.local_rank
        return found

    @contextlib.contextmanager
    def as_singleton(self) -> Iterator[None]:
        """Return a context manager in which `DistributedContext()` returns this object, which may be a result of `alone`."""
        before, DistributedContext._instance = DistributedContext._instance, self
        try:
            yield
        finally:
            DistributedContext._instance = before

    def _join(self, cuda: bool, timeout: timedelta) -> None:
        # Import it before the group exists: its default arguments would hold the group until the interpreter exits. DDP imports it later.
        import torch.distributed.nn.functional  # noqa: F401

        self.store  # noqa: B018 (connects)
        _dist().init_process_group(
            backend="cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timeout,
            device_id=self.device if cuda else None,
        )
        self.is_distributed = True

    def on_rank(self, rank: int) -> Callable[[F], F]:
        """Return a decorator for functions that run only on process rank `rank` and return None on all other ranks. Such a function must
        not call collectives."""

        def decorate(function: F) -> F:
            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs) if self.rank == rank else None

            return wrapper  # type: ignore[return-value]

        return decorate

    def master_only(self, function: F) -> F:
        """Decorate a function that runs on rank 0 only and returns None on the other ranks."""
        return self.on_rank(0)(function)

    def all_reduce(self, tensor: Any, op: str = "sum") -> Any:
        """Reduce `tensor` over the processes, in place, and return it. `op` is "sum", "max" or "min"."""
        if self.is_distributed:
            _dist().all_reduce(tensor, getattr(_dist().ReduceOp, op.upper()))
        return tensor

    def start_all_reduce(self, tensor: Any) -> Callable[[], Any]:
        """Start to sum `tensor` over the processes, in place. Return a function that waits until the sum is complete."""
        if not self.is_distributed:
            return lambda: None
        return _dist().all_reduce(tensor, async_op=True).wait

    def start_exchange(self, own: Any, received: Any, partner: int) -> Callable[[], None]:
        """Start to send the tensor `own` to process `partner` and to receive the tensor of that process in `received`. Return a function
        that waits until both are complete. Both processes must call this."""
        dist = _dist()
        requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, own, partner), dist.P2POp(dist.irecv, received, partner)])

        def wait() -> None:
            for request in requests:
                request.wait()

        return wait

    def gather_rows(self, tensor: Any) -> Any:
        """Return the rows of `tensor` [P, ...] of all W processes in rank order, [W P, ...]. Shape and dtype must be the same on every
        process."""
        if not self.is_distributed:
            return tensor
        gathered = tensor.new_empty(self.world_size * tensor.shape[0], *tensor.shape[1:])
        _dist().all_gather_into_tensor(gathered, tensor.contiguous())
        return gathered

    def reduce_rows(self, tensor: Any) -> Any:
        """Return rows rank * P to (rank + 1) * P - 1 of the sum of `tensor` [W P, ...] over the W processes, [P, ...]."""
        if not self.is_distributed:
            return tensor
        own = tensor.new_empty(tensor.shape[0] // self.world_size, *tensor.shape[1:])
        _dist().reduce_scatter_tensor(own, tensor.contiguous())
        return own

    def exchange_rows(self, tensor: Any, widths: list[int]) -> list[Any]:
        """Send rows p * P to (p + 1) * P - 1 of `tensor` [W P, C_rank] to process p, for each of the W processes. Return the tensors
        received, in rank order, [P, C_p] each. widths: C_p of each process."""
        if not self.is_distributed:
            return [tensor]
        rows = tensor.shape[0] // self.world_size
        received = tensor.new_empty(rows * sum(widths))
        sizes = [rows * width for width in widths]
        _dist().all_to_all_single(received, tensor.reshape(-1), sizes, [rows * tensor.shape[1]] * self.world_size)
        return [part.view(rows, width) for part, width in zip(received.split(sizes), widths, strict=True)]

    def send(self, tensor: Any, destination: int) -> None:
        """Send `tensor` to process `destination`, which must call `receive`."""
        _dist().send(tensor.contiguous(), destination)

    def receive(self, tensor: Any, source: int) -> Any:
        """Overwrite `tensor`, in place, with the tensor that process `source` sends, and return it."""
        _dist().recv(tensor, source)
        return tensor

    def all_gather(self, value: Any) -> list[Any]:
        """Return a list with the `value` (a picklable object) of every process, in rank order."""
        if not self.is_distributed:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        _dist().all_gather_object(gathered, value)
        return gathered

    def broadcast_object(self, value: Any, source: int = 0) -> Any:
        """Return the `value` (a picklable object) of process `source` on every process."""
        if not self.is_distributed:
            return value
        box = [value if self.rank == source else None]
        _dist().broadcast_object_list(box, src=source, device=None if self.device.type == "cpu" else self.device)
        return box[0]

    def broadcast(self, tensor: Any, source: int = 0) -> Any:
        """Overwrite `tensor`, in place, with the tensor of process `source`, and return it."""
        if self.is_distributed:
            _dist().broadcast(tensor, src=source)
        return tensor

    def barrier(self) -> None:
        """Wait until every process has called this."""
        if self.is_distributed:
            _dist().barrier()

    def shutdown(self, wait: bool = True) -> None:
        """Leave the process group and reset the singleton, so that another run can start in this process.

        wait: True to wait for collectives queued on a GPU; False after a failure, when they may wait for a process that has ended.

        Garbage is collected, because reference cycles may keep threads of gloo or of the store alive. A thread that frees a tensor while
        the interpreter exits would abort the process."""
        if self.is_distributed:
            if wait or self.device.type == "cpu":
                _dist().destroy_process_group()
            else:
                _dist().distributed_c10d._abort_process_group()
        joined, self.is_distributed, self._store = self.is_distributed, False, None
        DistributedContext._instance = None
        if joined:
            gc.collect()


def _dist() -> Any:
    """Return `torch.distributed`, imported at the first use."""
    import torch.distributed

    return torch.distributed
