"""The start of a launch: join the group, apply process settings, find the run directory."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

import torch

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext
from linnaeus.durations import Duration
from linnaeus.rundir import RunDirectory
from linnaeus.workloads.base import Workload


def join_group(config: Config) -> DistributedContext:
    """Join the process group if this process was launched as part of one, and choose the device. Return the context."""
    return DistributedContext().initialize(device=config.trainer.device, timeout=Duration.parse(config.trainer.startup_timeout).seconds)


def apply_process_settings(config: Config) -> None:
    """Set the number of CPU threads and deterministic kernels. Both hold for the whole process."""
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    if config.trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def find_run_directory(config: Config, context: DistributedContext, config_dir: str | None = None) -> RunDirectory:
    """Return the directory of this run, inspected but not written."""
    ranks: dict[str, Any] = {"is_master": context.is_master, "broadcast_object": context.broadcast_object}
    return RunDirectory(dataclasses.asdict(config), sys.argv[1:], config_dir=config_dir, **ranks)


def run_record(context: DistributedContext, workload: Workload, weights: InitialWeights | None = None) -> dict[str, Any]:
    """Return the entries of run.json that describe data, devices and initial weights."""
    device = torch.cuda.get_device_name(context.device) if context.device.type == "cuda" else "cpu"
    record = {"data_fingerprint": workload.fingerprint, "train_size": workload.train_size, "world_size": context.world_size}
    return record | {"devices": device} | ({"initial_weights": weights.digest} if weights is not None else {})
