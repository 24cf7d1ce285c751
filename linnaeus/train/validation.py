"""Validation passes: the same number to the last digit on any number of processes.

Whole batches are dealt out, batch b to process b mod W. The float64 sums of each batch go into a slot of its own; slots are
all-reduced (every slot has one writer, so nothing is rounded) and added in batch order. The model runs unwrapped, after its
buffers were broadcast from rank 0, so processes with different numbers of batches cannot hang.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import torch

from linnaeus.data.loader import DevicePrefetcher, build_loaders
from linnaeus.data.sampler import validation_batches
from linnaeus.errors import ConfigError
from linnaeus.progress import TrainingStage, ValidationPass
from linnaeus.schedule.resolved import PARTIAL
from linnaeus.train import readings, saving
from linnaeus.train.freezing import set_training
from linnaeus.train.state import Training

log = logging.getLogger("linnaeus")


STAGES = {  # event of the schedule -> stage
    "validate": TrainingStage.VALIDATION_NORMAL,
    "validate_mask_meta": TrainingStage.VALIDATION_MASK_META,
    PARTIAL: TrainingStage.VALIDATION_PARTIAL_MASK_META,
}


def schedule_due_validations(t: Training) -> None:
    """Schedule the passes that are due at this step."""
    step, ops = t.progress.global_step, t.ops
    if ops.should_validate(step):
        t.progress.schedule_validation(TrainingStage.VALIDATION_NORMAL)
    if ops.should_validate_mask_meta(step):
        t.progress.schedule_validation(TrainingStage.VALIDATION_MASK_META)
    if ops.should_validate_partial_mask_meta(step):
        for index in ops.partial_validations_due(step):
            t.progress.schedule_validation(TrainingStage.VALIDATION_PARTIAL_MASK_META, index)


def schedule_final_validations(t: Training) -> None:
    """Schedule the passes that belong to the last step of the run, for a run that stops before the schedule expected it."""
    for name, index in t.ops.passes_at_end():
        t.progress.schedule_validation(STAGES[name], index)


def find_pass(t: Training, stage: TrainingStage, index: int | None) -> ValidationPass:
    """Raises `ConfigError` for a pass that was owed under another configuration."""
    for which in t.passes:
        if which.stage == stage and which.partial_index == index:
            return which
    raise ConfigError(f"schedule.partial_combinations has no entry {index} any more, but its validation is still owed; put it back")


def run_pending_validations(t: Training) -> None:
    """Run each pending pass that has no result yet, write its result at once, and take the results of the step once all exist. A
    request to stop ends a pass early (the run is interrupted then): it and the later ones stay pending. After the passes comes the
    report that waited for them."""
    step = t.progress.global_step
    results: dict[str, float] = {}
    t.broadcast_buffers()
    weights = saving.weights_hash(t)
    for stage, index in list(t.progress.pending_validations):
        which = find_pass(t, stage, index)
        found = t.output.validation_result(step, which.key, weights)
        if found is None:
            t.watchdog.doing = which.key
            with t.clock.charge("validating"):
                t.progress.start_validation(stage, index)
                found = validate_with_partial_mask(t, which) if which.masked else validate_one_pass(t, which)
            if found is None:
                return
            t.output.write_validation(step, which.key, found, weights)
        t.progress.complete_validation(stage, index)
        t.output.row(step, found)
        t.output.show_validation(step, found)
        results |= found
    take_results(t, results)
    if t.output.reports.pending is not None:
        readings.report_progress(t)


def take_results(t: Training, results: dict[str, float]) -> None:
    """Best, plateau and early stopping see the results of a step exactly once."""
    schedule = t.config.schedule
    t.tracker.update_validation(t.progress.global_step, results, schedule.best_monitor, schedule.best_mode)
    t.lr.observe(results)
    t.run.stop(t.ops.should_stop_early(t.progress.global_step, results=results))
    monitored = results.get(schedule.early_stop.monitor)
    if t.early_stopping is not None and monitored is not None and t.early_stopping.check(monitored):
        t.run.stop(f"{schedule.early_stop.monitor} has not improved for {t.early_stopping.counter} validations")
    if t.config.debug.dump_metrics:
        t.output.dump_metrics(t.progress.global_step, t.tracker.dump_metrics_state())


def validate_with_partial_mask(t: Training, which: ValidationPass) -> dict[str, float] | None:
    """A pass with the metadata components `which.masked` masked for every sample."""
    return validate_one_pass(t, which)


def validate_one_pass(t: Training, which: ValidationPass) -> dict[str, float] | None:
    """Metrics of the whole validation set under one pass, keys prefixed with its name (`val_ema/...` for averaged weights); None
    when it was cut off."""
    batch = t.config.data.validation_batch
    mine = validation_batches(len(t.workload.validation_set), batch, t.context.rank, t.context.world_size)
    if t.validation_loader is None:
        t.validation_loader = build_loaders(
            t.workload.validation_set, mine, t.config.trainer.num_workers, t.config.trainer.prefetch, t.pin_memory
        )
    ema = t.ema if t.config.trainer.ema_validate else None
    t.broadcast_buffers()
    training_mode = t.model.training
    t.model.eval()
    with torch.inference_mode(), ema.swapped_in(t.model) if ema is not None else contextlib.nullcontext():
        metrics = _run_batches(t, mine, which.masked)
    set_training(t.model, training_mode)
    if metrics is None:
        return None
    prefix = which.key.replace("val", "val_ema", 1) if ema is not None else which.key
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def _run_batches(t: Training, mine: list[Any], masked: tuple[str, ...]) -> dict[str, float] | None:
    metrics = t.workload.metrics(training=False, device=t.device)
    batch_size = t.config.data.validation_batch
    number_of_batches = -(-len(t.workload.validation_set) // batch_size)
    slots = torch.zeros(number_of_batches, metrics.width, dtype=torch.float64, device=t.device)
    batches = zip(mine, DevicePrefetcher(t.validation_loader, t.device))
    t.sync.start_pass()
    trouble: OSError | None = None
    for _ in range(-(-number_of_batches // t.context.world_size)):
        try:
            item = next(batches, None) if trouble is None else None
        except OSError as error:
            item, trouble = None, error
        if t.sync.start_round(trouble is not None):
            _interrupt(t, trouble)
            return None
        t.watchdog.pulse += 1
        if item is None:  # the last round has no batch for everybody
            continue
        indices, (host, batch) = item
        t.workload.check_batch(host)
        batch = t.workload.prepare(batch, masked)
        with t.precision.autocast():
            outputs = t.model(batch)
        slots[indices[0].position // batch_size] = metrics.sums(outputs, batch)
        metrics.count(outputs, batch)
    if t.sync.finish_round():
        _interrupt(t, trouble)
        return None
    slots = t.context.all_reduce(slots).cpu()
    counts = {name: t.context.all_reduce(count) for name, count in metrics.counts.items()}
    total = torch.zeros(metrics.width, dtype=torch.float64)
    for slot in slots:  # in order, one by one: torch's own sum may split its work by the number of threads
        total += slot
    results = metrics.compute(total, counts)
    return results | metrics.compute_at_end(counts) if may_be_last(t) else results


def may_be_last(t: Training) -> bool:
    """Whether no validation need follow: at the end, or where the results of this one may bring it. The same again after a resume, for
    a step is validated from the state it was saved in."""
    stop, patience = t.config.schedule.early_stop, t.early_stopping
    at_end = not t.run.running or t.progress.global_step >= t.ops.resolved.last_step
    return at_end or stop.metric_bound is not None or (patience is not None and patience.counter + 1 >= patience.patience)


def _interrupt(t: Training, error: OSError | None) -> None:
    """End the pass early, on every rank alike. The checkpoint made before it holds the pass as pending."""
    t.run.interrupt(t.sync.interruption_reason(error))
    if t.sync.data_unreadable and t.context.is_master:
        log.error("stopping, %s", t.run.reason)
