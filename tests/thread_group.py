"""A group of processes simulated by threads of this process, for collectives in tests of single functions.

A member has the methods of `DistributedContext` that tensors are exchanged with. Each waits until every member has called the same one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


class ThreadGroup:
    """`processes` members. calls: for each collective call, in order, (name, elements that a member passes to it), as member 0 sees it."""

    def __init__(self, processes: int) -> None:
        self.barrier = threading.Barrier(processes, timeout=600)
        self.processes, self.slots = processes, [None] * processes
        self.calls: list[tuple[str, int]] = []
        self.mail: dict[tuple[int, int], list[Tensor]] = {}
        self.arrived = threading.Condition()

    def run(self, function: Callable[[Member], Any]) -> list[Any]:
        """Return the results of `function(member)` of all members, each in its own thread."""

        def call(rank: int) -> Any:
            try:
                return function(Member(self, rank))
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(self.processes) as pool:
            futures = [pool.submit(call, rank) for rank in range(self.processes)]
        errors = [future.exception() for future in futures if future.exception() is not None]
        first = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        if errors:
            raise (first or errors)[0]
        return [future.result() for future in futures]


class Member:
    """A member of a `ThreadGroup`, in place of a `DistributedContext`."""

    is_distributed = True

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.group, self.rank, self.world_size, self.is_master = group, rank, group.processes, rank == 0

    def _exchange(self, name: str, tensor: Tensor) -> list[Tensor]:
        if self.rank == 0:
            self.group.calls.append((name, tensor.numel()))
        self.group.slots[self.rank] = (name, tensor.detach().clone())
        self.group.barrier.wait()
        found = list(self.group.slots)
        self.group.barrier.wait()
        assert {other for other, _ in found} == {name}, f"the members call {sorted({other for other, _ in found})}"
        return [value for _, value in found]

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        values = torch.stack(self._exchange(f"all_reduce {op}", tensor))
        return tensor.copy_(values.sum(0) if op == "sum" else values.amax(0) if op == "max" else values.amin(0))

    def gather_rows(self, tensor: Tensor) -> Tensor:
        return torch.cat(self._exchange("gather_rows", tensor))

    def reduce_rows(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._exchange("reduce_rows", tensor)).sum(0).chunk(self.world_size)[self.rank]

    def exchange_rows(self, tensor: Tensor, widths: list[int]) -> list[Tensor]:
        found = [part.chunk(self.world_size)[self.rank] for part in self._exchange("exchange_rows", tensor)]
        assert [part.shape[1] for part in found] == widths
        return found

    def send(self, tensor: Tensor, destination: int) -> None:
        with self.group.arrived:
            self.group.mail.setdefault((self.rank, destination), []).append(tensor.clone())
            self.group.arrived.notify_all()

    def receive(self, tensor: Tensor, source: int) -> Tensor:
        letters = self.group.mail.setdefault((source, self.rank), [])
        with self.group.arrived:
            assert self.group.arrived.wait_for(lambda: letters, timeout=600)
            return tensor.copy_(letters.pop(0))
