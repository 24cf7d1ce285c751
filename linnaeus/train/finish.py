"""Finish a run: run the final validations, write summary and report, and record a failure."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

from linnaeus.checkpoint import list_checkpoints
from linnaeus.config.environment import hide
from linnaeus.distributed import write_torchrun_error
from linnaeus.distributed.signals import StoppedBeforeTraining
from linnaeus.distributed.watchdog import ProcessLost, is_connection_error
from linnaeus.errors import RunFailed, counted
from linnaeus.progress import TrainingProgress
from linnaeus.reporting.terminal.console import RESULT
from linnaeus.reporting.terminal.ending import describe_end
from linnaeus.rundir.repeat import another_seed
from linnaeus.train import saving
from linnaeus.train.logged_errors import log_page_errors, log_write_errors
from linnaeus.train.measuring.timings import timings
from linnaeus.train.state import INTERRUPTED, Training
from linnaeus.train.validation import run_pending_validations, schedule_final_validations

log = logging.getLogger("linnaeus")


def final_validations(t: Training) -> None:
    """For a run that stopped early: run the validation passes that are configured for the last step, with a checkpoint before and after
    them.

    Do nothing if these passes have already run at the current step."""
    schedule_final_validations(t)
    if t.progress.has_pending_validations():
        saving.save(t)
        run_pending_validations(t)
        if not t.run.interrupted:
            saving.save(t)


def finish(t: Training) -> str:
    """Wait for the last checkpoint, write summary.json and report.html, and log the result. Return the status in summary.json:
    `finished`, `stopped_early` or `interrupted`.

    Raise `CheckpointNotWritten` on every rank if the last checkpoint could not be written, `RunFailed` if summary.json could not."""
    t.watchdog.activity, t.watchdog.long_timeout = "finishing", True
    saving.settle(t)
    if t.run.interrupted:
        status = INTERRUPTED
        if (age := t.stop.signal_age) is not None:
            log.info("step %d was saved %.1f s after %s", t.progress.global_step, age, t.stop.signal)
        write_torchrun_error(stopped_text(t))
    else:
        status = "finished" if t.run.running else "stopped_early"
        if t.run.stopped:
            log.info("stopped early: %s", t.run.reason)
    skipped = t.update.skipped_updates
    if skipped:
        log.warning("%d of %d updates were skipped as non-finite", skipped, t.progress.global_step)
    if t.compilation is not None:
        t.compilation.finish()
    write_lost_results(t)
    if t.context.is_master:
        t.workload.finish()
    t.output.sinks.log(t.progress.global_step, timings(t), "timings")
    if status != INTERRUPTED:
        # before the summary: a run that counts as finished is not continued, so no later launch sends its rows
        t.output.sinks.close(status)
    try:
        write_summary(t, status, **t.run.record)
    except OSError as error:
        raise RunFailed(
            f"summary.json could not be written ({error.strerror}); the rest is saved, and the same command writes it"
        ) from None
    if t.context.is_master:
        show_result(t)
    t.context.barrier()  # some launchers kill the group when a process exits: wait until rank 0 has written its last file
    return status


def stopped_text(t: Training) -> str:
    """Return a line for the end of an interrupted run: the step, the reason, and that the same command continues the run."""
    return f"stopped at step {t.progress.global_step} ({t.run.reason}); the same command continues"


def show_result(t: Training) -> None:
    """Write report.html, log the tables of results to train.log, and print the result in a few lines."""
    final, path, step = t.tracker.final, t.output.directory.path, t.progress.global_step
    for line in t.workload.summary(final) if final else ():
        log.debug(line)
    if not final and not t.run.interrupted:
        log.info("nothing was validated: no validation was due, and schedule.validate_at_end is false")
    if final and not t.run.interrupted and t.config.logger.report:
        validated = t.ema.swapped_in(t.model) if t.ema is not None and t.config.trainer.ema_validate else contextlib.nullcontext()
        with log_page_errors(path / "validation"), validated:
            t.workload.save_examples(path, step, t.model)
    report = t.output.write_report()
    if t.run.interrupted:
        log.log(RESULT, stopped_text(t))
    files = ({"report": report} if report is not None else {}) | {"tables": path / "train.log"}
    again = another_seed(path, t.config.run.name, t.config.seed)
    commands = () if t.run.interrupted else (*t.workload.next_commands(path), again)
    for line in describe_end(t.workload.headline(final), final, timings(t), files, commands, step):
        log.log(RESULT, line)


def describe_loss(progress: TrainingProgress, checkpoints: Path) -> str:
    """Return a line with the newest checkpoint in the folder `checkpoints` and the number of later updates, which are lost if the process
    exits.

    A signal handler calls this just before the process exits."""
    step, steps = progress.global_step, [step for step, _ in list_checkpoints(checkpoints)]
    if not steps:
        return f"left at once, before the first checkpoint; lost: {counted(step, 'update')}"
    lost = f"; lost: {counted(step - steps[-1], 'update')}" if step > steps[-1] else ""
    return f"left at once; the newest checkpoint is step {steps[-1]}{lost}"


def write_summary(t: Training, status: str, **values: Any) -> None:
    """Write summary.json with `status`, the best and final metrics, the timings, and `values` as further entries."""
    numbers = timings(t)
    compiled = {} if t.compilation is None else {"compiled": t.compilation.summary()}
    t.output.summary(
        status,
        t.progress.global_step,
        best=t.tracker.best,
        final=t.tracker.final,
        samples_per_second=numbers.get("time/samples_per_second"),
        wall_seconds=numbers["time/wall_seconds"],
        total_steps=t.progress.expected_total_steps,
        timings=numbers,
        alarms=t.output.alarms.summary(),
        **compiled,
        **values,
    )


def write_lost_results(t: Training) -> None:
    """If files of a finished run are missing, write the missing files with validation results of this step again. Existing files are kept.

    The results come from `t.tracker`, which was restored from the checkpoint."""
    step, results = t.progress.global_step, t.tracker.last
    if t.output.directory.missing and t.tracker.last_step == step:
        weights = saving.weights_hash(t)
        for prefix in dict.fromkeys(name.partition("/")[0] for name in results):
            key = prefix.replace("val_ema", "val", 1)
            if t.output.validation_result(step, key, weights) is None:
                t.output.write_validation(step, key, {n: v for n, v in results.items() if n.startswith(f"{prefix}/")}, weights)


def close(t: Training) -> None:
    """Stop the watchdog, the timers and the loader workers, and close all files."""
    t.watchdog.stop()
    if t.sections is not None:
        t.sections.close()
    if t.workers is not None:
        t.workers.close()
    if hasattr(t, "output"):
        t.output.close()


def record_failure(t: Training, error: BaseException) -> None:
    """Record in summary.json that `error` ended the run: status `failed` with the reason, or `interrupted` for a request to stop.

    Do nothing if the files of the run are not open yet. If `error` only reports a broken connection and the watchdog finds the process that
    broke it, raise `ProcessLost`."""
    if not hasattr(t, "output"):
        return
    summary = t.output.directory.path / "summary.json"
    if isinstance(error, StoppedBeforeTraining):
        with log_write_errors(summary):
            record_end(t, INTERRUPTED, stop_reason=INTERRUPTED, interrupted_by=str(error))
        return
    t.watchdog.publish_error(error)
    cause = t.watchdog.find_cause() if is_connection_error(error) else None
    reason = cause or " ".join(f"{type(error).__name__}: {error}".split())[:500]
    write_torchrun_error(f"error: {hide(reason)}")
    with log_write_errors(summary):
        record_end(t, "failed", error=reason)
    if cause is not None:
        log.error(cause)  # to train.log: the launcher may kill this process before the exception is printed
        raise ProcessLost(f"{cause}. The same command continues from the last checkpoint") from None


def record_end(t: Training, status: str, **values: str) -> None:
    """Write `status` and `values` to summary.json, with the step and metrics of this run.

    If the run was not restored from its checkpoint yet, keep the step and metrics that summary.json already contains."""
    if t.output.resumed:
        write_summary(t, status, **values)
    elif t.context.is_master:
        t.output.mark(status, None, **values)
