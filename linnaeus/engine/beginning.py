"""What a start of a run has that its own past does not: the weights a new run begins with, and a configuration that has changed."""

from __future__ import annotations

import logging

from linnaeus.checkpoint import list_checkpoints
from linnaeus.checkpoint.disk import read_or_refuse
from linnaeus.checkpoint.fitting import check_fit, load_into
from linnaeus.checkpoint.initial import InitialWeights, read_initial
from linnaeus.config.errors import ConfigError
from linnaeus.engine.training import Training
from linnaeus.rundir import RunDirectory
from linnaeus.schedule.moved import what_moves

log = logging.getLogger("linnaeus")


def find_initial_weights(t: Training, directory: RunDirectory) -> InitialWeights | None:
    """What `run.init_from` gives a run that has no checkpoint of its own yet, read by every process; None where there is nothing to
    begin with. Call it before anything is written: `ConfigError` on every process, for a file that one of them cannot read, that is
    not the same everywhere, or that does not fit the model."""
    path = t.config.run.init_from
    if path is None:
        return None
    own = lambda: bool(list_checkpoints(directory.checkpoints))
    if t.context.broadcast_object(read_or_refuse(own) if t.context.is_master else None):
        return None
    return _read_alike(t, path)


def _read_alike(t: Training, path: str) -> InitialWeights:
    weights, said = None, ""
    try:
        weights = read_initial(path)
        adopt = getattr(t.workload, "adopt", None)
        weights = adopt(weights, t.model) if adopt is not None else weights
        check_fit(weights, t.model, t.config.run.init_allow, t.config.run.init_skip)
    except ConfigError as error:
        said = str(error)
    outcomes = t.context.all_gather((said, weights.digest if weights is not None else ""))
    refusal = next((line for line, _ in outcomes if line), "")
    if refusal:
        raise ConfigError(refusal)
    if len({digest for _, digest in outcomes}) > 1:
        raise ConfigError(f"run.init_from: {path} is not the same file for every process; name a checkpoint that no longer changes")
    assert weights is not None
    return weights


def begin_anew(t: Training, weights: InitialWeights | None) -> None:
    """The start of a run that has no checkpoint to go on from: its first, or one after all its checkpoints were lost. With
    `run.init_from` the weights go into the model and its average; the report goes to the log and, whole, to
    launches/<n>/init_from.txt."""
    path = t.config.run.init_from
    if path is None:
        return
    if weights is None:  # there were checkpoints, and none of them verified
        weights = _read_alike(t, path)
        begun_with = t.context.broadcast_object(t.output.directory.record.get("initial_weights"))
        if begun_with not in (None, weights.digest):
            raise ConfigError(f"run.init_from: {path} holds other weights than this run began with, and no checkpoint of its own verifies")
    report = check_fit(weights, t.model, t.config.run.init_allow, t.config.run.init_skip)
    load_into(weights, report, t.model)
    lost = t.growth.mask_weights() if t.growth is not None else 0
    if lost:
        report.notes.append(f"growth: {lost:,} of these numbers are not connected at the start and begin at 0 (growth.start)")
    if t.ema is not None:
        t.ema.load_averaged(t.model.state_dict())
    for line in report.lines():
        log.info(line)
    t.output.directory.keep("init_from.txt", report.text())


def tell_what_moves(t: Training) -> None:
    """The table of what an allowed change of the configuration moves, in the log and as launches/<n>/moved.txt."""
    directory = t.output.directory
    if t.context.is_master and directory.altered:
        sizes = t.workload.train_size, t.workload.components
        step, old_size = t.progress.global_step, directory.record.get("train_size")
        text = what_moves(directory.previous, t.config, *sizes, step, old_size, t.ops.resolved.probabilities)
        log.info(text)
        directory.keep("moved.txt", text)
