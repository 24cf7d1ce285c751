"""End each step: the only module that logs, saves, validates or stops.

At the end of most steps nothing is due. Otherwise the due actions are done in this order, on which a resume depends: write the training
row, add due validation passes to the pending ones, report, check for a stop, save, run the validation passes and apply their results, save.
The report of the last step comes after its validation passes. Which actions are due is a function of `global_step`, so a resumed run does
the same. After an alarm, rows and reports are due more often; the state of the alarms is in the checkpoint."""

from __future__ import annotations

import logging

from linnaeus.errors import counted
from linnaeus.progress import TrainingStage
from linnaeus.progress.consistency import FRACTIONS
from linnaeus.reporting.formatting import format_duration, format_loss
from linnaeus.train import saving
from linnaeus.train.measuring import readings
from linnaeus.train.measuring.health import check_health
from linnaeus.train.state import Training
from linnaeus.train.validation import run_pending_validations

log = logging.getLogger("linnaeus")


def end_step(t: Training) -> None:
    """Log, save, validate and stop: each only if due at the step just reached. If `t.run.running` is True afterwards, training
    continues."""
    if t.sync.data_unreadable:  # no update was made since the last step end, so nothing else is due
        interrupt_for_unreadable_data(t)
        return
    step = t.progress.global_step
    if step < t.next_due and not due_by_request_or_clock(t):
        return
    if step == t.first_step + 1:  # the first update compiles and allocates: measure throughput from here on
        readings.restart_throughput(t)
        log_start_times(t)
        if t.compilation is not None:
            t.compilation.first_update()
    alarms, dense = t.health.count, t.ops.dense_due(step, t.health.newest_trouble)  # the same on all ranks, and after a resume
    if t.ops.should_log_metrics(step) or dense:
        log_metrics(t)
    schedule_due_validations(t)
    shown = dense or t.health.count > alarms or t.ops.dense_due(step, t.output.reports.newest_trouble)
    if t.ops.should_report(step) or shown:
        report(t)
    if t.output.display.due():  # after the report, because the panel shows it
        t.output.display.update(step, *readings.seconds_left(t))
    for mark in FRACTIONS:
        if t.progress.is_fraction_point(mark):
            log.debug("%.0f%% of the run is done at step %d", 100 * mark, t.checker.calculate_expected_fractions()[mark])
            notify_milestone(t, f"{100 * mark:.0f} %")
    check_stop(t)
    pending = t.progress.has_pending_validations()
    if t.ops.should_save_checkpoint(step, t.sync.save_agreed) or pending or not t.run.running:
        check_skipped_updates(t)
        saving.save(t)
    if pending and not t.run.interrupted:  # interrupted: the checkpoint contains the pending passes
        run_pending_validations(t)
        if not t.run.interrupted:  # interrupted in a pass: the run resumes from the checkpoint before it
            saving.save(t)
    t.next_due = next_due(t)  # last: rows and validations may have raised alarms, after which rows are denser


def next_due(t: Training) -> int:
    """Return the first later step that has an event of the schedule, a row or report because something is wrong, or a milestone (25, 50 or
    75 % of the run). Events due by wall time or by a request are not considered."""
    step = t.progress.global_step
    marks = t.checker.calculate_expected_fractions().values()
    dense = (t.ops.next_dense(step, trouble) for trouble in (t.health.newest_trouble, t.output.reports.newest_trouble))
    return min([t.ops.next_event(step), *(mark for mark in marks if mark > step), *(found for found in dense if found is not None)])


def due_by_request_or_clock(t: Training) -> bool:
    """Return True if a stop, a checkpoint, a report or a redraw of the panel is due now because of a request or the wall time, at any
    step."""
    clocks = t.sync.save_agreed or t.ops.report_due_by_clock() or t.output.display.due()
    return clocks or t.sync.stop_requested() or not t.run.running


def log_start_times(t: Training) -> None:
    """Log the times of the parts of this start: on the console for a continued run, where they are the cost of the interruption, otherwise
    in train.log only."""
    if t.start_times is not None:
        log.log(logging.INFO if t.first_step else logging.DEBUG, t.start_times.line(t.clock.compiling))
        t.start_times = None


def notify_milestone(t: Training, name: str) -> None:
    """Send a notification with the milestone `name` (such as `50 %`), the step, the loss of the newest row of metrics and the time left.
    Do nothing without notifications."""
    if t.output.notifier.active:
        loss, (left, _) = t.output.last_row.get("train/loss"), readings.seconds_left(t)
        facts = [f"{name} at step {t.progress.global_step:,}"]
        facts += [] if loss is None else [f"loss {format_loss(loss)}"]
        facts += [] if left is None else [f"{format_duration(left)} left"]
        t.output.notifier.milestone(name, ", ".join(facts))


def schedule_due_validations(t: Training) -> None:
    """Add the validation passes that are due at this step to the pending ones."""
    step, ops = t.progress.global_step, t.ops
    if ops.should_validate(step):
        t.progress.schedule_validation(TrainingStage.VALIDATION_NORMAL)
    if ops.should_validate_mask_meta(step):
        t.progress.schedule_validation(TrainingStage.VALIDATION_MASK_META)
    if ops.should_validate_partial_mask_meta(step):
        for index in ops.partial_validations_due(step):
            t.progress.schedule_validation(TrainingStage.VALIDATION_PARTIAL_MASK_META, index)


def log_metrics(t: Training) -> None:
    """Write the row of metrics of this step. Stop the run if the learning rate or the gradient norm has reached a limit of
    `schedule.early_stop`.

    Raise `FloatingPointError` after too many skipped updates in a row."""
    step, row = t.progress.global_step, readings.metrics_row(t)
    row |= check_health(t, row)
    t.output.row(step, row)
    t.clipped.add(row["train/grad_norm"], t.config.trainer.max_grad_norm)
    t.run.stop(t.ops.should_stop_early(step, learning_rate=row["train/lr"], grad_norm=row["train/grad_norm"]))
    check_skipped_updates(t)


def report(t: Training) -> None:
    """Print and write the progress report. If validation passes are pending at the last step, defer the report until they are done."""
    step = t.progress.global_step
    if t.ops.resolved.report.due(step):  # on all ranks alike; a report due by rank 0's clock shows the newest row
        with t.output.reports.timed():
            t.ranks.collect(t)
            t.output.last_row |= readings.training_row(t, peek=True) if t.tracker.updates else {}
    if step == t.ops.resolved.last_step and t.progress.has_pending_validations():
        t.output.reports.defer(t.output.last_row)
    else:
        readings.report_progress(t)


def check_stop(t: Training) -> None:
    """Stop the run because of `schedule.early_stop.max_steps`, or interrupt it because of a signal or the time limit. At the same step, do
    both."""
    if not t.run.running:
        return
    t.run.stop(t.ops.should_stop_early(t.progress.global_step))
    if t.sync.stop_requested():
        t.run.interrupt(t.sync.interruption_reason())


def check_skipped_updates(t: Training) -> None:
    """Raise `FloatingPointError` after too many skipped updates in a row.

    This waits for the device: call it only with log rows and checkpoints."""
    in_a_row, step = t.update.skipped_in_a_row, t.progress.global_step
    if in_a_row >= min(t.config.trainer.max_skipped_in_a_row, t.progress.expected_total_steps):
        raise FloatingPointError(
            f"{counted(in_a_row, 'update')} in a row up to step {step} skipped as non-finite (trainer.max_skipped_in_a_row): "
            "lower optimizer.lr or trainer.max_grad_norm, or check the data of these batches"
        )


def interrupt_for_unreadable_data(t: Training) -> None:
    """Save a checkpoint, unless there is one of this step, and log the reason. The same command continues once the data can be read."""
    if t.context.is_master:
        log.error("stopping: %s", t.run.reason)
    if t.output.saved_step != t.progress.global_step:
        saving.save(t)
