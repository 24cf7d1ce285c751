"""The end of a run: the last validations, the summary, the report, and a clear record when it fails."""

from __future__ import annotations

import logging
from typing import Any

from linnaeus.distributed.signals import StoppedBeforeTraining
from linnaeus.distributed.watchdog import ProcessLost, is_broken_link
from linnaeus.errors import RunFailed
from linnaeus.train import readings, saving
from linnaeus.train.outputs import log_write_errors
from linnaeus.train.state import INTERRUPTED, Training
from linnaeus.train.validation import run_pending_validations, schedule_final_validations

log = logging.getLogger("linnaeus")


def final_validations(t: Training) -> None:
    """Run the passes that belong to the end of the run, after an early stop. The last step of the schedule has them already."""
    schedule_final_validations(t)
    if t.progress.has_pending_validations():
        saving.save(t)
        run_pending_validations(t)
        if not t.run.interrupted:
            saving.save(t)


def finish(t: Training) -> str:
    """Wait for the last checkpoint, write the summary and the report, print the result. Return the status of summary.json. Raise
    `CheckpointNotWritten` on every rank when the end of the run could not be saved."""
    t.watchdog.doing = "finishing"
    t.watchdog.be_patient()
    saving.settle(t)
    if t.run.interrupted:
        status = INTERRUPTED
        log.info("stopped at step %d (%s); the same command continues", t.progress.global_step, t.run.reason)
    else:
        status = "finished" if t.run.running else "stopped_early"
        if t.run.stopped:
            log.info("stopped early: %s", t.run.reason)
    skipped = int(t.update.skipped_updates)
    if skipped:
        log.warning("%d of %d updates were skipped as non-finite", skipped, t.progress.global_step)
    write_lost_results(t)
    t.output.sinks.log_timings(t.progress.global_step, readings.timings(t))
    try:
        write_summary(t, status, **t.run.record)
    except OSError as error:
        raise RunFailed(f"summary.json could not be written ({error.strerror}); all else is saved, the same command writes it") from None
    if t.context.is_master and status != INTERRUPTED:
        final = t.tracker.final
        for line in t.workload.summary(final):
            log.info(line)
        t.output.write_report(t.workload.report_sections(final))
    t.context.barrier()  # some launchers end the others when a process leaves: not before rank 0 has written its last file
    return status


def write_summary(t: Training, status: str, **values: Any) -> None:
    """Write summary.json with the best and final metrics and the timings of the run."""
    numbers = readings.timings(t)
    t.output.summary(
        status,
        t.progress.global_step,
        best=t.tracker.best,
        final=t.tracker.final,
        samples_per_second=numbers["time/samples_per_second"],
        wall_seconds=numbers["time/wall_seconds"],
        total_steps=t.progress.expected_total_steps,
        timings=numbers,
        **values,
    )


def write_lost_results(t: Training) -> None:
    """Write the results of the last step again where a finished run has lost the files. They are in its checkpoint."""
    step, results = t.progress.global_step, t.tracker.last
    if t.output.directory.missing and t.tracker.last_step == step:
        weights = saving.weights_hash(t)
        for prefix in dict.fromkeys(name.partition("/")[0] for name in results):
            key = prefix.replace("val_ema", "val", 1)
            if t.output.validation_result(step, key, weights) is None:
                t.output.write_validation(step, key, {n: v for n, v in results.items() if n.startswith(f"{prefix}/")}, weights)


def close(t: Training) -> None:
    """Stop loader workers and the watchdog, and close files."""
    t.watchdog.stop()
    for loader in (t.train_loader, t.validation_loader):
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()
    if hasattr(t, "output"):
        t.output.close()


def record_failure(t: Training, error: BaseException) -> None:
    """Write `failed` to summary.json with the reason in one line, or `interrupted` for a request to stop. Raise `ProcessLost` when
    `error` only says that another process has gone."""
    if not hasattr(t, "output"):
        return
    summary = t.output.directory.path / "summary.json"
    if isinstance(error, StoppedBeforeTraining):
        with log_write_errors(summary):
            record_end(t, INTERRUPTED, stop_reason=INTERRUPTED, interrupted_by=str(error))
        return
    t.watchdog.last_words(error)
    cause = t.watchdog.explain() if is_broken_link(error) else None
    reason = cause or " ".join(f"{type(error).__name__}: {error}".split())[:500]
    with log_write_errors(summary):
        record_end(t, "failed", error=reason)
    if cause is not None:
        log.error(cause)  # to train.log: the exception goes to the console of a process that its launcher may be ending
        raise ProcessLost(f"{cause}. The same command continues from the last checkpoint") from None


def record_end(t: Training, status: str, **values: str) -> None:
    """Write the end to summary.json; an end before anything was restored keeps the numbers that are there."""
    if t.output.resumed:
        write_summary(t, status, **values)
    elif t.context.is_master:
        t.output.mark(status, None, **values)
