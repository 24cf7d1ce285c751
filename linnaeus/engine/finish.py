"""The end of a run: what validation is still owed, the summary, the report, and a clear record when it fails."""

from __future__ import annotations

import logging

from linnaeus.engine.training import Training
from linnaeus.engine.validation import run_pending_validations

log = logging.getLogger("linnaeus")


def final_validations(t: Training) -> None:
    """After an early stop, the passes that belong to the end; nothing where the schedule foresaw this step as the last."""
    for stage, index in t.ops.passes_at_end():
        t.progress.schedule_validation(stage, index)
    if t.progress.has_pending_validations():
        t.output.save(t)
        run_pending_validations(t)
        t.output.save(t)


def finish(t: Training) -> str:
    """Write the summary and the report, print the result; returns the status."""
    if t.stop_reason == "interrupted":
        status = "interrupted"
        log.info("stopped at step %d on a signal; the same command continues", t.progress.global_step)
    else:
        status = "finished" if t.stop_reason is None else "stopped_early"
        if t.stop_reason is not None:
            log.info("stopped early: %s", t.stop_reason)
    skipped = int(t.update.skipped_updates)
    if skipped:
        log.warning("%d of %d updates were skipped as non-finite", skipped, t.progress.global_step)
    t.output.timings(t)
    t.output.summary(t, status, stop_reason=t.stop_reason)
    if t.context.is_master and status != "interrupted":
        final = t.tracker.final
        for line in t.workload.summary(final):
            log.info(line)
        t.output.write_report(t)
    t.context.barrier()  # some launchers end the others when a process leaves: not before rank 0 has written its last file
    return status


def close(t: Training) -> None:
    """Stop loader workers and close files; a run leaves no process behind."""
    for loader in (t.train_loader, t.validation_loader):
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()
    if hasattr(t, "output"):
        t.output.close()


def record_failure(t: Training, error: BaseException) -> None:
    """`failed` in summary.json with the reason in one line; the exception goes on."""
    if hasattr(t, "output"):
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        t.output.summary(t, "failed", error=reason)
