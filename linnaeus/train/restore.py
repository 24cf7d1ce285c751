"""Restore a run from its newest checkpoint, and finish pending validations. A run without a checkpoint starts (`warm_start.py`)."""

from __future__ import annotations

import dataclasses
import logging
import socket
from typing import Any

from linnaeus.checkpoint import LoadedCheckpoint, ResumePoint, find_resume_point
from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.checkpoint.loading import CheckpointDamaged
from linnaeus.errors import ConfigError, counted
from linnaeus.reporting.plans.changes import describe_changes
from linnaeus.rundir import RunDirectory
from linnaeus.rundir.identity import config_difference
from linnaeus.schedule.length import given_micro_batch
from linnaeus.train import saving
from linnaeus.train.measuring.readings import start_reports
from linnaeus.train.state import INTERRUPTED, Training
from linnaeus.train.validation import run_pending_validations
from linnaeus.train.warm_start import warm_start
from linnaeus.weighting import check_continued_weights

log = logging.getLogger("linnaeus")


def restore(t: Training, weights: InitialWeights | None = None) -> None:
    """Load the checkpoint found by `find_point` into all parts. If there is none, start the run at step 0, with `weights` if given.

    Then remove rows and results of later steps, log the steps that move because of an allowed change of the configuration, and end the
    start-up time of the clock. Raise `ConfigError` if the checkpoint was written with other data or another model."""
    point = find_point(t)
    for path, reason in point.skipped:
        log.warning("checkpoint %s was skipped: %s", path, reason)
    if point.checkpoint is None:
        resume_outputs(t, None)
        warm_start(t, weights)
    else:
        load_checkpoint_into(t, point.checkpoint)
    log_changes(t)
    if t.compilation is not None:
        t.compilation.cache.load()
    t.clock.start_training()


def find_point(t: Training) -> ResumePoint:
    """Return the checkpoint from which the run continues, and the newer checkpoints that were skipped as damaged. The checkpoint is None if
    the run starts at step 0. The result is the same on every rank.

    Raise `ConfigError`, on all ranks, if a rank cannot read the checkpoint that rank 0 has verified."""
    point, refusal = ResumePoint(None), ""
    try:
        point = _next_start(t, t.output.directory, read_only=False)
    except (CheckpointDamaged, OSError) as error:
        if t.context.is_master:
            raise
        refusal = f"process rank {t.context.rank} on {socket.gethostname()} cannot read a checkpoint that rank 0 can read: {error}"
    refusals = [text for text in t.context.all_gather(refusal) if text]
    if refusals:
        raise ConfigError(f"{refusals[0]}; keep run.root on a disk that all nodes share")
    return point


def load_checkpoint_into(t: Training, found: LoadedCheckpoint) -> None:
    """Load the checkpoint `found` into all parts of the run, truncate the files of the run after the step of `found`, and log this step.

    If the run had stopped early, `t.run` is stopped."""
    load_parts(t, found)
    if not _is_own(t, found):  # this run has none of the results and alarms of the other run
        t.tracker.forget_validations()
        t.progress.forget_completed_validations()
        t.health.forget_alarms()
    if t.early_stopping is not None and (reason := _not_counted(t, found)):
        log.info("schedule.early_stop.patience counts validations from step %d on; the checkpoint was written %s", found.step, reason)
    if t.lr.not_compared is not None:
        log.info(
            "lr_scheduler.patience counts validations from step %d on; the checkpoint was written for %s", found.step, t.lr.not_compared
        )
    if note := check_weighting(t, found):
        log.info(note)
    if t.optimizers.converted:
        log.warning("optimizer: the saved moments are converted from %s, rounded to the nearest", t.optimizers.converted)
    t.tracker.load_rank_state_dict(found.training_state["ranks"], t.context.rank, t.context.world_size)
    t.run.stop(saved_stop_reason(t, found.state) or t.ops.should_stop_early(t.progress.global_step))
    t.watchdog.step = t.progress.global_step
    t.first_step, t.first_sample, t.first_unit = t.progress.global_step, t.progress.samples_seen, t.progress.units_seen
    resume_outputs(t, found)
    log.info("continuing at step %s of %s from %s", f"{t.progress.global_step:,}", f"{t.progress.expected_total_steps:,}", found.path)
    if t.context.world_size != found.state["world_size"]:
        log_processes(t, found.state["world_size"])


def log_processes(t: Training, before: int) -> None:
    """Log that the number of processes has changed since the checkpoint was written, and how this changes the updates. before: number of
    processes then."""
    change = f"{counted(t.context.world_size, 'process')} now, {before} when the checkpoint was written"
    size, earlier = t.sampler.micro_batch_size, given_micro_batch(t.config) or t.sampler.global_batch_size // before
    if t.order.anywhere:
        log.info("%s: the updates are the same bit for bit", change)
    elif size == earlier:
        log.warning("%s: the updates agree to float rounding, not bit for bit", change)
    else:
        log.warning(
            "%s, and micro-batches of %d samples, not %d, because trainer.micro_batch_size is null: dropout and drop-path draw other masks",
            *(change, size, earlier),
        )


def load_parts(t: Training, found: LoadedCheckpoint) -> None:
    """Load the state that is equal on all ranks into the parts of the run. Raise `ConfigError` if the checkpoint does not fit a part."""
    check_compatible(t, found)
    t.model.load_state_dict(t.shards.own_state(found.model_state))
    for name, part in t.stateful().items():
        if name == "early_stopping" and _not_counted(t, found):
            continue
        state = found.training_state[name]
        part.load_state_dict(t.shards.own_optimizer_state(state) if part is t.optimizers else state)
    if t.ema is not None:
        t.ema.load_averaged(None if found.ema_state is None else t.shards.own_state(found.ema_state))


def _not_counted(t: Training, found: LoadedCheckpoint) -> str | None:
    """Return why the state of early stopping in the checkpoint `found` is not loaded, as a part of a log line; None if it is loaded.

    Values of another metric, or of another direction, cannot be compared."""
    before, now = found.state["early_stop"], t.config.schedule.early_stop
    if before["patience"] is None:
        return "without it"
    return None if (before["monitor"], before["mode"]) == (now.monitor, now.mode) else f"for {before['monitor']} ({before['mode']})"


def resume_outputs(t: Training, found: LoadedCheckpoint | None) -> None:
    """Remove rows and validation results of steps after the checkpoint `found`, rename later checkpoints, and prepare the progress reports.
    If `found` is None, the run starts at step 0."""
    own = found is not None and _is_own(t, found)
    t.output.resume(found.step if found is not None else 0, found.state["outputs"] if found is not None and own else None)
    start_reports(t, found.state["costs"] if found is not None and own else None)
    if t.context.is_master:
        t.output.results.discard_after(found.step if found is not None else -1)
        if found is not None and _validates_differently(t, found):
            pending = t.progress.pending_validations
            t.output.results.discard(found.step, [one.key for one in t.passes if (one.stage, one.partial_index) in pending])


def _is_own(t: Training, found: LoadedCheckpoint) -> bool:
    """Return True if this run has written the checkpoint `found`, False for `run.resume=PATH` of another run."""
    return bool(found.state["run_id"] == t.output.directory.run_id)


def _validates_differently(t: Training, found: LoadedCheckpoint) -> bool:
    """Return True if the data or a setting that alters updates differs from those of the checkpoint `found`. A validation pass may then
    have another result, although the weights are the same."""
    before = found.state.get("run", {}).get("config", {})  # older checkpoints do not contain it
    return bool(config_difference(before, t.output.directory.saved).altering) or found.state["data_fingerprint"] != t.workload.fingerprint


def check_compatible(t: Training, found: LoadedCheckpoint) -> None:
    """Raise `ConfigError` if the checkpoint `found` was written with other data, another model or other parts than this run. Change
    nothing."""
    if found.state["data_fingerprint"] != t.workload.fingerprint and "data" not in t.config.run.allow:
        name = t.config.data.name
        raise ConfigError(f"{found.path} was trained on data other than the current data.name={name}; use run.allow=[data] to accept it")
    classes = {found.state.get("classes"), t.workload.classes} - {None}  # older checkpoints do not contain them
    if len(classes) > 1:
        raise ConfigError(
            f"{found.path} was trained on other classes (taxa, tokens or weapons) than those of the current data, and its weights have a "
            "row for each class; use the earlier data, or start another run with run.init_from and run.init_skip"
        )
    own, saved = t.model.state_dict(), found.model_state
    shapes = {name: t.shards.whole_shape(name, tensor) for name, tensor in own.items()}
    different = sorted(own.keys() ^ saved.keys()) + [name for name in own if name in saved and shapes[name] != saved[name].shape]
    if different:
        raise ConfigError(
            f"{found.path} is of another model: {counted(len(different), 'weight')} with another name or shape, "
            f"such as {different[0]}; check `model`"
        )
    new = ("early_stopping",) if found.state["early_stop"]["patience"] is None else ()  # it starts with the state of a new run
    missing = [name for name in t.stateful() if name not in (*found.training_state, *new)]
    if missing:
        setting = {"ema": "without trainer.ema_decay", "growth": "without growth"}.get(missing[0], "by another configuration")
        raise ConfigError(f"{found.path} does not contain a state of {missing[0]}; it was written {setting}")
    check_weighting(t, found)


def check_weighting(t: Training, found: LoadedCheckpoint) -> str | None:
    """Return the result of `check_continued_weights` for the checkpoint `found`."""
    before = found.state.get("run", {}).get("config", {})  # older checkpoints do not contain it
    return check_continued_weights(t.config.weighting, before.get("weighting", {}), found.path)


def saved_stop_reason(t: Training, state: dict[str, Any]) -> str | None:
    """Return the reason why the run stopped early, from state.json of a checkpoint (`state`). Return None if the run did not stop early, if
    the checkpoint is of another run, or if the limits of `schedule.early_stop` have changed since."""
    same = state["run_id"] == t.output.directory.run_id and state["early_stop"] == dataclasses.asdict(t.config.schedule.early_stop)
    return state["stop_reason"] if same and state["stop_reason"] != INTERRUPTED else None  # INTERRUPTED: written by earlier versions


def check_checkpoint(t: Training, directory: RunDirectory) -> None:
    """Load the checkpoint from which the run would continue, as a check before anything is written. Raise `ConfigError` if it does not fit.

    This is done for `run.resume=PATH`, and for the newest checkpoint if the configuration was changed or the data may have changed
    (`run.allow`). Afterwards the parts of `t` have the state of the checkpoint."""
    if t.config.run.resume not in ("auto", "never") or directory.altered or "data" in t.config.run.allow:
        found = _next_start(t, directory).checkpoint
        if found is not None:
            load_parts(t, found)


def describe_start(t: Training, directory: RunDirectory) -> str:
    """Return the line printed by `plan=true` for a run that has been started before: the step at which it would continue. Write nothing."""
    if directory.finished:
        return f"nothing was written or trained: {directory.finished_message()}"
    step, last = _next_start(t, directory).step, t.progress.expected_total_steps
    return f"nothing was written or trained: without plan=true the run continues at step {step:,} of {last:,} in {directory.path}"


def _next_start(t: Training, directory: RunDirectory, read_only: bool = True) -> ResumePoint:
    """Return the checkpoint from which the run continues. `read_only=True`: write nothing."""
    ranks: dict[str, Any] = {"is_master": t.context.is_master, "broadcast_object": t.context.broadcast_object}
    return find_resume_point(t.config.run.resume, directory.checkpoints, read_only=read_only, **ranks)


def finish_pending_validations(t: Training) -> None:
    """Run the validation passes that the restored checkpoint lists as pending. Then save, unless the run was interrupted in a pass. Do
    nothing if no pass is pending."""
    if t.progress.has_pending_validations():
        log.info("finishing %s of step %d", counted(len(t.progress.pending_validations), "pending validation pass"), t.progress.global_step)
        run_pending_validations(t)
        if not t.run.interrupted:
            saving.save(t)


def log_changes(t: Training) -> None:
    """Log which values of the schedule, such as the step of a validation, an allowed change of the configuration or of the number of
    training samples has moved. Write a table of these values to launches/<n>/moved.txt. Do this on rank 0, and only after such a change."""
    directory = t.output.directory
    old_size = directory.record.get("train_size")  # empty in a new directory
    if t.context.is_master and (directory.altered or old_size not in (None, t.workload.train_size)):
        sizes, step = (t.workload.train_size, t.workload.components), t.progress.global_step
        probabilities, tasks = t.ops.resolved.probabilities, len(t.workload.tasks)
        text = describe_changes(directory.previous, t.config, *sizes, step, old_size, probabilities, tasks)
        log.info(text)
        directory.write_launch_file("moved.txt", text)
