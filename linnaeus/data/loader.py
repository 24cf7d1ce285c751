"""Load batches in this process or by worker processes, and copy them to the device ahead of their use.

The copy of the next batch runs on a side CUDA stream while the current batch is computed.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from linnaeus.data.samples import PositionedDataset
from linnaeus.data.workers import WorkerLoader, WorkerPool
from linnaeus.errors import ConfigError

RUN_FILES = 64  # upper limit of the files that a run without workers opens
WORKER_FILES = 4  # further ones for each worker
SHORT_WAIT = 1e-4  # seconds; after a shorter wait the GPU is not queried


def allow_open_files(num_workers: int) -> None:
    """Increase the limit on open files of this process to the number that its `num_workers` loader workers need.

    Raise `ConfigError` if the system does not allow that many."""
    needed = RUN_FILES + num_workers * WORKER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if num_workers == 0 or needed <= soft or soft == resource.RLIM_INFINITY:
        return
    if needed > hard != resource.RLIM_INFINITY:
        raise ConfigError(
            f"trainer.num_workers={num_workers} needs up to {needed} open files, more than the limit of {hard}: raise it (ulimit -n), or "
            "set trainer.num_workers=0"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def build_loaders(dataset: PositionedDataset, batches: Any, pool: WorkerPool | None, prefetch: int) -> Iterable[Any]:
    """Return an iterable of collated batches in host memory, one for each list of sample indices in `batches`.

    `batches` is a `PositionSampler` or another sized iterable. The workers of `pool` each read `prefetch` batches in advance. If `pool` is
    None, this process reads each batch when it is requested."""
    return InProcessLoader(dataset, batches) if pool is None else WorkerLoader(pool, dataset, batches, prefetch)


class InProcessLoader:
    """Loader for `trainer.num_workers=0`. It reads each batch from the dataset in the training process."""

    def __init__(self, dataset: PositionedDataset, batches: Any) -> None:
        self.dataset, self.batches = dataset, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        read = self.dataset.__getitems__
        for indices in self.batches:
            yield read(indices)


class DevicePrefetcher:
    """An iterable of (host batch, device batch). The next batch is copied to the device while the device computes the current one.

    `waited`: seconds spent waiting for the loader. A wait is not counted if the GPU was still computing when the wait ended."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.loader, self.device = loader, device
        self.waited = 0.0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._on_host() if self.device.type == "cpu" else self._prefetched()

    def _next(self, iterator: Iterator[Any]) -> Any:
        start = time.perf_counter()
        batch = next(iterator, None)
        waited = time.perf_counter() - start
        if waited < SHORT_WAIT or not self._busy():
            self.waited += waited
        return batch

    def _busy(self) -> bool:
        """Return True if the GPU has not finished its queued work; then waiting for the loader has cost no time. Always False on the
        CPU."""
        return self.device.type == "cuda" and not torch.cuda.current_stream(self.device).query()

    def _on_host(self) -> Iterator[tuple[Any, Any]]:
        iterator = iter(self.loader)
        while (batch := self._next(iterator)) is not None:
            yield batch, batch

    def _prefetched(self) -> Iterator[tuple[Any, Any]]:
        iterator, stream = iter(self.loader), torch.cuda.Stream(self.device)
        copying = deque[tuple[torch.cuda.Event, Any]]()  # host batches, alive until their copies end: freed memory is reused

        def fetch() -> tuple[Any, Any] | None:
            host = self._next(iterator)
            if host is None:
                return None
            while copying and copying[0][0].query():
                copying.popleft()
            with torch.cuda.stream(stream):
                device = {name: value.to(self.device, non_blocking=True) for name, value in host.items()}
                copying.append((stream.record_event(), host))
            return host, device

        try:
            following = fetch()
            while following is not None:
                current = following
                torch.cuda.current_stream(self.device).wait_stream(stream)
                for value in current[1].values():
                    value.record_stream(torch.cuda.current_stream(self.device))
                following = fetch()
                yield current
        finally:
            stream.synchronize()  # the last copies; does not wait for the updates
