"""Build the parts of a run in the order of their dependencies.

A `ConfigError` of a part is raised here, before the run directory is written."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext
from linnaeus.distributed.row_shards import RowShards
from linnaeus.distributed.signals import StopRequest
from linnaeus.distributed.summation_tree import SumOrder
from linnaeus.distributed.synchronisation import RankSync
from linnaeus.distributed.watchdog import Watchdog
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError, escaped
from linnaeus.health import HealthMonitor, label_statistics
from linnaeus.metrics import MetricsTracker, StepMetricsLogger
from linnaeus.metrics.update_sums import MOST_ROWS
from linnaeus.optim import Optimizers, build_optimizer
from linnaeus.optim.ema import EMA
from linnaeus.optim.growth import Growth, build_growth
from linnaeus.optim.update import Precision, Update
from linnaeus.optim.update_ratio import UpdateRatio
from linnaeus.progress import TrainingConsistencyChecker, TrainingProgress
from linnaeus.progress.stages import validation_passes
from linnaeus.schedule import EarlyStopping
from linnaeus.train.building.activation_checkpointing import checkpoint_activations
from linnaeus.train.building.build_data import build_sampler, build_train_loader, build_workers, check_datasets
from linnaeus.train.building.compile_cache import CompileCache
from linnaeus.train.building.compiling import Compilation, compile_model
from linnaeus.train.building.freezing import batch_statistics, changing_buffers, check_shared_layer, freeze
from linnaeus.train.building.planning import Plan, idle_notes, patience_notes, warn_if_short
from linnaeus.train.building.reduction import build_order, build_reduction, check_anywhere
from linnaeus.train.measuring.clock import Clock
from linnaeus.train.measuring.profiling import StepProfiler, profile_notes
from linnaeus.train.measuring.rank_report import RankReport
from linnaeus.train.measuring.sections import Sections
from linnaeus.train.state import Training
from linnaeus.weighting import (
    FixedWeighting,
    GradientConflict,
    TaskGradients,
    TaskWeighting,
    WeightingMeter,
    build_weighting,
    weighting_notes,
)
from linnaeus.workloads.base import Model, Workload
from linnaeus.workloads.model_building import build_model

log = logging.getLogger("linnaeus")


def build_training(
    config: Config, context: DistributedContext, workload: Workload, plan: Plan, directory: Path, stop: StopRequest | None = None
) -> Training:
    """Return all parts of the run: datasets, model, optimizer, schedules, trackers.

    `directory`: the run directory. If an earlier launch wrote a list of unreadable samples there (quarantine), these samples are not used.
    `stop`: object that records requests to stop the run; None: create one. Raise `ConfigError` if a part cannot be built from `config`."""
    trainer = config.trainer
    workload.build_datasets(plan.ops, directory)
    check_datasets(workload, plan)
    model = build_model(config, workload, context.device)
    frozen = freeze(model, trainer.freeze)
    check_shared_layer(config.weighting, model.shared_parameters())
    check_anywhere(config, model)
    warn_of_batch_statistics(model, context, plan)
    precision = Precision(trainer.precision, context.device)
    with precision.autocast():
        workload.check_model(model)
    shards = RowShards(context, model.shard(context))
    peak = dataclasses.replace(config.optimizer, lr=plan.lr.base_lr)  # timm's adamc and its like decay by lr^2 / this rate
    optimizers = build_optimizer(peak, model, config.seed, shards.rows)
    growth = build_growth(config.growth, model, optimizers, plan.ops, config.seed)
    ema = EMA(model, trainer.ema_decay) if trainer.ema_decay is not None else None
    weighting = build_weighting(config.weighting, workload.tasks, context.device, precision.dtype, plan.accumulation, config.seed)
    conflict = GradientConflict(workload.tasks, context.device)
    order = build_order(config, context, plan)
    weighting_meter = build_weighting_meter(config, context, workload, model, weighting, conflict, order)
    warn_if_short(config, plan)
    blocks = model.repeated_blocks()  # before their classes are replaced
    recomputed = checkpoint_activations(blocks, trainer.activation_checkpointing)
    resolved = plan.resolved
    late = profile_notes(config.profile, resolved.last_step)
    idle = weighting_notes(config.weighting, resolved.weighting), patience_notes(config, resolved), idle_notes(config, resolved)
    parts = frozen, recomputed, *idle, growth.notes if growth is not None else (), shards.notes, late
    log_notes(plan, logging.INFO, workload.notes, validation_notes(config, workload), *parts)
    log_notes(plan, logging.DEBUG, optimizers.notes)
    compilation = None
    if trainer.compile:
        compile_model(model, blocks, trainer.compile, keep_graphs=weighting.requirements.gradients or plan.resolved.conflict.ever_due)
        workload.compile(context.device)
        compilation = Compilation(CompileCache(directory / "compile_cache", context.device), context.is_master)
    runner, reduction = build_reduction(config, model, context, plan, order, shards)
    sampler = build_sampler(config, context, workload, plan)
    workers = build_workers(config, context, workload)
    loader = build_train_loader(config, workload, sampler, workers)
    moving = None if isinstance(weighting, FixedWeighting) else weighting.weights
    rows = min(plan.resolved.log.longest_gap, MOST_ROWS)
    tracker = MetricsTracker(workload.tasks, workload.training_metrics(context.device), context.device, moving, rows, order)
    if context.world_size > 1 and config.logger.alarms and not order.anywhere:  # "anywhere": alarms must not name a process rank
        tracker.sums.watch_gradient([parameter for name, parameter in model.named_parameters() if name not in shards.rows])
    stop = stop or StopRequest(trainer.max_time)
    watchdog = build_watchdog(config, context)
    labels = label_statistics(workload.label_counts()) if config.logger.alarms else None
    training = Training(
        config=config,
        context=context,
        workload=workload,
        model=model,
        runner=runner,
        reduction=reduction,
        shards=shards,
        order=order,
        sampler=sampler,
        workers=workers,
        train_loader=loader,
        passes=validation_passes(plan.resolved.combinations, workload.components),
        optimizers=optimizers,
        lr=plan.lr,
        precision=precision,
        update=build_update(config, model, optimizers, precision, ema, growth, rows, shards),
        ema=ema,
        weighting=weighting,
        conflict=conflict,
        weighting_meter=weighting_meter,
        progress=build_progress(config, context, plan),
        ops=plan.ops,
        checker=build_checker(config, context, workload, plan, loader),
        early_stopping=build_early_stopping(config),
        tracker=tracker,
        step_logger=StepMetricsLogger(
            tracker, order.all_reduce, workload.total_loss, workload.denominators, context.rank, context.world_size
        ),
        health=HealthMonitor(
            workload.tasks, precision.scaler is not None, warm=config.run.init_from is not None, labels=labels, ranks=not order.anywhere
        ),
        update_ratio=UpdateRatio([group for optimizer in optimizers.optimizers for group in optimizer.groups], shards.rows),
        stop=stop,
        watchdog=watchdog,
        sync=RankSync(context, stop, watchdog, plan.ops.checkpoint_due_by_clock, order.all_reduce),
        growth=growth,
        compilation=compilation,
        clock=Clock(context.device, before=stop.age),
    )
    training.ranks = RankReport(context.device, context.world_size)
    training.sections = build_sections(training, directory)
    return training


# -- model and weighting -------------------------------------------------------------------------------------------------------


def build_update(
    config: Config,
    model: Model,
    optimizers: Optimizers,
    precision: Precision,
    ema: EMA | None,
    growth: Growth | None,
    rows: int,
    shards: RowShards,
) -> Update:
    """Return the `Update` of the run. If the model overrides `Model.after_update`, the `Update` calls that method after each update. `ema`,
    `growth`: None if the run does not use them. `rows`: for how many of the newest updates the gradient norms are kept. `shards`:
    parameters that are divided over the processes."""
    statistics = list(changing_buffers(model).values())
    after = None if type(model).after_update is Model.after_update else model.after_update
    return Update(optimizers, config.trainer.max_grad_norm, precision.scaler, ema, statistics, growth, after, rows, shards)


def warn_of_batch_statistics(model: torch.nn.Module, context: DistributedContext, plan: Plan) -> None:
    """Log a warning if the model has unfrozen batch norm and the global batch is split into several micro-batches (processes x
    accumulation).

    Batch statistics are computed over one micro-batch, so the result of an update then depends on the split."""
    names = batch_statistics(model)
    if names and context.world_size * plan.accumulation > 1:
        log.warning("%d layers have batch statistics (%s, ...): the update depends on how the global batch is split", len(names), names[0])


def build_weighting_meter(
    config: Config,
    context: DistributedContext,
    workload: Workload,
    model: Model,
    weighting: TaskWeighting,
    conflict: GradientConflict,
    order: SumOrder,
) -> WeightingMeter:
    """Return the object that measures losses and gradients for the task weighting.

    Raise `ConfigError` if the model does not define the parameters at which gradients must be measured."""
    place = getattr(config.weighting, "place", "shared")
    if place == "trunk" and not model.trunk_parameters():
        raise ConfigError("weighting.place=trunk: this model does not define trunk_parameters(); use weighting.place=shared")
    if weighting.requirements.same_update and context.device.type == "cuda":
        log.warning("weighting=%s waits for the GPU once per update", config.weighting.name)
    gradients = TaskGradients(model.shared_parameters(), place, model.trunk_parameters() if place == "trunk" else (), order.block)
    if config.weighting.conflict and not gradients.possible:
        log.info("weighting.conflict: the last shared layer is frozen, so the gradients of tasks are not compared")
    return WeightingMeter(weighting, conflict, gradients, order, workload.separate_loss_sums)


def build_sections(training: Training, directory: Path) -> Sections | None:
    """Return the timer of the parts of an update (forward, backward, ...). `directory`: run directory.

    The times are used by a `StepProfiler` on rank 0 if `profile` is set, and by `training.ranks` with several processes. Return None if
    neither is the case."""
    profile, context = training.config.profile, training.context
    profiler = StepProfiler(profile, directory, context.device) if profile is not None and context.is_master else None
    users = [user for user in (profiler, training.ranks.sampled) if user is not None]
    sections = Sections(context.device, users) if users else None
    if profiler is not None:
        profiler.sections = sections
    return sections


def validation_notes(config: Config, workload: Workload) -> list[str]:
    """Return a list of one line for the log that says how many validation samples `trainer.limit_validation_samples` leaves out. Return []
    if none is left out."""
    size, limit = len(workload.validation_set), config.trainer.limit_validation_samples
    if limit is None or limit >= size:
        return []
    return [f"validation: {limit:,} of {size:,} samples, the same ones in every pass (trainer.limit_validation_samples)"]


def log_notes(plan: Plan, level: int, *groups: Iterable[str]) -> None:
    """Log each line of all `groups`, except lines that `plan.text` contains. `level`: a level of `logging`, such as `logging.INFO`."""
    for line in itertools.chain(*groups):
        if line not in plan.text:
            log.log(level, escaped(line))


# -- counter, stopping, watchdog -----------------------------------------------------------------------------------------------


def build_progress(config: Config, context: DistributedContext, plan: Plan) -> TrainingProgress:
    """Return the progress counters of the run, with the number of updates in the run and in an epoch set."""
    progress = TrainingProgress(config, context.world_size, plan.accumulation)
    progress.set_length(plan.length.total_steps, plan.length.steps_per_epoch)
    return progress


def build_checker(config: Config, context: DistributedContext, workload: Workload, plan: Plan, loader: Any) -> TrainingConsistencyChecker:
    """Return the checker of epoch lengths. Log a warning now if `loader` yields another number of updates per epoch than planned."""
    checker = TrainingConsistencyChecker(config, context.world_size, plan.accumulation)
    checker.initialize_with_first_epoch(min(len(loader) // plan.accumulation, plan.length.total_steps), workload.train_size)
    return checker


def build_early_stopping(config: Config) -> EarlyStopping | None:
    """Return the object that detects `schedule.early_stop.patience` validations in a row without improvement; None if that setting is
    null."""
    early = config.schedule.early_stop
    return EarlyStopping(early.patience, early.min_delta, early.mode) if early.patience is not None else None


def build_watchdog(config: Config, context: DistributedContext) -> Watchdog:
    """Return the watchdog of the process group, with its timeouts read from the configuration. It is not started yet."""
    return Watchdog(context, Duration.parse(config.trainer.timeout).seconds, Duration.parse(config.trainer.startup_timeout).seconds)
