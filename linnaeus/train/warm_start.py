"""Start a new run from given weights (`run.init_from`)."""

from __future__ import annotations

import dataclasses
import logging

from linnaeus.checkpoint import list_checkpoints
from linnaeus.checkpoint.initial_weights import InitialWeights, read_initial_weights
from linnaeus.checkpoint.weight_matching import load_matched, match_weights
from linnaeus.errors import ConfigError
from linnaeus.files import read_or_refuse
from linnaeus.rundir import RunDirectory
from linnaeus.train.state import Training

log = logging.getLogger("linnaeus")


def find_initial_weights(t: Training, directory: RunDirectory) -> InitialWeights | None:
    """Return the weights of `run.init_from`, read by every rank. Call this before anything is written.

    Return None if `run.init_from` is null or if the run already has a checkpoint. Raise `ConfigError` on every rank if a rank cannot read
    the file, if the file differs between ranks, or if the weights do not fit the model."""
    path = t.config.run.init_from
    if path is None:
        return None
    has_checkpoint = lambda: bool(list_checkpoints(directory.checkpoints))
    if t.context.broadcast_object(read_or_refuse(has_checkpoint) if t.context.is_master else None):
        return None
    return _read_on_all_ranks(t, path)


def warm_start(t: Training, weights: InitialWeights | None) -> None:
    """Copy `weights`, read from `run.init_from`, into the model and its moving average. Do nothing if `run.init_from` is null.

    This is called if no checkpoint can be used. If `weights` is None (the run has checkpoints, but all are damaged), read the file now, and
    raise `ConfigError` if its weights differ from the weights at the first start of the run.

    Log which weights were loaded, and write the full list to launches/<n>/init_from.txt."""
    path = t.config.run.init_from
    if path is None:
        return
    if weights is None:  # there are checkpoints, but none of them verifies
        weights = _read_on_all_ranks(t, path)
        first = t.context.broadcast_object(t.output.directory.record.get("initial_weights"))
        if first not in (None, weights.digest):
            raise ConfigError(f"run.init_from: {path} has other weights than at the start of the run, and no checkpoint of it verifies")
    report = match_weights(weights, t.model, t.config.run.init_allow, t.config.run.init_skip)
    load_matched(weights, report, t.model)
    masked = t.growth.mask_weights() if t.growth is not None else 0
    if masked:
        report.notes.append(f"growth: {masked:,} of these weights are not connected at the start and are set to 0 (growth.start)")
    if t.ema is not None:
        t.ema.load_averaged(t.model.state_dict())
    for line in report.lines():
        log.info(line)
    t.output.directory.write_launch_file("init_from.txt", report.text())


def _read_on_all_ranks(t: Training, path: str) -> InitialWeights:
    """Return the weights in the file `path`, after every rank has read them.

    Raise the same `ConfigError` on every rank if a rank cannot read the file, if the weights do not fit the model, or if they differ
    between ranks."""
    weights, refusal = None, ""
    try:
        weights = t.workload.adapt_initial_weights(read_initial_weights(path, choice=t.config.run.init_checkpoint), t.model)
        weights = dataclasses.replace(weights, state=t.shards.own_state(weights.state))
        match_weights(weights, t.model, t.config.run.init_allow, t.config.run.init_skip)
    except ConfigError as error:
        refusal = str(error)
    outcomes = t.context.all_gather((refusal, weights.digest if weights is not None else ""))
    first = next((line for line, _ in outcomes if line), "")
    if first:
        raise ConfigError(first)
    if len({digest for _, digest in outcomes}) > 1:
        raise ConfigError(f"run.init_from: {path} is not the same file for every process; use a checkpoint that no longer changes")
    assert weights is not None
    return weights
