"""Continuing a run: the state of a checkpoint back into the parts, and validations that were pending when it was written."""

from __future__ import annotations

import dataclasses
import logging
import socket
from typing import Any

from linnaeus.checkpoint import LoadedCheckpoint, ResumePoint, find_resume_point
from linnaeus.checkpoint.format import CheckpointDamaged
from linnaeus.checkpoint.initial import InitialWeights
from linnaeus.config.errors import ConfigError
from linnaeus.engine.beginning import begin_anew, tell_what_moves
from linnaeus.engine.training import Training
from linnaeus.engine.validation import run_pending_validations
from linnaeus.rundir import RunDirectory

log = logging.getLogger("linnaeus")


def restore(t: Training, weights: InitialWeights | None = None) -> None:
    """Put the newest checkpoint that verifies into every part, or leave all of them at the start, but for the initial `weights`; then
    cut rows and results back to it, and say what an allowed change of the configuration moves.

    Raises `ConfigError` when the checkpoint belongs to other data or another model."""
    point = find_point(t)
    for path, reason in point.skipped:
        log.warning("checkpoint %s was skipped: %s", path, reason)
    if point.checkpoint is None:
        t.output.begin(t, None)
        begin_anew(t, weights)
    else:
        put_back(t, point.checkpoint)
    tell_what_moves(t)


def find_point(t: Training) -> ResumePoint:
    """Where the run goes on, the same on every process. `ConfigError` on all of them when one cannot read what rank 0 has verified."""
    point, said = ResumePoint(None), ""
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
        said = f"process rank {t.context.rank} on {socket.gethostname()} cannot read what rank 0 can: {error}"
    trouble = [text for text in t.context.all_gather(said) if text]
    if trouble:
        raise ConfigError(f"{trouble[0]}; keep run.root on a disk that all nodes share")
    return point


def put_back(t: Training, found: LoadedCheckpoint) -> None:
    refuse_unfit(t, found)
    t.model.load_state_dict(found.model_state)
    for name, part in t.stateful().items():
        part.load_state_dict(found.training_state[name])
    if t.ema is not None:
        t.ema.load_averaged(found.ema_state)
    t.tracker.load_rank_state_dict(found.training_state["ranks"], t.context.rank, t.context.world_size)
    t.stop_reason = saved_stop_reason(t, found.state) or t.ops.should_stop_early(t.progress.global_step)
    t.first_step, t.first_sample, t.first_unit = t.progress.global_step, t.progress.samples_seen, t.progress.units_seen
    t.output.begin(t, found)
    log.info("continuing at step %d of %d from %s", t.progress.global_step, t.progress.expected_total_steps, found.path)
    if found.state["world_size"] != t.context.world_size:
        log.warning(
            "%d processes now, %d when the checkpoint was written: the updates agree to float rounding, not bit for bit",
            t.context.world_size,
            found.state["world_size"],
        )


def refuse_unfit(t: Training, found: LoadedCheckpoint) -> None:
    """`ConfigError`, one line, for a checkpoint of other data, another model or other parts; changes nothing."""
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


def saved_stop_reason(t: Training, state: dict) -> str | None:
    """Why the run had stopped early, if that still holds: not for a signal, another run's checkpoint, or limits that have moved."""
    same = state["run_id"] == t.output.directory.run_id and state["early_stop"] == dataclasses.asdict(t.config.schedule.early_stop)
    return state["stop_reason"] if same and state["stop_reason"] != "interrupted" else None


def check_named_checkpoint(t: Training, directory: RunDirectory) -> None:
    """A checkpoint named by `run.resume=PATH` is refused before anything is written."""
    choice = t.config.run.resume
    if choice not in ("auto", "never"):
        together: dict[str, Any] = {"is_master": t.context.is_master, "broadcast_object": t.context.broadcast_object}
        found = find_resume_point(choice, directory.checkpoints, look_only=True, **together).checkpoint
        if found is not None:
            refuse_unfit(t, found)


def finish_pending_validations(t: Training) -> None:
    """Passes that were written down but not run before the process ended."""
    if t.progress.has_pending_validations():
        log.info("finishing %d pending validation passes of step %d", len(t.progress.pending_validations), t.progress.global_step)
        run_pending_validations(t)
        if t.stop_reason != "interrupted":
            t.output.save(t)
