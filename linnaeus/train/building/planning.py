"""Compute the plan of a run before anything is trained: length, gradient accumulation, schedule and learning rate. Durations are in
steps."""

from __future__ import annotations

import functools
import logging
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from linnaeus.config.contracts import check_members, class_name
from linnaeus.config.monitors import direction, nearest_metric
from linnaeus.config.schema import Config
from linnaeus.config.schema_optimization import PlateauConfig
from linnaeus.distributed import DistributedContext
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError, counted
from linnaeus.files import write_atomic
from linnaeus.metrics.streaming import Metrics, TrainingMetrics, check_counts, check_results
from linnaeus.optim import LRSchedule, build_scheduler, scaled_lr
from linnaeus.progress import TrainingStage
from linnaeus.progress.stages import validation_passes
from linnaeus.reporting.plans.plan import schedule_summary, unreached
from linnaeus.reporting.plans.schedule_chart import schedule_picture
from linnaeus.reporting.plans.schedule_rows import schedule_rows
from linnaeus.reporting.terminal.console import CONSOLE_ONLY
from linnaeus.schedule import (
    OpsSchedule,
    ResolvedSchedule,
    TrainingLength,
    accumulation_steps,
    micro_batch_size,
    resolve_all_schedule_params,
    training_length,
)
from linnaeus.schedule.validation_passes import PARTIAL, event_of_metric
from linnaeus.workloads.base import Workload

log = logging.getLogger("linnaeus")

FEW_UPDATES = 10  # a run of fewer updates trains almost nothing


@dataclass(frozen=True)
class Plan:
    """Length and schedule of a run, known before the first batch. `length`: steps of the run and of an epoch. `accumulation`: micro-batches
    per update on a process. `resolved`: the schedule in steps. `ops`: methods that return the events of a step. `lr`: learning rate at each
    step.

    `text`: the printed schedule, the content of schedule.txt."""

    length: TrainingLength
    accumulation: int
    resolved: ResolvedSchedule
    ops: OpsSchedule
    lr: LRSchedule
    text: str

    def show(self, whole: bool) -> None:
        """Print the whole schedule and a picture of it if `whole`, otherwise one line and the notes about it. train.log gets the whole
        schedule in both cases."""
        if whole:
            log.info("%s\n%s", self.text, schedule_rows(self.resolved, self.lr.at))
            return
        log.debug(self.text)
        resolved, length = self.resolved, self.length
        number = f"{length.total_steps / length.steps_per_epoch:.3g}"
        epochs = f"{number} epoch{'s' * (number != '1')}"
        updates, samples = counted(resolved.last_step, "update"), counted(resolved.global_batch_size, "sample")
        log.info("%s of %s, %s", updates, samples, epochs, extra=CONSOLE_ONLY)
        for note in unreached(resolved):
            log.info("note: %s", note, extra=CONSOLE_ONLY)

    def save(self, directory: Path, context: DistributedContext) -> None:
        """Write schedule.txt and schedule.svg to `directory` on rank 0. Raise `ConfigError` if the directory cannot be created."""
        context.master_only(self._write)(directory)

    def _write(self, directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run.root: {directory} cannot be made ({error.strerror}); choose a directory you may write to") from None
        write_atomic(directory / "schedule.txt", self.text + "\n")
        schedule_picture(self.resolved, self.lr.at, directory / "schedule.svg")


def resolve_schedule(config: Config, workload: Workload, context: DistributedContext) -> Plan:
    """Return the plan of a run, with every duration converted to steps.

    Raise `ConfigError` if the global batch cannot be divided among processes and micro-batches, or if an entry of the schedule is
    impossible."""
    length = training_length(config, workload.train_size)
    accumulation = accumulation_steps(config, context.world_size)
    micro = micro_batch_size(config, context.world_size)
    if workload.pairs_samples and micro % 2:
        raise ConfigError(f"trainer.micro_batch_size={micro} would split mixed pairs; it must be even")
    sizes = (length.total_steps, length.steps_per_epoch)
    resolved = resolve_all_schedule_params(config, *sizes, workload.components, len(workload.tasks), workload.schedule_probabilities)
    if resolved.phases is not None:
        resolved.phases.check_names(workload.sources, workload.dimensions)
    check_monitors(config, resolved, workload)
    base_lr, note = scaled_lr(config.optimizer, config.trainer.global_batch_size)
    lr = build_scheduler(config.lr_scheduler, base_lr, *sizes, resolved.phases)
    text = schedule_summary(resolved, context.world_size)
    return Plan(length, accumulation, resolved, OpsSchedule(resolved), lr, f"{text}\n{note}")


def warn_if_short(config: Config, plan: Plan) -> None:
    """Log a warning if `trainer.length` is in epochs and amounts to fewer than `FEW_UPDATES` updates. Early stopping is not considered."""
    updates, length = plan.length.total_steps, config.trainer.length
    if updates < FEW_UPDATES and Duration.parse(length).unit == "epochs":
        batch = config.trainer.global_batch_size
        text = "trainer.length=%s is only %s of up to %s: increase it, or decrease trainer.global_batch_size"
        log.warning(text, length, counted(updates, "update"), counted(batch, "sample"))


def check_monitors(config: Config, resolved: ResolvedSchedule, workload: Workload) -> None:
    """Raise `ConfigError` if a monitored metric is not measured by any validation pass of this run, or if the direction (min or max) of a
    monitored metric is unknown.

    A metric of the averaged weights counts as not measured if the raw weights are validated, and the reverse."""
    averaged = config.trainer.ema_decay is not None and config.trainer.ema_validate
    measured = metric_names(resolved, workload, averaged)
    for key, metric in monitored(config, bool(measured)).items():
        if not measured:
            fix = "set schedule.validate or schedule.validate_at_end=true"
            raise ConfigError(f"{key} is {metric}, but this run makes no validation; {fix}")
        if metric in measured:
            mode_key = key.replace("best_monitor", "best_mode").replace(".monitor", ".mode")
            direction(str(functools.reduce(getattr, mode_key.split("."), config)), metric, config.workload.name, mode_key)
            continue
        if metric.startswith("val_ema") != averaged:
            right = metric.replace("val_ema", "val", 1) if not averaged else metric.replace("val", "val_ema", 1)
            raise ConfigError(f"{key} is {metric}, but {'averaged' if averaged else 'raw'} weights are validated here; set it to {right}")
        raise ConfigError(f"{key} is {metric}, which no validation of this run measures; {nearest_metric(metric, measured)}")


def patience_notes(config: Config, resolved: ResolvedSchedule) -> list[str]:
    """Return a line for `schedule.early_stop.patience` and for `lr_scheduler.patience` if it has no effect: the run validates too seldom
    before its last step. Return a line, too, for settings of `schedule.early_stop` that need a patience or a bound, and have none."""
    stop, scheduler = config.schedule.early_stop, config.lr_scheduler
    found: list[tuple[str, int, str, int, str]] = []  # (key, its value, metric, validations without improvement, consequence)
    if stop.patience is not None:
        found.append(("schedule.early_stop", stop.patience, stop.monitor, stop.patience, "training stops"))
    if isinstance(scheduler, PlateauConfig):
        found.append(("lr_scheduler", scheduler.patience, scheduler.monitor, scheduler.patience + 1, "the learning rate is reduced"))
    notes = []
    if stop.patience is None and stop.min_delta:
        notes.append("schedule.early_stop.min_delta has no effect without schedule.early_stop.patience")
    if stop.patience is None and stop.metric_bound is None and stop.monitor not in ("val/loss", "val_ema/loss"):
        notes.append("schedule.early_stop.monitor has no effect without schedule.early_stop.patience or metric_bound")
    for group, value, metric, needed, effect in found:
        count = sum(step < resolved.last_step for step in getattr(resolved, event_of_metric(metric)).steps())
        if count <= needed:  # the first result is the one that the others do not improve
            notes.append(
                f"{group}.patience={value} has no effect: {effect} after {counted(needed, 'validation')} without an improvement on an "
                f"earlier one, and {metric} is measured {counted(count, 'time')} before the last step; validate more often"
            )
    return notes


def idle_notes(config: Config, resolved: ResolvedSchedule) -> list[str]:
    """Return a line for each setting of validation that has no effect in this run and is not the default."""
    schedule, trainer = config.schedule, config.trainer
    notes: list[str] = []
    if not resolved.can_mask:
        idle = ["all_combinations_at_end"] if schedule.all_combinations_at_end else []
        idle += [name for name in ("validate_mask_meta", PARTIAL) if getattr(schedule, name) not in ([], ["100%"])]
        notes += [f"schedule.{name} has no effect: the validation data have no metadata" for name in idle]
    if schedule.keep_best > 1 and not (resolved.validate.ever_due or resolved.validate_mask_meta.ever_due):
        notes.append(f"schedule.keep_best={schedule.keep_best} has no effect: the run makes no validation")
    if trainer.ema_decay is None and not trainer.ema_validate:
        notes.append("trainer.ema_validate=false has no effect without trainer.ema_decay")
    return notes


def monitored(config: Config, ever_due: bool) -> dict[str, str]:
    """Return {configuration key: validation metric} for all keys that monitor a metric in this run. `ever_due`: True if the run makes a
    validation; without one, there is no best checkpoint."""
    validates = ever_due and (config.schedule.validate or config.schedule.validate_at_end)
    monitors = {"schedule.best_monitor": config.schedule.best_monitor} if validates else {}
    stop = config.schedule.early_stop
    if stop.patience is not None or stop.metric_bound is not None:
        monitors["schedule.early_stop.monitor"] = stop.monitor
    if hasattr(config.lr_scheduler, "monitor"):
        monitors["lr_scheduler.monitor"] = config.lr_scheduler.monitor
    return monitors


def metric_names(resolved: ResolvedSchedule, workload: Workload, averaged: bool) -> list[str]:
    """Return the names of the metrics that the validation passes of this run measure, found by computing them for no samples.

    `averaged`: True if the averaged weights are validated. Raise `ConfigError` if the metrics object lacks or misspells a member, or if the
    metrics cannot be computed without samples."""
    cpu = torch.device("cpu")
    owner = class_name(type(workload))
    training = check_members(workload.training_metrics(cpu), TrainingMetrics, f"{owner}.training_metrics returns")
    metrics = check_members(workload.metrics(cpu), Metrics, f"{owner}.metrics returns")
    _without_samples(training, *torch.zeros(2, len(workload.tasks), dtype=torch.float64))
    due = {
        TrainingStage.VALIDATION_NORMAL: resolved.validate.ever_due,
        TrainingStage.VALIDATION_MASK_META: resolved.validate_mask_meta.ever_due,
        TrainingStage.VALIDATION_PARTIAL_MASK_META: resolved.validate_partial_mask_meta.ever_due,
    }
    passes = validation_passes(resolved.combinations, workload.components)
    found: list[str] = []
    for pass_ in passes:
        metrics.begin(pass_, passes)
        names = _without_samples(metrics, torch.zeros(metrics.width, dtype=torch.float64))
        key = pass_.key.replace("val", "val_ema", 1) if averaged else pass_.key
        found += [f"{key}/{name}" for name in names if due[pass_.stage]]
    return found


def _without_samples(metrics: Any, *totals: torch.Tensor) -> dict[str, float]:
    """Return the results of `metrics.compute` for no samples: `totals` are zeros and the counts of `metrics` are still 0.

    Raise `ConfigError` if `compute` divides by zero, or if its results are not numbers or lack `loss`."""
    check_counts(metrics)
    try:
        results = check_results(metrics.compute(*totals, metrics.counts), metrics)
    except ArithmeticError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        fix = "compute is called once with totals of 0 before the training; return nan for a result without samples"
        raise ConfigError(f"{frame.filename}:{frame.lineno}: {error}; {fix}") from None
    if "loss" not in results:
        raise ConfigError(f"{class_name(type(metrics))}.compute must return 'loss' among its results")
    return results
