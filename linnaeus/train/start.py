"""Start a launch: join the process group, apply settings of the process, find the run directory."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import time
from typing import Any

import torch

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.config.choices import choices_at_start, with_typed_values
from linnaeus.config.environment import saved_tree
from linnaeus.config.schema import ANYWHERE, Config
from linnaeus.data.loader import allow_open_files
from linnaeus.distributed import DistributedContext, keep_freed_memory
from linnaeus.distributed.processes import core_seconds
from linnaeus.durations import Duration
from linnaeus.rundir import RunDirectory
from linnaeus.train.state import Training
from linnaeus.workloads.base import Workload

log = logging.getLogger("linnaeus")

BUSY = 0.5  # cores used by other processes


def join_group(config: Config) -> DistributedContext:
    """Choose the device, and join the process group if a launcher started this process as part of a group. Return the context."""
    return DistributedContext().initialize(device=config.trainer.device, timeout=Duration.parse(config.trainer.startup_timeout).seconds)


def apply_process_settings(config: Config) -> None:
    """Apply settings of the whole process: CPU threads, limit on open files, reuse of freed memory, deterministic kernels.

    Raise `ConfigError` if the system does not allow as many open files as the loader workers need."""
    allow_open_files(config.trainer.num_workers)
    if DistributedContext().device.type == "cpu":
        keep_freed_memory()
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    elif config.trainer.deterministic == ANYWHERE and DistributedContext().device.type == "cpu":
        torch.set_num_threads(1)  # by default the number of threads depends on the number of processes, and sums in kernels on the threads
    if config.trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # no result depends on new memory, and filling it with NaN takes 4 % of an update of ViT-tiny on a CPU
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = False


class CoreUse:
    """Measurement of the CPU time used since construction, by all processes and by this process, on the cores that this process may use.

    This works on Linux only; on other systems `warn_if_busy` does nothing."""

    def __init__(self) -> None:
        self._time, self._start = time.monotonic(), core_seconds()

    def warn_if_busy(self, context: DistributedContext) -> None:
        """Log a warning if the run is on the CPU and other programs use cores that the torch threads of the run need.

        The threads of an operation wait for each other. Measured: with two busy neighbours on two cores a run takes six times as long."""
        now, seconds = core_seconds(), time.monotonic() - self._time
        if context.device.type != "cpu" or now is None or self._start is None or not seconds:
            return
        own_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        total, own = now.busy - self._start.busy, now.own - self._start.own
        cores, used = len(os.sched_getaffinity(0)), (total - own_processes * own) / seconds
        threads, free = torch.get_num_threads(), max(1, round((cores - used) / own_processes))
        if used >= BUSY and threads > free:
            log.warning(
                "other processes use %.1f of the %d cores, and %d threads wait for each other: try trainer.threads=%d, or wait for them",
                used, cores, threads, free,
            )  # fmt: skip


def start_workers(t: Training) -> None:
    """Start the worker processes that read batches, if there are any."""
    if t.workers is not None:
        t.workers.start()


def find_run_directory(config: Config, context: DistributedContext, config_dir: str | None = None) -> RunDirectory:
    """Return the run directory, checked but not written. Raise `ConfigError` if its run cannot be continued.

    `config_dir` is a folder with further config groups; None: only conf/."""
    ranks: dict[str, Any] = {"is_master": context.is_master, "broadcast_object": context.broadcast_object}
    return RunDirectory(dataclasses.asdict(config), sys.argv[1:], config_dir=config_dir, saved=saved_tree(config), **ranks)


def choose_at_start(config: Config, context: DistributedContext, directory: RunDirectory) -> Config:
    """Return `config` with a value in place of each `auto` that the workload chooses for the device, also in the configuration that
    `directory` saves. A run that is continued keeps its values, also on another kind of device."""
    choices = choices_at_start(config, context.device.type, directory.kept)
    values = {choice.key: choice.value for choice in choices}
    directory.choose(values)
    return with_typed_values(config, values, tuple(choices))


def run_record(context: DistributedContext, workload: Workload, weights: InitialWeights | None = None) -> dict[str, Any]:
    """Return the entries of run.json about data, device, number of processes and initial weights."""
    device = torch.cuda.get_device_name(context.device) if context.device.type == "cuda" else "cpu"
    record = {"data_fingerprint": workload.fingerprint, "train_size": workload.train_size, "world_size": context.world_size}
    return record | {"devices": device} | ({"initial_weights": weights.digest} if weights is not None else {})
