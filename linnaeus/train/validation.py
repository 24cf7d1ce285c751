"""Run validation passes. Results are the same to the last digit on any number of processes.

With W processes, process b mod W runs batch b. A tensor has a row for each batch, which contains the float64 sums of this batch. The tensor
is all-reduced, which does not round because only one process writes each row. Then the rows are added in the order of the batches. The
model runs without the DDP wrapper, after rank 0 has broadcast its buffers, so processes may run different numbers of batches."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from linnaeus.config.contracts import class_name
from linnaeus.data.loader import DevicePrefetcher, build_loaders
from linnaeus.data.sampler import ValidationBatches, validation_part
from linnaeus.errors import ConfigError, counted
from linnaeus.metrics.streaming import SAMPLES, Metrics
from linnaeus.progress import TrainingStage, ValidationPass
from linnaeus.schedule.length import validation_batch_size, validation_samples
from linnaeus.schedule.validation_passes import PARTIAL
from linnaeus.train import saving
from linnaeus.train.building.freezing import set_training
from linnaeus.train.measuring import readings
from linnaeus.train.measuring.health import check_validation
from linnaeus.train.state import Training

log = logging.getLogger("linnaeus")


@dataclass(frozen=True)
class PassTotals:
    """Sums and counts of a validation pass over all process ranks, from which `metrics` computes results.

    `prefix`: first part of the names of the results, such as `val` or `val_ema`."""

    prefix: str
    metrics: Metrics
    sums: torch.Tensor  # float64 [K] on the host
    counts: dict[str, torch.Tensor]

    def results(self, at_end: bool) -> dict[str, float]:
        """Return {name: value} of the metrics. With `at_end=True` also compute the metrics that are only measured at the end of a run."""
        found = self.metrics.compute(self.sums, self.counts)
        found |= self.metrics.compute_at_end(self.counts) if at_end else {}
        return {f"{self.prefix}/{name}": value.item() if isinstance(value, torch.Tensor) else value for name, value in found.items()}


STAGES = {  # event of the schedule -> stage
    "validate": TrainingStage.VALIDATION_NORMAL,
    "validate_mask_meta": TrainingStage.VALIDATION_MASK_META,
    PARTIAL: TrainingStage.VALIDATION_PARTIAL_MASK_META,
}


ShowBatches = Callable[[int], None]  # called with the number of batches done


def _show_nothing(done: int) -> None:
    pass


def schedule_final_validations(t: Training) -> None:
    """Add the validation passes that are configured for the last step to the pending ones, for a run that stops early. Passes that have
    already run at this step are not added."""
    for name, index in t.ops.passes_at_end():
        t.progress.schedule_validation(STAGES[name], index)


def find_pass(t: Training, stage: TrainingStage, index: int | None) -> ValidationPass:
    """Return the validation pass with the given stage and index. `index`: position in `schedule.partial_combinations`; None for other
    stages.

    Raise `ConfigError` if the pass was pending and a change of the configuration has since removed it."""
    for candidate in t.passes:
        if candidate.stage == stage and candidate.partial_index == index:
            return candidate
    raise ConfigError(f"schedule.partial_combinations does not have an entry {index}, but its validation is pending; restore the entry")


def run_pending_validations(t: Training) -> None:
    """Run each pending pass that has no result, and write its result. When all are complete, apply the results and write the deferred
    report.

    A request to stop ends a pass early and interrupts the run: this pass and the later ones stay pending."""
    step = t.progress.global_step
    results: dict[str, float] = {}
    t.broadcast_buffers()
    weights = saving.weights_hash(t)
    if t.tracker.last_step != step:  # a checkpoint between two passes: the results of the completed ones are not applied yet
        for completed in t.progress.completed_validations:
            results |= t.output.validation_result(step, find_pass(t, *completed).key, weights) or {}
    for stage, index in list(t.progress.pending_validations):
        pass_ = find_pass(t, stage, index)
        found = t.output.validation_result(step, pass_.key, weights)
        if found is None:
            t.watchdog.activity = pass_.key
            shown = t.output.display.validation(step, pass_.key, number_of_batches(t), readings.seconds_after_pass(t))
            with t.clock.measure("validating"), shown as show:
                t.progress.start_validation(stage, index)
                found = (validate_with_partial_mask if pass_.masked else validate_one_pass)(t, pass_, show)
            if found is None:
                return
            if t.compilation is not None:
                t.compilation.observe("validation", pass_.key)
            t.output.write_validation(step, pass_.key, found, weights)
        t.progress.complete_validation(stage, index)
        t.output.row(step, found)
        t.output.show_validation(step, pass_.key, found, t.workload.tasks)
        results |= found
    apply_results(t, results)
    if t.output.reports.pending is not None:
        readings.report_progress(t)


def apply_results(t: Training, results: dict[str, float]) -> None:
    """Update best metrics, the plateau schedule and early stopping with the results of all passes of a step.

    Called exactly once per step."""
    schedule = t.config.schedule
    step, monitor = t.progress.global_step, schedule.best_monitor
    if t.tracker.update_validation(step, results, monitor, schedule.best_mode):
        t.output.notifier.send("best", f"best {monitor} so far: {results[monitor]:.4g} at step {step:,}")
    check_validation(t, results)
    t.lr.observe(results)
    t.run.stop(t.ops.should_stop_early(t.progress.global_step, results=results))
    monitored = results.get(schedule.early_stop.monitor)
    if t.early_stopping is not None and monitored is not None and t.early_stopping.check(monitored):
        t.run.stop(f"{schedule.early_stop.monitor} has not improved for {counted(t.early_stopping.counter, 'validation')}")
    if t.config.debug.dump_metrics:
        t.output.dump_metrics(t.progress.global_step, t.tracker.dump_metrics_state())


def validate_with_partial_mask(t: Training, pass_: ValidationPass, show: ShowBatches = _show_nothing) -> dict[str, float] | None:
    """Run one validation pass in which the metadata components `pass_.masked` are masked for every sample. Return its metrics; None if the
    pass was interrupted."""
    return validate_one_pass(t, pass_, show)


def validate_one_pass(t: Training, pass_: ValidationPass, show: ShowBatches = _show_nothing) -> dict[str, float] | None:
    """Return the metrics of one validation pass; None if it was interrupted.

    Names begin with the key of the pass (`val/...`, or `val_ema/...` for averaged weights). `show` is called between batches, with the
    number of batches done. If this may be the last validation, add the metrics of the end of a run. Write the tables as CSV; the table of
    samples, which takes four times as long as the others, only if this may be the last validation."""
    totals, at_end = measure_pass(t, pass_, show), may_be_last(t)
    if totals is None:
        return None
    if t.context.is_master:  # before the result: a pass with a result is not run again
        tables = totals.metrics.tables(totals.sums, totals.counts)
        t.output.write_tables(t.progress.global_step, pass_.key, {name: rows for name, rows in tables.items() if at_end or name != SAMPLES})
    return totals.results(at_end)


def measure_pass(t: Training, pass_: ValidationPass, show: ShowBatches = _show_nothing) -> PassTotals | None:
    """Run a pass over the validation samples, with the averaged weights if `trainer.ema_validate`, and return its totals; None if it was
    interrupted. `show`: as in `validate_one_pass`."""
    batch = validation_batch_size(t.config)
    samples = validation_part(len(t.workload.validation_set), t.config.trainer.limit_validation_samples)
    own_batches = ValidationBatches(samples, batch, t.context.rank, t.context.world_size)
    if t.validation_loader is None:
        t.validation_loader = build_loaders(t.workload.validation_set, own_batches, t.workers, t.config.trainer.prefetch)
    ema = t.ema if t.config.trainer.ema_validate else None
    t.broadcast_buffers()
    training_mode = t.model.training
    t.model.eval()
    averaged = ema.swapped_in(t.model) if ema is not None else contextlib.nullcontext()
    with torch.inference_mode(), averaged:
        found = _run_batches(t, own_batches, pass_, show)
    set_training(t.model, training_mode)
    if found is None:
        return None
    return PassTotals(pass_.key.replace("val", "val_ema", 1) if ema is not None else pass_.key, *found)


def number_of_batches(t: Training) -> int:
    """Return the number of batches in a validation pass, over all ranks."""
    return -(-validation_samples(t.config, len(t.workload.validation_set)) // validation_batch_size(t.config))


def _run_batches(
    t: Training, own_batches: Sequence[Any], pass_: ValidationPass, show: ShowBatches
) -> tuple[Metrics, torch.Tensor, dict[str, torch.Tensor]] | None:
    """Run the validation batches of this rank, then add the results of all ranks.

    Return (metrics, float64 [K] sums of all ranks, name -> counts of all ranks); None if the pass was interrupted. Raise `ConfigError` if
    `Metrics.sums` does not return K = `Metrics.width` numbers."""
    metrics = t.workload.metrics(t.device)
    metrics.begin(pass_, t.passes)
    batch_size, batch_count = validation_batch_size(t.config), number_of_batches(t)
    slots = torch.zeros(batch_count, metrics.width, dtype=torch.float64, device=t.device)
    batches = zip(own_batches, DevicePrefetcher(t.validation_loader, t.device))
    t.sync.start_pass()
    error: OSError | None = None
    for done in range(0, batch_count, t.context.world_size):
        show(done)
        try:
            item = next(batches, None) if error is None else None
        except OSError as read_error:
            item, error = None, read_error
        if t.sync.start_round(error is not None):
            _interrupt(t, error)
            return None
        t.watchdog.heartbeats += 1
        if item is None:  # the last round may have fewer batches than ranks
            with t.precision.autocast():
                t.workload.join_prediction(t.model)
            continue
        indices, (host, batch) = item
        t.workload.check_batch(host)
        batch = t.workload.prepare(batch, pass_.masked)
        with t.precision.autocast():
            outputs = t.workload.predict(t.model, batch)
        sums = metrics.sums(outputs, batch)
        if sums.shape != (metrics.width,):  # addition would broadcast it
            raise ConfigError(
                f"{class_name(type(metrics))}.sums returns the shape {list(sums.shape)}; it must be [{metrics.width}], `width`"
            )
        slots[indices[0].position // batch_size] = sums
        metrics.count(outputs, batch)
    if t.sync.finish_round():
        _interrupt(t, error)
        return None
    slots = t.context.all_reduce(slots).cpu()
    counts = {name: t.context.all_reduce(count) for name, count in metrics.counts.items()}
    total = torch.zeros(metrics.width, dtype=torch.float64)
    for slot in slots:  # one by one: the order of additions in torch's sum depends on the number of threads
        total += slot
    return metrics, total, counts


def may_be_last(t: Training) -> bool:
    """Return True if this validation may be the last one: at the end of the run, or if its results can stop the run.

    The result is the same after a resume, because it depends only on state that the checkpoint before the passes contains."""
    stop, patience = t.config.schedule.early_stop, t.early_stopping
    at_end = not t.run.running or t.progress.global_step >= t.ops.resolved.last_step
    return at_end or stop.metric_bound is not None or (patience is not None and patience.counter + 1 >= patience.patience)


def _interrupt(t: Training, error: OSError | None) -> None:
    """Interrupt the run during a validation pass, on every rank alike. The checkpoint written before the pass lists this pass as
    pending."""
    t.run.interrupt(t.sync.interruption_reason(error))
    if t.sync.data_unreadable and t.context.is_master:
        log.error("stopping: %s", t.run.reason)
