"""Loaders: torch's DataLoader over our samplers, and one batch ahead on the device.

Workers persist, ignore SIGINT and SIGTERM (the trainer decides when to stop) and keep no state. The hand-over to the device
runs on a side stream while the previous batch computes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from linnaeus.data.samples import PositionedDataset

Batch = "dict[str, Tensor]"


def _as_is(batch: Any) -> Any:
    return batch


def _quiet_worker(worker: int) -> None:
    """Ctrl-C and SIGTERM reach the whole process group; a worker that died of them would crash the trainer mid-save. It ends with
    the trainer, of whose death torch's own watch tells only seconds later."""
    import multiprocessing
    import signal

    import torch

    from linnaeus.distributed import die_with_parent

    trainer = multiprocessing.parent_process()
    if trainer is not None and trainer.pid is not None:
        die_with_parent(trainer.pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    torch.set_num_threads(1)


def build_loaders(dataset: PositionedDataset, batches: Any, workers: int, prefetch: int, pin_memory: bool) -> Iterable[Any]:
    """An iterable of collated host batches, one per list of indices in `batches` (a batch sampler or a list)."""
    if workers == 0:
        return InProcessLoader(dataset, batches)
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_sampler=batches,
        num_workers=workers,
        prefetch_factor=prefetch,
        persistent_workers=True,
        collate_fn=_as_is,
        worker_init_fn=_quiet_worker,
        pin_memory=pin_memory,
        multiprocessing_context="fork",
    )


class InProcessLoader:
    """The loader of `workers=0`: the dataset's own batches, without DataLoader's bookkeeping (60 us a batch)."""

    def __init__(self, dataset: PositionedDataset, batches: Any) -> None:
        self.dataset, self.batches = dataset, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        read = self.dataset.__getitems__
        for indices in self.batches:
            yield read(indices)


class DevicePrefetcher:
    """Iterates (host batch, device batch), the copy of the next batch under way while the current one computes.

    `waited` counts seconds spent waiting for the loader."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.loader, self.device = loader, device
        self.waited = 0.0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._on_host() if self.device.type == "cpu" else self._ahead()

    def _next(self, iterator: Iterator[Any]) -> Any:
        start = time.perf_counter()
        batch = next(iterator, None)
        self.waited += time.perf_counter() - start
        return batch

    def _on_host(self) -> Iterator[tuple[Any, Any]]:
        iterator = iter(self.loader)
        while (batch := self._next(iterator)) is not None:
            yield batch, batch

    def _ahead(self) -> Iterator[tuple[Any, Any]]:
        import torch

        iterator, stream = iter(self.loader), torch.cuda.Stream(self.device)

        def fetch() -> tuple[Any, Any] | None:
            host = self._next(iterator)
            if host is None:
                return None
            with torch.cuda.stream(stream):
                return host, {name: value.to(self.device, non_blocking=True) for name, value in host.items()}

        ahead = fetch()
        while ahead is not None:
            current = ahead
            torch.cuda.current_stream(self.device).wait_stream(stream)
            for value in current[1].values():
                value.record_stream(torch.cuda.current_stream(self.device))
            ahead = fetch()
            yield current
