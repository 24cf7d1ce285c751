"""Worker processes that read batches, and the loader that returns their batches in order.

The workers are forks of this process, made before it starts threads (`WorkerPool.start`): a fork copies locks that other threads have
acquired, but not the threads that release them. Workers read training and validation batches, ignore Ctrl-C and SIGTERM (this process stops
them), have no state, and end with this process. Requests and batches are passed through `SharedSlots`.

Processes of a forkserver would get the datasets pickled. Then each worker would have its own copy of the labels, the metadata and the
arrays that a store maps into memory, and its own cache of decoded photographs, which forks share."""

from __future__ import annotations

import contextlib
import logging
import mmap
import multiprocessing
import os
import pickle
import signal
import traceback
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from multiprocessing import connection, util
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from linnaeus.data.sampler import PositionSampler
from linnaeus.data.samples import PositionedDataset
from linnaeus.data.slots import Layout, SharedSlots
from linnaeus.distributed import die_with_parent, keep_freed_memory
from linnaeus.errors import ConfigError, RunFailed

log = logging.getLogger("linnaeus")

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PINNED: list[mmap.mmap] = []  # page-locked memory, which must not be unmapped
PARENT_CHECK = 5.0  # seconds between checks that the parent process is alive, for systems without a parent-death signal


class WorkerPool:
    """A group of processes that read batches of `datasets`. `submit` requests a batch and returns a ticket; `take(ticket)` waits for this
    batch and returns it.

    Tickets may be taken in any order. The memory of a batch is reused after its last tensor is freed. The number of slots (parts of the
    shared memory) grows to the largest number of batches that were requested or in use at the same time."""

    def __init__(self, datasets: Sequence[PositionedDataset], workers: int, pinned: bool = False) -> None:
        """`pinned=True` makes the memory of batches page-locked, for asynchronous copies to a GPU."""
        self.datasets, self.workers, self.pinned = list(datasets), workers, pinned
        self._processes: list[BaseProcess] = []
        self._pipes: list[connection.Connection] = []
        self._tasks: dict[int, tuple[int, int]] = {}  # ticket -> worker, slot
        self._done: dict[int, tuple[int, bool, Layout]] = {}  # ticket -> slot, failed, layout
        self._cancelled: set[int] = set()
        self._free: list[int] = []
        self._leases: dict[int, weakref.ref] = {}
        self._slots_made = self._next_ticket = 0

    def start(self) -> None:
        """Fork the workers, unless they are running already. The first `submit` calls this."""
        if self._processes:
            return
        self._slots = SharedSlots()
        self._finalizer = util.Finalize(self, _kill, (self._processes,), exitpriority=10)  # before multiprocessing waits for them
        context = multiprocessing.get_context("fork")
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)  # until the workers ignore them
        try:
            for number in range(self.workers):
                own, other = context.Pipe()
                arguments = (other, self._slots, self.datasets, os.getpid())
                process = context.Process(target=_serve, args=arguments, daemon=True, name=f"loader-{number}")
                process.start()
                other.close()
                self._processes.append(process)
                self._pipes.append(own)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def processes(self) -> list[int]:
        """Return the process numbers of the workers; [] before they are started."""
        return [process.pid for process in self._processes if process.pid is not None]

    def close(self) -> None:
        """End the workers. Batches that `take` has returned stay valid."""
        if self._processes:
            self._finalizer()
            for pipe in self._pipes:
                pipe.close()
            self._slots.close()
            self._processes, self._pipes = [], []

    def submit(self, dataset: int, indices: Sequence[Any]) -> int:
        """Request the batch of `indices` from `datasets[dataset]`. The worker with the fewest open requests reads the batch. Return a
        ticket."""
        self.start()
        ticket, slot = self._next_ticket, self._free.pop() if self._free else self._slots_made
        self._next_ticket, self._slots_made = ticket + 1, max(self._slots_made, slot + 1)
        load = [0] * self.workers
        for worker, _ in self._tasks.values():
            load[worker] += 1
        worker = load.index(min(load))
        layout = self._slots.write(slot, (dataset, indices))
        self._tasks[ticket] = worker, slot
        with contextlib.suppress(OSError):  # `take` reports a dead worker
            self._pipes[worker].send((ticket, slot, layout))
        return ticket

    def take(self, ticket: int) -> Any:
        """Wait for the batch of a ticket and return it.

        Raise the exception that reading the batch raised, or `RunFailed` if a worker has ended."""
        while ticket not in self._done:
            self._receive()
        slot, failed, layout = self._done.pop(ticket)
        value, lease = self._slots.read(slot, layout, self._pin if self.pinned else None)
        free = self._free

        def give_back(_: object) -> None:
            free.append(slot)

        self._leases[slot] = weakref.ref(lease, give_back)
        if failed:
            raise value
        return value

    def cancel(self, tickets: Iterable[int]) -> None:
        """Discard the requested batches of these tickets. They cannot be taken afterwards."""
        for ticket in tickets:
            if ticket in self._done:
                self._free.append(self._done.pop(ticket)[0])
            else:
                self._cancelled.add(ticket)

    def _receive(self) -> None:
        """Wait until at least one batch is finished, and record all finished batches. Raise `RunFailed` if a worker has ended."""
        ready = connection.wait([*self._pipes, *(process.sentinel for process in self._processes)])
        for pipe in self._pipes:
            while pipe in ready and pipe.poll():
                try:
                    ticket, failed, layout = pipe.recv()
                except (EOFError, OSError):  # the worker has ended
                    break
                _, slot = self._tasks.pop(ticket)
                if ticket in self._cancelled:
                    self._cancelled.remove(ticket)
                    self._free.append(slot)
                else:
                    self._done[ticket] = slot, failed, layout
        for number, process in enumerate(self._processes):
            if process.sentinel in ready:
                raise RunFailed(self._end_of(number, process))

    def _pin(self, memory: mmap.mmap) -> None:
        """Page-lock the memory of a slot, so that its copy to a GPU does not block the host. The memory stays mapped until the process
        ends."""
        address, runtime = torch.frombuffer(memory, dtype=torch.uint8).data_ptr(), torch.cuda.cudart()
        if runtime.cudaHostRegister(address, len(memory), 0) == runtime.cudaError.success:
            _PINNED.append(memory)
        else:
            self.pinned = False
            with contextlib.suppress(RuntimeError, AssertionError):
                torch.zeros(1, device="cuda")  # clear the error: the first kernel after a failed call raises it
            log.warning("trainer.pin_memory=true: the system does not allow more page-locked memory; copies to the GPU are slower")

    def _end_of(self, number: int, process: BaseProcess) -> str:
        process.join()
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        memory = "; the system may have been out of memory: try fewer workers" if code == -signal.SIGKILL else ""
        return (
            f"loader worker {number + 1} of trainer.num_workers={self.workers} {how}{memory}. "
            "The same command continues from the last checkpoint"
        )


class WorkerLoader:
    """A loader that yields the batches of a dataset in order. The workers of a pool read ahead: `prefetch` batches for each worker.

    At the end of an epoch the workers read the first batches of the next one, so that it starts without a wait. If the next iteration
    starts at another epoch or step, these batches are discarded."""

    def __init__(self, pool: WorkerPool, dataset: PositionedDataset, batches: Any, prefetch: int) -> None:
        """`dataset` must be one of `pool.datasets`. `batches` is a sized iterable of lists of sample indices."""
        self.pool, self.batches, self.most = pool, batches, prefetch * pool.workers
        self._dataset = next(number for number, known in enumerate(pool.datasets) if known is dataset)
        self._ahead: _Requests | None = None  # of the next epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        requests = self._requests()
        tickets = requests.tickets
        try:
            self._request(requests, self.most - len(tickets))
            while tickets:
                batch = self.pool.take(tickets.popleft())
                if not self._request(requests, 1):
                    self._request_next_epoch()
                yield batch
                del batch  # so that its memory can be used again
        finally:
            self.pool.cancel(tickets)

    def _requests(self) -> _Requests:
        """Return the requests of the iteration that starts now: those made in advance if they start at the same epoch and step, or else new
        ones."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (ahead.batches.epoch, ahead.batches.start) == (self.batches.epoch, self.batches.start):
            return ahead
        if ahead is not None:
            self.pool.cancel(ahead.tickets)
        return _Requests(self.batches)

    def _request(self, requests: _Requests, count: int) -> int:
        """Request the next `count` batches of `requests`. Return the number of batches requested, fewer at the end of an epoch."""
        new = [self.pool.submit(self._dataset, indices) for indices in islice(requests.upcoming, count)]
        requests.tickets.extend(new)
        return len(new)

    def _request_next_epoch(self) -> None:
        """Request one more batch of the next epoch. Do nothing if there is none: in the last epoch of a run, and for batches of a
        validation."""
        if self._ahead is None and isinstance(self.batches, PositionSampler):
            following = self.batches.next_epoch()
            self._ahead = _Requests(following) if following is not None else None
        if self._ahead is not None:
            self._request(self._ahead, 1)


class _Requests:
    """Requests for the batches of one epoch. `tickets`: tickets of the requested batches that are not taken yet. `upcoming`: iterator over
    the sample indices of the batches that are not requested yet."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.upcoming, self.tickets = batches, iter(batches), deque[int]()


def _serve(pipe: connection.Connection, slots: SharedSlots, datasets: Sequence[PositionedDataset], parent: int) -> None:
    """Run a worker process: read requested batches until the process `parent` ends.

    Ignore Ctrl-C and SIGTERM, which reach the whole process group: without its workers the run could not continue to save its
    checkpoint."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    die_with_parent(parent)
    torch.set_num_threads(1)
    keep_freed_memory()
    while True:
        while not pipe.poll(PARENT_CHECK):
            if os.getppid() != parent:
                return
        try:
            ticket, slot, layout = pipe.recv()
        except EOFError:
            return
        (dataset, indices), _ = slots.read(slot, layout)
        failed, value = False, None
        try:
            value = datasets[dataset].__getitems__(indices)
            layout = slots.write(slot, value)
        except Exception as error:
            failed, layout = True, slots.write(slot, _portable(error))
        del value
        pipe.send((ticket, failed, layout))


def _portable(error: Exception) -> Exception:
    """Return `error` in a form that can be pickled, with its traceback as a note unless it is a `ConfigError`.

    If `error` cannot be pickled, return a `RuntimeError` with its traceback as the message."""
    text = "".join(traceback.format_exception(error))
    try:
        error.__cause__ = error.__context__ = error.__traceback__ = None
        if not isinstance(error, ConfigError):
            error.add_note(f"in a loader worker:\n{text}")
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(text)


def _kill(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
