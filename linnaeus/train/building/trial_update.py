"""Make trial updates within a limit of device memory, on parts that are built for the trials only (`trainer.micro_batch_size=auto`).

A trial is a window of a run on one process: forward, the measurements of the task weighting, backward, and the optimizer update. It is made
twice, because some optimizers allocate their state in the first update. A validation batch follows if its size depends on the
micro-batch."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from linnaeus.config.choices import with_typed_values
from linnaeus.config.schema import Config
from linnaeus.data.sampler import ValidationBatches, validation_part
from linnaeus.data.samples import SampleIndex
from linnaeus.distributed import DistributedContext
from linnaeus.train.building.build import build_training
from linnaeus.train.building.build_data import build_sampler
from linnaeus.train.building.freezing import set_training
from linnaeus.train.building.planning import Plan
from linnaeus.train.loop import Window, accumulate_gradients, apply_update
from linnaeus.train.state import Training
from linnaeus.workloads import build_workload
from linnaeus.workloads.base import Workload

T = TypeVar("T")
MARGIN = 0.05  # share of the device memory that stays free: for NCCL and libraries, which allocate outside of torch, and for fragments


class DeviceMemory:
    """Memory of a CUDA device, in bytes. total: all of it. limit: what this process may use, the free memory without `MARGIN`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        torch.cuda.init()
        self.release()
        free, self.total = torch.cuda.mem_get_info(device)
        self.limit = max(0.0, free + torch.cuda.memory_reserved(device) - MARGIN * self.total)

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Return a context manager in which torch raises `torch.OutOfMemoryError` for an allocation above `limit`."""
        torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit / self.total), self.device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def release(self) -> None:
        """Return the memory of deleted tensors to the device, and measure `peak` from now on."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> float:
        """Return the largest number of bytes that torch has reserved since `release`."""
        return float(torch.cuda.max_memory_reserved(self.device))


def with_trainer(config: Config, **changes: Any) -> Config:
    """Return a copy of `config` with other values of the group `trainer`."""
    return with_typed_values(config, {f"trainer.{name}": value for name, value in changes.items()})


def device_memory(device: torch.device) -> DeviceMemory | None:
    """Return the memory of a CUDA device; None for the CPU, whose memory is not limited here."""
    return DeviceMemory(device) if device.type == "cuda" else None


class Trial:
    """Parts of a run on one process, for trial updates with any micro-batch size.

    They are separate from the parts of the run itself: data, model, optimizer state, batch statistics, counters."""

    def __init__(self, config: Config, context: DistributedContext, directory: Path, plan: Callable[[Workload], Plan]) -> None:
        """config: the configuration with the samples of one process as global batch and as micro-batch. context: of one process. plan:
        function that returns the plan of the run, with one micro-batch per update on a process."""
        self.config, self.context = config, context
        self.workload = build_workload(config)
        self.plan = plan(self.workload)
        self.t: Training = build_training(config, context, self.workload, self.plan, directory)
        set_training(self.t.model)

    def update_twice(self, size: int, has_gradients: bool, copies: int) -> None:
        """Make two updates, and run a validation batch if its size depends on the micro-batch.

        No collectives run, because the trial of another process may fail. So `DistributedContext()` returns a context of one process here.

        size: samples in a micro-batch. has_gradients: True if the run has gradients in memory during a forward pass, from an earlier
        micro-batch of the window or in the buckets of DDP; an update then has two micro-batches. copies: number of further copies of the
        gradients that the run holds."""
        t = self.t
        others = [torch.empty_like(p) for p in t.optimizers.params for _ in range(copies)]
        host = t.workload.train_set.__getitems__(self.indices(size))
        # the loop holds the batches of a whole window on the device, and the next one
        ahead = [self.on_device(host) for _ in range(self.config.trainer.global_batch_size // size + 1)]
        window = [(host, batch) for batch in ahead[: 1 + has_gradients]]
        with self.context.as_singleton():
            for _ in range(2):
                make_update(t, window)
            if self.config.data.validation_batch is None and t.ops.resolved.validate.ever_due:
                self.validate(size)
        del others, ahead

    def indices(self, size: int) -> list[SampleIndex]:
        """Return the samples of the first micro-batch of `size` samples, as the last update of the run would read them: with the largest
        images."""
        sampler = build_sampler(with_trainer(self.config, micro_batch_size=size), self.context, self.workload, self.plan)
        last = self.plan.length.total_steps - 1
        return [index._replace(global_step=last) for index in next(iter(sampler))]

    def validate(self, size: int) -> None:
        """Run a validation batch of `size` samples, with the averaged weights if the run validates those."""
        t = self.t
        samples = validation_part(len(self.workload.validation_set), self.config.trainer.limit_validation_samples)
        host = self.workload.validation_set.__getitems__(ValidationBatches(samples, size)[0])
        metrics = self.workload.metrics(t.device)
        metrics.begin(t.passes[0], t.passes)
        averaged = t.ema.swapped_in(t.model) if t.ema is not None and self.config.trainer.ema_validate else contextlib.nullcontext()
        t.model.eval()
        with torch.inference_mode(), averaged:
            batch = self.workload.prepare(self.on_device(host), t.passes[0].masked)
            with t.precision.autocast():
                outputs = self.workload.predict(t.model, batch)
            metrics.sums(outputs, batch)
            metrics.count(outputs, batch)
        set_training(t.model)

    def on_device(self, host: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to(self.context.device) for name, value in host.items()}


def make_update(t: Training, window: Window) -> None:
    """Make an update on `window`, with every measurement that an update of this run can have."""
    valid = sum((t.workload.valid_counts(host) for host, _ in window), torch.zeros(len(t.workload.tasks), dtype=torch.float64))
    resolved = t.ops.resolved
    accumulate_gradients(t, window, valid, 0, gradnorm=resolved.weighting.ever_due, conflict=resolved.conflict.ever_due)
    apply_update(t, window, 0)


# -- state that a trial must not change ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """Return a context manager that restores, at its end, the states of the global random generators of python, numpy and torch, on the CPU
    and on `device`."""
    python, array = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(array)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Return a context manager in which nothing is logged. A trial would log the same lines as the run itself."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def fits(work: Callable[[], T]) -> tuple[T | None, bool]:
    """Call `work`. Return (its result, True), or (None, False) if it raises `torch.OutOfMemoryError`.

    The variables in the frames of the error are deleted, because they hold activations, so that `DeviceMemory.release` can free them."""
    try:
        return work(), True
    except torch.OutOfMemoryError as error:
        raised: BaseException | None = error
        while raised is not None:
            traceback.clear_frames(raised.__traceback__)
            raised = raised.__context__
    return None, False
