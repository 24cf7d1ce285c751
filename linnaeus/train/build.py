"""Builds the parts of a run in the order they depend on each other. What can be refused is refused here, before a file is written."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.config.schema import Config
from linnaeus.data.loader import build_loaders
from linnaeus.data.sampler import PositionSampler
from linnaeus.distributed import DistributedContext
from linnaeus.distributed.ddp import wrap_ddp
from linnaeus.distributed.signals import StopRequest
from linnaeus.distributed.synchronisation import RankSync
from linnaeus.distributed.watchdog import Watchdog
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError
from linnaeus.metrics import MetricsTracker, StepMetricsLogger
from linnaeus.optim import build_optimizer
from linnaeus.optim.ema import EMA
from linnaeus.optim.growth import build_growth
from linnaeus.optim.precision import Precision
from linnaeus.optim.update import Update
from linnaeus.progress import TrainingConsistencyChecker, TrainingProgress
from linnaeus.progress.stages import validation_passes
from linnaeus.reporting import LogSinks, ProgressDisplay, attach_log_file
from linnaeus.reporting.batch_record import BatchRecord
from linnaeus.rundir import RunDirectory
from linnaeus.schedule import EarlyStopping
from linnaeus.train.freezing import batch_statistics, changing_buffers, check_shared_layer, freeze
from linnaeus.train.outputs import Outputs
from linnaeus.train.planning import Plan
from linnaeus.train.state import Training
from linnaeus.weighting import GradientConflict, TaskGradients, TaskWeighting, WeightingMeter, build_weighting, weighting_notes
from linnaeus.workloads.base import Model, Workload, as_model

log = logging.getLogger("linnaeus")

SEEN_WITHIN = 30.0  # seconds in which a shared disk shows on one host what another has made


def join_group(config: Config) -> DistributedContext:
    """Join the other processes, if this one was launched as one of several, and pick the device."""
    return DistributedContext().initialize(device=config.trainer.device, timeout=seconds_of(config.trainer.startup_timeout))


def apply_process_settings(config: Config) -> None:
    """Set the number of CPU threads and deterministic kernels, once per process."""
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    if config.trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def seconds_of(duration: str) -> float:
    return Duration.parse(duration).seconds


def find_run_directory(config: Config, context: DistributedContext, config_dir: str | None = None) -> RunDirectory:
    """The directory of this run; looked at, not written."""
    together: dict[str, Any] = {"is_master": context.is_master, "broadcast_object": context.broadcast_object}
    return RunDirectory(dataclasses.asdict(config), sys.argv[1:], config_dir=config_dir, **together)


def run_record(context: DistributedContext, workload: Workload, weights: InitialWeights | None = None) -> dict[str, Any]:
    """What run.json says beside the command and the versions."""
    device = torch.cuda.get_device_name(context.device) if context.device.type == "cuda" else "cpu"
    record = {"data_fingerprint": workload.fingerprint, "train_size": workload.train_size, "world_size": context.world_size}
    return record | {"devices": device} | ({"initial_weights": weights.digest} if weights is not None else {})


def build_training(
    config: Config, context: DistributedContext, workload: Workload, plan: Plan, directory: Path, stop: StopRequest | None = None
) -> Training:
    """Datasets, model, optimizer, schedules and trackers; `directory` is where an earlier launch may have left a quarantine."""
    workload.build_datasets(plan.ops, directory)
    model = build_model(config, workload, context.device)
    frozen = freeze(model, config.trainer.freeze)
    check_shared_layer(config.weighting, model.shared_parameters())
    warn_of_batch_statistics(model, context, plan)
    optimizers = build_optimizer(config.optimizer, model, context.device)
    growth = build_growth(config.growth, model, optimizers, plan.ops, config.seed)
    precision = Precision(config.trainer.precision, context.device)
    ema = EMA(model, config.trainer.ema_decay) if config.trainer.ema_decay is not None else None
    weighting = build_weighting(config.weighting, workload.tasks, context.device, precision.dtype, plan.accumulation, config.seed)
    conflict = GradientConflict(workload.tasks, context.device)
    weighting_meter = build_weighting_meter(config, context, workload, model, weighting, conflict)
    parts = (workload.notes, frozen, optimizers.notes, weighting_notes(config.weighting), growth.notes if growth is not None else ())
    for line in itertools.chain(*parts):
        if line not in plan.text:
            log.info(line)
    if config.trainer.compile and (weighting.requirements.gradients or plan.resolved.conflict.ever_due):
        keep_compiled_graphs()
    if config.trainer.compile:  # parts in place, before DDP: names stay the model's and validation runs the same code
        for part in model.compiled_parts():
            part.compile()
    runner, no_sync = wrap_ddp(model, context, changing_buffers(model), config.trainer.deterministic)
    sampler = build_sampler(config, context, workload, plan)
    loader = build_train_loader(config, context, workload, sampler)
    tracker = MetricsTracker(workload.tasks, workload.metrics(True, context.device), context.device)
    early = config.schedule.early_stop
    stop = stop or StopRequest(config.trainer.max_time)
    watchdog = Watchdog(context, seconds_of(config.trainer.timeout), seconds_of(config.trainer.startup_timeout))
    return Training(
        config=config,
        context=context,
        workload=workload,
        model=model,
        runner=runner,
        no_sync=no_sync,
        sampler=sampler,
        train_loader=loader,
        passes=validation_passes(plan.resolved.combinations, workload.components),
        optimizers=optimizers,
        lr=plan.lr,
        precision=precision,
        update=Update(optimizers, config.trainer.max_grad_norm, precision.scaler, ema, list(changing_buffers(model).values()), growth),
        ema=ema,
        weighting=weighting,
        conflict=conflict,
        weighting_meter=weighting_meter,
        progress=build_progress(config, context, plan),
        ops=plan.ops,
        checker=build_checker(config, context, workload, plan, loader),
        early_stopping=EarlyStopping(early.patience, early.min_delta, early.mode) if early.patience is not None else None,
        tracker=tracker,
        step_logger=StepMetricsLogger(tracker, context.all_reduce, workload.total_loss),
        stop=stop,
        watchdog=watchdog,
        sync=RankSync(context, stop, watchdog, plan.ops.checkpoint_due_by_clock),
        growth=growth,
    )


def build_model(config: Config, workload: Workload, device: torch.device) -> Model:
    """Return the workload's model on the device, in its dtype and memory format."""
    model = as_model(workload.build_model()).to(device)
    if config.trainer.precision == "float64":
        model = model.double()
    if config.trainer.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model


def warn_of_batch_statistics(model: torch.nn.Module, context: DistributedContext, plan: Plan) -> None:
    names = batch_statistics(model)
    if names and context.world_size * plan.accumulation > 1:
        log.warning("%d layers have batch statistics (%s, ...): the update depends on how the global batch is split", len(names), names[0])


def build_weighting_meter(
    config: Config, context: DistributedContext, workload: Workload, model: Model, weighting: TaskWeighting, conflict: GradientConflict
) -> WeightingMeter:
    """Raises ConfigError for a place to measure gradients at that the model does not know."""
    place = getattr(config.weighting, "place", "shared")
    if place == "trunk" and not model.trunk_parameters():
        raise ConfigError("weighting.place=trunk: this model does not say which parameters all tasks share; use weighting.place=shared")
    if weighting.requirements.at_once and context.device.type == "cuda":
        log.warning("weighting=%s waits for the GPU once an update", config.weighting.name)
    gradients = TaskGradients(model.shared_parameters(), place, model.trunk_parameters() if place == "trunk" else ())
    if config.weighting.conflict and not gradients.possible:
        log.info("weighting.conflict: the last shared layer is frozen, so no gradients of tasks are compared there")
    return WeightingMeter(weighting, conflict, gradients, context.all_reduce, workload.separate_loss_sums)


def keep_compiled_graphs() -> None:
    """Compiled backwards may by default reuse the memory of what the forward has saved, so they run once; to measure gradients and then
    train they run again. To be called before anything is compiled."""
    import torch._functorch.config as functorch

    functorch.donated_buffer = False


def build_sampler(config: Config, context: DistributedContext, workload: Workload, plan: Plan) -> PositionSampler:
    def groups(epoch: int) -> Any:
        return workload.train_set.groups(plan.ops.get_mixup_group_level(epoch)) if workload.pairs_samples else None

    return PositionSampler(
        workload.train_size,
        config.seed,
        config.trainer.global_batch_size,
        config.trainer.micro_batch_size,
        plan.length.steps_per_epoch,
        plan.length.total_steps,
        context.rank,
        context.world_size,
        groups,
        workload.train_set.resampling(),
    )


def build_train_loader(config: Config, context: DistributedContext, workload: Workload, sampler: PositionSampler) -> Any:
    t = config.trainer
    return build_loaders(workload.train_set, sampler, t.num_workers, t.prefetch, t.pin_memory and context.device.type == "cuda")


def build_progress(config: Config, context: DistributedContext, plan: Plan) -> TrainingProgress:
    progress = TrainingProgress(config, context.world_size, plan.accumulation)
    progress.set_length(plan.length.total_steps, plan.length.steps_per_epoch)
    return progress


def build_checker(config: Config, context: DistributedContext, workload: Workload, plan: Plan, loader: Any) -> TrainingConsistencyChecker:
    """Told what an epoch of the loader holds, so that a short one is noticed before the first step."""
    checker = TrainingConsistencyChecker(config, context.world_size, plan.accumulation)
    checker.initialize_with_first_epoch(min(len(loader) // plan.accumulation, plan.length.total_steps), workload.train_size)
    return checker


def check_shared(directory: Path, context: DistributedContext) -> None:
    """`ConfigError`, the same on all processes, where one does not see the run directory that rank 0 has made: checkpoints are read by
    all. Only what another host made may take a while to show."""
    ends = time.monotonic() + SEEN_WITHIN
    while not (seen := (directory / "config.yaml").exists()) and time.monotonic() < ends:
        time.sleep(0.5)
    hosts: list[tuple[bool, str]] = context.all_gather((seen, socket.gethostname()))
    blind = next((rank for rank, (sees, _) in enumerate(hosts) if not sees), None)
    if blind is not None:
        raise ConfigError(
            f"run.root: {directory}, made by process rank 0 on {hosts[0][1]}, is not there for process rank {blind} on "
            f"{hosts[blind][1]}; choose a folder of a disk that all nodes share"
        )


def open_outputs(config: Config, context: DistributedContext, directory: RunDirectory, training: Training) -> Outputs:
    """Files and loggers of the run, once its directory is held."""
    check_shared(directory.path, context)
    if context.is_master:
        attach_log_file(directory.path / "train.log")
        for line in directory.start_messages():
            log.info(line)
        training.workload.save_dataset_record(directory.path)
    sinks: list[Any] = []
    if context.is_master and config.logger.wandb != "disabled":
        from linnaeus.reporting.wandb_logger import WandbLogger

        sinks.append(
            WandbLogger(
                directory.path,
                run_id=directory.run_id,
                mode=config.logger.wandb,
                project=config.logger.wandb_project,
                name=f"{config.run.experiment}/{directory.path.name}",
                config=dataclasses.asdict(config),
            )
        )
    if context.is_master and config.logger.tensorboard:
        from linnaeus.reporting.tensorboard_logger import TensorBoardLogger

        sinks.append(TensorBoardLogger(directory.path))
    display = ProgressDisplay(training.progress.expected_total_steps, config.logger.console, context.is_master)
    outputs = Outputs(config, context, directory, LogSinks(directory.path if context.is_master else None, sinks), display)
    if config.debug.batch_hashes:
        outputs.batches = BatchRecord(directory.path, training.workload.sample_names, context.rank, context.world_size)
    return outputs
