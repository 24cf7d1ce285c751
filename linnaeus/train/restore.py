"""The start of a launch: restore the newest checkpoint, warm-start a new run from given weights, finish pending validations."""

from __future__ import annotations

import dataclasses
import logging
import socket
from typing import Any

from linnaeus.checkpoint import LoadedCheckpoint, ResumePoint, find_resume_point, list_checkpoints
from linnaeus.checkpoint.initial_weights import InitialWeights, read_initial_weights
from linnaeus.checkpoint.loading import CheckpointDamaged
from linnaeus.checkpoint.weight_matching import load_matched, match_weights
from linnaeus.errors import ConfigError
from linnaeus.files import read_or_refuse
from linnaeus.reporting.changes import describe_changes
from linnaeus.rundir import RunDirectory
from linnaeus.train import saving
from linnaeus.train.readings import start_reports
from linnaeus.train.state import INTERRUPTED, Training
from linnaeus.train.validation import run_pending_validations

log = logging.getLogger("linnaeus")


# -- from a checkpoint ---------------------------------------------------------------------------------------------------------


def restore(t: Training, weights: InitialWeights | None = None) -> None:
    """Load the newest checkpoint that verifies into every part; without one leave the parts at their start, with the initial `weights`
    if given. Then cut rows and results back to that point, and log what an allowed change of the configuration moves.

    Raise `ConfigError` when the checkpoint belongs to other data or another model."""
    point = find_point(t)
    for path, reason in point.skipped:
        log.warning("checkpoint %s was skipped: %s", path, reason)
    if point.checkpoint is None:
        resume_outputs(t, None)
        warm_start(t, weights)
    else:
        load_checkpoint_into(t, point.checkpoint)
    log_changes(t)


def find_point(t: Training) -> ResumePoint:
    """Return where the run continues, the same on every rank. Raise `ConfigError` on all ranks when one cannot read what rank 0 has
    verified."""
    point, refusal = ResumePoint(None), ""
    try:
        point = find_resume_point(
            t.config.run.resume,
            t.output.directory.checkpoints,
            is_master=t.context.is_master,
            broadcast_object=t.context.broadcast_object,
        )
    except (CheckpointDamaged, OSError) as error:
        if t.context.is_master:
            raise
        refusal = f"process rank {t.context.rank} on {socket.gethostname()} cannot read what rank 0 can: {error}"
    refusals = [text for text in t.context.all_gather(refusal) if text]
    if refusals:
        raise ConfigError(f"{refusals[0]}; keep run.root on a disk that all nodes share")
    return point


def load_checkpoint_into(t: Training, found: LoadedCheckpoint) -> None:
    """Load a checkpoint into every part."""
    check_compatible(t, found)
    t.model.load_state_dict(found.model_state)
    for name, part in t.stateful().items():
        part.load_state_dict(found.training_state[name])
    if t.ema is not None:
        t.ema.load_averaged(found.ema_state)
    t.tracker.load_rank_state_dict(found.training_state["ranks"], t.context.rank, t.context.world_size)
    t.run.stop(saved_stop_reason(t, found.state) or t.ops.should_stop_early(t.progress.global_step))
    t.first_step, t.first_sample, t.first_unit = t.progress.global_step, t.progress.samples_seen, t.progress.units_seen
    resume_outputs(t, found)
    log.info("continuing at step %d of %d from %s", t.progress.global_step, t.progress.expected_total_steps, found.path)
    if found.state["world_size"] != t.context.world_size:
        log.warning(
            "%d processes now, %d when the checkpoint was written: the updates agree to float rounding, not bit for bit",
            t.context.world_size,
            found.state["world_size"],
        )


def resume_outputs(t: Training, found: LoadedCheckpoint | None) -> None:
    """Cut rows, results and later checkpoints back to the checkpoint, or to the start."""
    own = found is not None and found.state["run_id"] == t.output.directory.run_id  # not another run's, continued here
    t.output.resume(found.step if found is not None else 0, found.state["outputs"] if found is not None and own else None)
    start_reports(t)
    if t.context.is_master:
        t.output.results.discard_after(found.step if found is not None else -1)


def check_compatible(t: Training, found: LoadedCheckpoint) -> None:
    """Raise `ConfigError`, one line, for a checkpoint of other data, another model or other parts. Change nothing."""
    if found.state["data_fingerprint"] != t.workload.fingerprint and "data" not in t.config.run.allow:
        raise ConfigError(f"{found.path} was trained on other data than {t.config.data.name} gives now; see run.allow=[data]")
    own, saved = t.model.state_dict(), found.model_state
    unlike = sorted(own.keys() ^ saved.keys()) + [name for name in own if name in saved and own[name].shape != saved[name].shape]
    if unlike:
        raise ConfigError(
            f"{found.path} is of another model: {len(unlike)} weights differ in name or shape, such as {unlike[0]}; check `model`"
        )
    missing = [name for name in t.stateful() if name not in found.training_state]
    if missing:
        raise ConfigError(f"{found.path} holds no state of {missing[0]}; it was written by another configuration")


def saved_stop_reason(t: Training, state: dict[str, Any]) -> str | None:
    """Return why the run had stopped early, if that still holds. It does not for an interruption, another run's checkpoint, or limits that
    have changed."""
    same = state["run_id"] == t.output.directory.run_id and state["early_stop"] == dataclasses.asdict(t.config.schedule.early_stop)
    return state["stop_reason"] if same and state["stop_reason"] != INTERRUPTED else None


def check_named_checkpoint(t: Training, directory: RunDirectory) -> None:
    """Raise `ConfigError` for a checkpoint named by `run.resume=PATH` that does not fit, before anything is written."""
    choice = t.config.run.resume
    if choice not in ("auto", "never"):
        together: dict[str, Any] = {"is_master": t.context.is_master, "broadcast_object": t.context.broadcast_object}
        found = find_resume_point(choice, directory.checkpoints, read_only=True, **together).checkpoint
        if found is not None:
            check_compatible(t, found)


def finish_pending_validations(t: Training) -> None:
    """Run the passes that were written down but not run before the process ended."""
    if t.progress.has_pending_validations():
        log.info("finishing %d pending validation passes of step %d", len(t.progress.pending_validations), t.progress.global_step)
        run_pending_validations(t)
        if not t.run.interrupted:
            saving.save(t)


def log_changes(t: Training) -> None:
    """Log what an allowed change of the configuration moves, and keep the table as launches/<n>/moved.txt."""
    directory = t.output.directory
    if t.context.is_master and directory.altered:
        sizes = t.workload.train_size, t.workload.components
        step, old_size = t.progress.global_step, directory.record.get("train_size")
        text = describe_changes(directory.previous, t.config, *sizes, step, old_size, t.ops.resolved.probabilities)
        log.info(text)
        directory.write_launch_file("moved.txt", text)


# -- from given weights --------------------------------------------------------------------------------------------------------


def find_initial_weights(t: Training, directory: RunDirectory) -> InitialWeights | None:
    """Return the weights of `run.init_from` for a run without a checkpoint of its own, read by every rank; None if there is nothing to
    load. Call it before anything is written. Raise `ConfigError` on every rank for a file that one of them cannot read, that is not the
    same everywhere, or that does not fit the model."""
    path = t.config.run.init_from
    if path is None:
        return None
    own = lambda: bool(list_checkpoints(directory.checkpoints))
    if t.context.broadcast_object(read_or_refuse(own) if t.context.is_master else None):
        return None
    return _read_on_all_ranks(t, path)


def warm_start(t: Training, weights: InitialWeights | None) -> None:
    """Load the weights of `run.init_from` into the model and its average, for a run without a checkpoint (its first start, or all its
    checkpoints were lost). The report goes to the log and, in full, to launches/<n>/init_from.txt."""
    path = t.config.run.init_from
    if path is None:
        return
    if weights is None:  # there were checkpoints, and none of them verified
        weights = _read_on_all_ranks(t, path)
        first = t.context.broadcast_object(t.output.directory.record.get("initial_weights"))
        if first not in (None, weights.digest):
            raise ConfigError(f"run.init_from: {path} contains other weights than at the first start; no checkpoint of this run verifies")
    report = match_weights(weights, t.model, t.config.run.init_allow, t.config.run.init_skip)
    load_matched(weights, report, t.model)
    lost = t.growth.mask_weights() if t.growth is not None else 0
    if lost:
        report.notes.append(f"growth: {lost:,} of these numbers are not connected at the start and begin at 0 (growth.start)")
    if t.ema is not None:
        t.ema.load_averaged(t.model.state_dict())
    for line in report.lines():
        log.info(line)
    t.output.directory.write_launch_file("init_from.txt", report.text())


def _read_on_all_ranks(t: Training, path: str) -> InitialWeights:
    weights, refusal = None, ""
    try:
        weights = t.workload.adapt_initial_weights(read_initial_weights(path), t.model)
        match_weights(weights, t.model, t.config.run.init_allow, t.config.run.init_skip)
    except ConfigError as error:
        refusal = str(error)
    outcomes = t.context.all_gather((refusal, weights.digest if weights is not None else ""))
    first = next((line for line, _ in outcomes if line), "")
    if first:
        raise ConfigError(first)
    if len({digest for _, digest in outcomes}) > 1:
        raise ConfigError(f"run.init_from: {path} is not the same file for every process; name a checkpoint that no longer changes")
    assert weights is not None
    return weights
