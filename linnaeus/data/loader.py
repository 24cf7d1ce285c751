"""Data loaders: torch's `DataLoader` with the project's samplers, and prefetching of one batch to the device.

Workers are persistent, ignore SIGINT and SIGTERM (the main process decides when to stop) and keep no state. The copy to the device runs on
a side stream while the previous batch is computed.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from linnaeus.data.samples import PositionedDataset


RUN_FILES = 64  # open files of a run without workers, at most
WORKER_FILES, BATCH_FILES = 12, 8  # more for each worker (of training and of validation), and for each batch that it prepares

SHORT_WAIT = 1e-4  # seconds; a shorter wait is not worth a question to the GPU


def _identity(batch: Any) -> Any:
    return batch


def _init_worker(worker: int) -> None:
    """Ignore signals, and exit with the main process.

    Ctrl-C and SIGTERM reach the whole process group, and a worker that ends by them would crash the main process during a save. torch
    detects the end of the main process only after seconds.
    """
    import multiprocessing
    import signal

    import torch

    from linnaeus.distributed import die_with_parent

    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with_parent(parent.pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    torch.set_num_threads(1)


def allow_open_files(num_workers: int, prefetch: int) -> None:
    """Raise the limit on open files of this process to what its loader workers need. Raise `ConfigError` if the system does not allow it.

    Each tensor of a batch arrives as an open file. Above the limit a worker loses the batch, and the training process waits forever."""
    needed = RUN_FILES + num_workers * (WORKER_FILES + prefetch * BATCH_FILES)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if num_workers == 0 or needed <= soft or soft == resource.RLIM_INFINITY:
        return
    if needed > hard != resource.RLIM_INFINITY:
        raise ConfigError(
            f"trainer.num_workers={num_workers} needs up to {needed} open files, more than the limit of {hard}: raise it (ulimit -n), or "
            "set trainer.num_workers=0"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def build_loaders(dataset: PositionedDataset, batches: Any, num_workers: int, prefetch: int, pin_memory: bool) -> Iterable[Any]:
    """Return an iterable of collated host batches, one per list of indices in `batches` (a batch sampler or a list)."""
    if num_workers == 0:
        return InProcessLoader(dataset, batches)
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_sampler=batches,
        num_workers=num_workers,
        prefetch_factor=prefetch,
        persistent_workers=True,
        collate_fn=_identity,
        worker_init_fn=_init_worker,
        pin_memory=pin_memory,
        multiprocessing_context="fork",
    )


class InProcessLoader:
    """The loader of `num_workers=0`: reads batches from the dataset directly, 60 us per batch faster than `DataLoader`."""

    def __init__(self, dataset: PositionedDataset, batches: Any) -> None:
        self.dataset, self.batches = dataset, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        read = self.dataset.__getitems__
        for indices in self.batches:
            yield read(indices)


class DevicePrefetcher:
    """An iterable of (host batch, device batch). The next batch is copied to the device while the current one is computed.

    `waited`: seconds spent waiting for the loader, without the waits at whose end a GPU still had work."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.loader, self.device = loader, device
        self.waited = 0.0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._on_host() if self.device.type == "cpu" else self._prefetched()

    def _next(self, iterator: Iterator[Any]) -> Any:
        start = time.perf_counter()
        try:
            batch = next(iterator, None)
        except ConfigError as error:  # torch puts the traceback of a worker before the message
            raise ConfigError(str(error).rpartition("ConfigError: ")[2]) from None
        waited = time.perf_counter() - start
        if waited < SHORT_WAIT or not self._busy():
            self.waited += waited
        return batch

    def _busy(self) -> bool:
        """Return True if a GPU still computes, so that the wait for the loader has cost no time. Does not wait for the GPU."""
        import torch

        return self.device.type == "cuda" and not torch.cuda.current_stream(self.device).query()

    def _on_host(self) -> Iterator[tuple[Any, Any]]:
        iterator = iter(self.loader)
        while (batch := self._next(iterator)) is not None:
            yield batch, batch

    def _prefetched(self) -> Iterator[tuple[Any, Any]]:
        import torch

        iterator, stream = iter(self.loader), torch.cuda.Stream(self.device)

        def fetch() -> tuple[Any, Any] | None:
            host = self._next(iterator)
            if host is None:
                return None
            with torch.cuda.stream(stream):
                return host, {name: value.to(self.device, non_blocking=True) for name, value in host.items()}

        following = fetch()
        while following is not None:
            current = following
            torch.cuda.current_stream(self.device).wait_stream(stream)
            for value in current[1].values():
                value.record_stream(torch.cuda.current_stream(self.device))
            following = fetch()
            yield current
