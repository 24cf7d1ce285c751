"""What happens between two updates, the only place that logs, saves, validates, agrees on flags or stops.

The order is fixed, and a resume relies on it: training row, report, pending validations written down and saved, passes run and their
results taken once, checkpoint, stop; at the last step the report waits until the results are taken. Everything due is a function of
`global_step`, so it happens again alike after a resume.
"""

from __future__ import annotations

import logging

from linnaeus.engine.agreement import SAVE, STOPS, UNREADABLE, why_interrupted
from linnaeus.engine.curriculum import curriculum_numbers
from linnaeus.engine.training import Training
from linnaeus.engine.validation import run_pending_validations, schedule_due_validations
from linnaeus.progress.consistency import FRACTIONS

log = logging.getLogger("linnaeus")


def at_step_boundary(t: Training) -> None:
    """Do what is due at the step just reached; sets `t.stop_reason` when training must end here."""
    if UNREADABLE in t.agreed:  # no update was made: all that was due at this step has been done
        stop_for_unreadable_data(t)
        return
    step = t.progress.global_step
    if step == t.first_step + 1:
        t.output.reports.first_update(t)
    t.output.display.update(step)
    if t.ops.should_log_metrics(step):
        log_training(t)
    schedule_due_validations(t)
    if t.ops.should_report(step):
        report(t)
    for mark in FRACTIONS:
        if t.progress.is_fraction_point(mark):
            log.info("%.0f%% of the run is done at step %d", 100 * mark, t.checker.calculate_expected_fractions()[mark])
    t.stop_reason = t.stop_reason or why_to_stop(t)
    owed = t.progress.has_pending_validations()
    if t.ops.should_save_checkpoint(step, SAVE in t.agreed) or owed or t.stop_reason is not None:
        stop_where_all_is_skipped(t)
        t.output.save(t)
    if owed and t.stop_reason != "interrupted":  # then they are written down as owed, and run after the restart
        run_pending_validations(t)
        if t.stop_reason != "interrupted":  # in a pass: the checkpoint before it stands
            t.output.save(t)


def log_training(t: Training) -> None:
    """The row of this step, to every sink."""
    step = t.progress.global_step
    row = training_row(t) | {
        "progress/epoch": t.progress.global_step / t.sampler.steps_per_epoch,
        "progress/fraction": t.progress.get_progress_fraction(),
        "progress/samples_seen": t.progress.samples_seen,
        "progress/drift": t.checker.drift(step),
    }
    if t.units is not None:
        row[f"progress/{t.units[0]}_seen"] = t.progress.units_seen
    row |= t.conflict.row()
    row |= t.growth.row() if t.growth is not None else {}
    t.output.row(t, row | curriculum_numbers(t))
    rate, norm = row["train/lr"], row["train/grad_norm"]
    t.stop_reason = t.stop_reason or t.ops.should_stop_early(step, learning_rate=rate, grad_norm=norm)
    stop_where_all_is_skipped(t)


def report(t: Training) -> None:
    """Show where the run stands, at the last step once its validation passes are made."""
    step = t.progress.global_step
    if t.ops.resolved.report.due(step) and t.tracker.updates:  # by the clock only rank 0 reports, with the newest row
        with t.output.reports.reporter.timed():
            t.output.last_row |= training_row(t, look=True)
    if step == t.ops.resolved.last_step and t.progress.has_pending_validations():
        t.output.reports.owe(t.output.last_row)
    else:
        t.output.report(t)


def training_row(t: Training, look: bool = False) -> dict[str, float]:
    """Means since the last row and the state of the optimizer: the one place on the step path that reads the device. With `look`
    the means go on, for a report between two rows."""
    base_lr = t.optimizers.base_lr * t.lr.scale(t.progress.global_step - 1)
    return t.step_logger.row(base_lr, t.update.grad_norm, t.weighting.weights, t.update.skipped_updates, look)


def stop_where_all_is_skipped(t: Training) -> None:
    """FloatingPointError after too many updates in a row that were not finite. Reads the device: at log boundaries, and before
    what would take a run that moves no more for a sound one."""
    in_a_row, step = int(t.update.skipped_in_a_row), t.progress.global_step
    if in_a_row >= min(t.config.trainer.max_skipped_in_a_row, t.progress.expected_total_steps):
        raise FloatingPointError(
            f"the last {in_a_row} updates up to step {step} were skipped as non-finite (trainer.max_skipped_in_a_row): "
            "lower optimizer.lr or trainer.clip_norm, or look for bad data in the batches there"
        )


def why_to_stop(t: Training) -> str | None:
    """`interrupted` when a signal or the time limit asks for it; the reason of an early stop; None to go on."""
    asked = t.agreed & STOPS or (t.context.world_size == 1 and (t.stop.signal is not None or t.stop.out_of_time()))
    if asked:
        t.interrupted_by = why_interrupted(t)
        return "interrupted"
    return t.ops.should_stop_early(t.progress.global_step)


def stop_for_unreadable_data(t: Training) -> None:
    """A file that may be readable later: save what has been trained and stop, so that the same command continues."""
    if t.context.is_master:
        log.error("stopping, %s", t.interrupted_by)
    t.stop_reason = "interrupted"
    if t.output.saved_step != t.progress.global_step:
        t.output.save(t)
