"""The end of a run: what validation is still owed, the summary, the report, and a clear record when it fails."""

from __future__ import annotations

import logging

from linnaeus.config.errors import RunFailed
from linnaeus.engine.outputs import told_if_unwritten
from linnaeus.engine.stopping import StoppedBeforeTraining
from linnaeus.engine.training import Training
from linnaeus.engine.validation import run_pending_validations
from linnaeus.engine.vitals import ProcessLost, is_broken_link

log = logging.getLogger("linnaeus")


def final_validations(t: Training) -> None:
    """After an early stop, the passes that belong to the end; nothing where the schedule foresaw this step as the last."""
    for stage, index in t.ops.passes_at_end():
        t.progress.schedule_validation(stage, index)
    if t.progress.has_pending_validations():
        t.output.save(t)
        run_pending_validations(t)
        if t.stop_reason != "interrupted":
            t.output.save(t)


def finish(t: Training) -> str:
    """Wait for the last checkpoint, write the summary and the report, print the result; returns the status. `CheckpointNotWritten`
    on every process when the end of the run could not be saved."""
    t.vitals.doing = "finishing"
    t.vitals.be_patient()
    t.output.settle(t)
    if t.stop_reason == "interrupted":
        status = "interrupted"
        log.info("stopped at step %d (%s); the same command continues", t.progress.global_step, t.interrupted_by)
    else:
        status = "finished" if t.stop_reason is None else "stopped_early"
        if t.stop_reason is not None:
            log.info("stopped early: %s", t.stop_reason)
    skipped = int(t.update.skipped_updates)
    if skipped:
        log.warning("%d of %d updates were skipped as non-finite", skipped, t.progress.global_step)
    write_lost_results(t)
    t.output.timings(t)
    try:
        t.output.summary(t, status, stop_reason=t.stop_reason, interrupted_by=t.interrupted_by)
    except OSError as error:
        raise RunFailed(f"summary.json could not be written ({error.strerror}); all else is saved, the same command writes it") from None
    if t.context.is_master and status != "interrupted":
        final = t.tracker.final
        for line in t.workload.summary(final):
            log.info(line)
        t.output.write_report(t)
    t.context.barrier()  # some launchers end the others when a process leaves: not before rank 0 has written its last file
    return status


def write_lost_results(t: Training) -> None:
    """The results of the last step that a finished run has lost: they are in its checkpoint, nothing is measured again."""
    step, results = t.progress.global_step, t.tracker.last
    if t.output.directory.owed and t.tracker.last_step == step:
        weights = t.output.weights_hash(t)
        for prefix in dict.fromkeys(name.partition("/")[0] for name in results):
            key = prefix.replace("val_ema", "val", 1)
            if t.output.validation_result(step, key, weights) is None:
                t.output.write_validation(step, key, {n: v for n, v in results.items() if n.startswith(f"{prefix}/")}, weights)


def close(t: Training) -> None:
    """Stop loader workers and close files; a run leaves no process behind."""
    t.vitals.stop()
    for loader in (t.train_loader, t.validation_loader):
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()
    if hasattr(t, "output"):
        t.output.close()


def record_failure(t: Training, error: BaseException) -> None:
    """`failed` in summary.json with the reason in one line, `interrupted` when it was only a request to stop. Raises `ProcessLost`
    when `error` says no more than that another process is gone."""
    if not hasattr(t, "output"):
        return
    unwritten = told_if_unwritten(t.output.directory.path / "summary.json")
    if isinstance(error, StoppedBeforeTraining):
        with unwritten:
            record(t, "interrupted", stop_reason="interrupted", interrupted_by=str(error))
        return
    t.vitals.last_words(error)
    cause = t.vitals.explain() if is_broken_link(error) else None
    reason = cause or " ".join(f"{type(error).__name__}: {error}".split())[:500]
    with unwritten:
        record(t, "failed", error=reason)
    if cause is not None:
        log.error(cause)  # to train.log: what is raised goes to the console of a process that its launcher may be ending
        raise ProcessLost(f"{cause}. The same command continues from the last checkpoint") from None


def record(t: Training, status: str, **more: str) -> None:
    """The end in summary.json, of which an end before anything was restored keeps the numbers."""
    if t.output.begun:
        t.output.summary(t, status, **more)
    elif t.context.is_master:
        t.output.mark(status, None, **more)
