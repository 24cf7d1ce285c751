"""Collect rows of metrics and the data of progress reports from the parts of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from linnaeus.health import Alarm
from linnaeus.reporting.performance.throughput import Costs, peak_flops, unknown_peak, utilisation
from linnaeus.reporting.terminal.progress_report import ReportData
from linnaeus.schedule.length import validation_samples
from linnaeus.train.measuring.health import raise_alarms
from linnaeus.train.measuring.model_flops import FlopsOfRun
from linnaeus.train.measuring.timings import memory_now, reading, shared_memory, timings
from linnaeus.train.state import Training

log = logging.getLogger("linnaeus")

# -- rows of metrics -----------------------------------------------------------------------------------------------------------


def training_row(t: Training, peek: bool = False) -> dict[str, float]:
    """Return the mean losses and metrics since the last row, gradient norm, learning rate and task weights. This waits for the device.

    peek: True for a report between two rows: the means are not reset."""
    rate = t.lr.at(t.progress.global_step - 1)
    return t.step_logger.row(rate, t.update.grad_norm, t.weighting.weights, t.update.skipped_updates, peek)


def metrics_row(t: Training) -> dict[str, float]:
    """Return the row of metrics at this step: all of `training_row`, and entries for progress, gradient conflict, growth and the
    curriculum. This waits for the device."""
    row = training_row(t) | {
        "progress/epoch": t.progress.global_step / t.sampler.steps_per_epoch,
        "progress/fraction": t.progress.get_progress_fraction(),
        "progress/samples_seen": t.progress.samples_seen,
        "progress/drift": t.checker.drift(t.progress.global_step),
    }
    if t.workload.units is not None:
        row[f"progress/{t.workload.units[0]}_seen"] = t.progress.units_seen
    row |= t.conflict.row()
    row |= t.growth.row() if t.growth is not None else {}
    return row | curriculum_numbers(t)


def curriculum_numbers(t: Training) -> dict[str, float]:
    """Return the values of the curriculum at the last update; before the first update, the values for the first update. Return {} without
    curriculum phases.

    The keys are `phase/lr_multiplier`, `phase/mixture/<source>` (fraction of the samples that come from a data source) and
    `phase/dimension/<name>` (weight of a named part of the model, see `Workload.dimensions`)."""
    phases, step = t.ops.resolved.phases, max(0, t.progress.global_step - 1)
    if phases is None:
        return {}
    rows = {"phase/lr_multiplier": phases.lr_multiplier(step)}
    sources, dimensions = t.workload.sources, t.workload.dimensions
    if sources:
        mixture = t.ops.get_mixture(np.array([step]), sources, t.workload.source_sizes)[0]
        rows |= {f"phase/mixture/{name}": share for name, share in zip(sources, mixture.tolist(), strict=True)}
    if dimensions:
        weights = t.ops.get_dimension_weights(np.array([step]), dimensions)[0]
        rows |= {f"phase/dimension/{name}": weight for name, weight in zip(dimensions, weights.tolist(), strict=True)}
    return rows


# -- progress reports ----------------------------------------------------------------------------------------------------------


def start_reports(t: Training, costs: Mapping[str, Any] | None = None) -> None:
    """Prepare the progress reports. Call this after the run is restored. Do nothing on ranks other than 0.

    Compute the steps of all validation passes and checkpoints, for the estimate of the time left, and restart the measurement of
    throughput. For a new run with `schedule.report`, make the report at 0 %. costs: fields of the object `Costs` that the last launch saved
    in its checkpoint; None without a checkpoint."""
    reports = t.output.reports
    if reports.file is None:
        return
    reports.planned = _planned_steps(t)
    reports.earlier = Costs(**(costs or {})).on(t.context.world_size)
    reports.pass_samples = validation_samples(t.config, len(t.workload.validation_set))
    t.flops = FlopsOfRun() if device_peak(t) is not None or t.config.profile is not None else None
    if t.flops is not None:
        t.flops.start(t)
    if t.device.type == "cuda" and device_peak(t) is None:  # not on a CPU, where nearly every run would have this line
        tf32 = t.config.trainer.precision == "float32" and torch.backends.cuda.matmul.allow_tf32
        precision = t.config.trainer.precision + " with TF32" * tf32
        log.info("MFU unknown: %s", unknown_peak(torch.cuda.get_device_name(t.device), precision))
    restart_throughput(t)
    t.output.display.start(t.progress.global_step)
    t.output.display.results(t.tracker.last_step, t.tracker.final, t.workload.tasks)
    if t.progress.global_step == 0 and reports.rows == 0 and t.config.schedule.report:  # otherwise the report of 0 % exists already
        with reports.timed():
            reports.report(report_data(t, {"train/lr": t.lr.at(0)}, memory_now(t.device)), keep=True)


def restart_throughput(t: Training) -> None:
    """Restart the measurement of throughput and of the wait for data at the current step. Before that, count the operations of the model if
    the MFU or a profile needs them."""
    if t.flops is not None:
        t.flops.of_last_update(t)
    t.output.reports.throughput.restart(reading(t))
    if t.output.reports.file is not None:
        t.data_wait.start(t.clock.training(), t.progress.global_step)


def report_progress(t: Training) -> None:
    """Show and write the progress report of this step, raise the alarms about times and memory, and write the row of timings.

    If a row of metrics is pending (from a step with validation), the report shows the metrics of that row, otherwise those of the newest
    row."""
    reports, step, resolved = t.output.reports, t.progress.global_step, t.ops.resolved
    with reports.timed():
        pending, reports.pending = reports.pending, None
        clocks = timings(t)
        if reports.file is not None:
            reports.throughput.update(reading(t))
            clocks |= _recent(t) | reports.update_times(t.clock.updates.take()) | memory_now(t.device)
            clocks |= t.ranks.rows() | shared_memory(t) if resolved.report.due(step) else {}
            clocks |= time_left(t, clocks, validated=pending is not None)
            keep = pending is not None or resolved.report.due(step)
            reports.report(report_data(t, t.output.last_row if pending is None else pending, clocks), keep)
            if t.config.logger.alarms:
                raise_alarms(t, measured_alarms(t, clocks))
        t.output.sinks.log(step, clocks, "timings")


def measured_alarms(t: Training, clocks: Mapping[str, float]) -> list[Alarm]:
    """Return the alarms about times and memory at this report (see `health.alarm.MEASURED`). Call this on rank 0, after
    `RankReport.collect`.

    A report due by wall time is made by rank 0 alone, so only the share of the time that rank 0 waits for data is checked then. clocks: row
    of timings at this report."""
    step, resolved, workers = t.progress.global_step, t.ops.resolved, t.config.trainer.num_workers
    due = resolved.report.due(step)
    if not due and not resolved.report.seconds:
        return []
    share, rank = t.ranks.waiting() if due else (clocks.get("recent/waiting_for_data", 0.0), 0)
    named = rank if t.context.world_size > 1 else None
    wait = t.data_wait.report(share, named, t.clock.training(), step, workers, t.workload.faster_data)
    found = [*([wait] if wait is not None else []), *(t.ranks.alarms(step, resolved.last_step) if due else [])]
    if found:  # not for as long as the problem lasts: a slow machine may be slow for the whole run
        t.output.reports.newest_trouble = step
    return found


def time_left(t: Training, clocks: dict[str, float], validated: bool = False) -> dict[str, float]:
    """Return `time/eta_seconds`, the estimated seconds until the end of the run, and its parts `time/eta_validation_seconds` and
    `time/eta_saving_seconds`. A part without an estimate is left out.

    clocks: result of `timings`, merged with the result of `Throughput.rates`. validated: True if the validation passes of this step are
    done."""
    resolved, spent = t.ops.resolved, (t.clock.validating, t.clock.saving)
    step, intervals = t.progress.global_step, resolved.checkpoint.seconds
    return t.output.reports.time_left(clocks, step, resolved.last_step, *spent, intervals, validated)


def costs(t: Training) -> Costs:
    """Return the mean seconds of an update, of a validation pass and of a checkpoint; a value is None if unknown.

    Each checkpoint contains these costs, so that the next launch can estimate the time left."""
    update = t.output.reports.seconds_per_update(t.output.reports.throughput.rates(latest=reading(t)))
    return t.output.reports.costs(update, t.clock.validating, t.clock.saving, t.context.world_size)


def seconds_left(t: Training) -> tuple[float | None, bool]:
    """Return (estimated seconds until the end of the run, True if validation is included in the estimate). Return (None, True) before the
    second update of a launch."""
    rates = t.output.reports.throughput.rates(latest=reading(t))
    if not rates:
        return None, True
    left = time_left(t, timings(t) | rates)
    return left["time/eta_seconds"], "time/eta_validation_seconds" in left


def seconds_after_pass(t: Training) -> float | None:
    """Return the estimated seconds from the end of the current validation pass to the end of the run; None if there is no estimate."""
    rates, passes = t.output.reports.throughput.rates(latest=reading(t)), t.output.reports.passes
    if not rates:
        return None
    others = (len(t.progress.pending_validations) - 1) * t.clock.validating / max(passes, 1)
    return time_left(t, timings(t) | rates, validated=True)["time/eta_seconds"] + others


def report_data(t: Training, row: dict[str, Any], clocks: dict[str, float]) -> ReportData:
    """Return the data of a progress report at this step. row: row of metrics. clocks: times, throughput and memory, as in timings.jsonl."""
    more, units = _more_rows(t), t.workload.units
    parameters, trained = t.parameter_counts
    return ReportData(
        step=t.progress.global_step,
        total_steps=t.progress.expected_total_steps,
        steps_per_epoch=t.progress.steps_per_epoch,
        tasks=t.workload.tasks,
        row=row,
        samples=t.progress.samples_seen,
        units=(units[0], t.progress.units_seen) if units is not None else None,
        batch=(t.sampler.micro_batch_size, t.sampler.accumulation, t.context.world_size),
        any_processes=t.order.anywhere,
        parameters=parameters,
        active_parameters=more.pop("growth/active_parameters", None) or t.model.active_parameters() or trained,
        validated=t.tracker.last_step,
        validation=_validation(t),
        more=more,
        clocks=clocks,
    )


def _recent(t: Training) -> dict[str, float]:
    """Return the throughput and the MFU over the last reports, and the HFU if activation checkpointing repeats operations. Return {} before
    two readings. Leave out MFU and HFU if the peak FLOP/s of the device or the number of operations is unknown."""
    rates = t.output.reports.throughput.rates(t.workload.units[0] if t.workload.units is not None else None)
    peak = device_peak(t)
    flops = None if t.flops is None else t.flops.of_last_update(t)
    if rates and flops is not None and peak is not None:
        speed = rates["recent/samples_per_second"], peak, t.context.world_size
        rates["recent/mfu"] = utilisation(flops.per_sample, *speed)
        if flops.repeated:
            rates["recent/hfu"] = utilisation(flops.executed, *speed)
    return rates


def device_peak(t: Training) -> float | None:
    """Return the peak FLOP/s of the device at the precision of the run: `logger.peak_tflops` x 10^12 if this is set, otherwise the maker's
    figure for the GPU.

    If `logger.peak_tflops` is not set, return None on the CPU, for a GPU or precision without a figure, and for float32 with TF32."""
    configured, precision = t.config.logger.peak_tflops, t.config.trainer.precision
    if configured is not None:
        return configured * 1e12
    if t.device.type != "cuda" or (precision == "float32" and torch.backends.cuda.matmul.allow_tf32):
        return None
    return peak_flops(torch.cuda.get_device_name(t.device), precision)


def _more_rows(t: Training) -> dict[str, Any]:
    """Return name -> value of the further entries of a report: phase and numbers of the curriculum, `Workload.report_rows`, and growth of
    the model. Parts that the run does not use are left out."""
    phases, rows = t.ops.resolved.phases, dict[str, Any]()
    if phases is not None:
        name, description = phases.at(max(0, t.progress.global_step - 1))
        rows |= {"phase": name, "phase/description": description} | curriculum_numbers(t)
    rows |= t.workload.report_rows(t.model, t.progress.global_step)
    return rows | (t.growth.row() if t.growth is not None else {})


def _validation(t: Training) -> dict[str, float]:
    """Return metric key -> newest value, for the loss of each validation pass and for the metrics in `Workload.report_metrics`."""
    shown = {"loss", *t.workload.report_metrics}
    return {name: value for name, value in t.tracker.final.items() if name.partition("/")[2] in shown}


def _planned_steps(t: Training) -> tuple[list[int], list[int]]:
    """Return (steps of all validation passes, steps of all checkpoints), both sorted, for the estimate of the time left.

    A step with several passes occurs once for each pass. A step with validation has two checkpoints, before and after its passes."""
    r = t.ops.resolved
    plain = [step for every in (r.validate, r.validate_mask_meta) for step in every.steps()]
    partial = [step for step in r.validate_partial_mask_meta.steps() for _ in t.ops.partial_validations_due(step)]
    validated = set(plain) | set(partial)
    saves = [step for step in r.checkpoint.steps() if step not in validated]
    return sorted(plain + partial), sorted([*saves, *validated, *validated])
