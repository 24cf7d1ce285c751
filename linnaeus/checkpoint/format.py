"""Write a checkpoint: a directory `step-00001200/`, which exists completely or not at all.

    model.safetensors     weights (`weight_files.py`)
    ema.safetensors       moving average of the weights, if the run uses one
    training_state.pt     optimizers, scaler, weighting, accumulators: plain containers and tensors
    state.json            progress, schedule, best metrics, run ids, readable by a person
    manifest.json         sizes and SHA-256 of the other files, the score and its metric; written last

`loading.py` verifies and reads a checkpoint. torch is imported by the functions that need it."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.hashing_writer import FileEntry, HashingWriter
from linnaeus.checkpoint.weight_files import write_weights
from linnaeus.files import TEMPORARY, commit_directory, content_digest, delete, file_digest, to_json, to_utf8

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
MODEL, EMA, TRAINING, STATE, MANIFEST = "model.safetensors", "ema.safetensors", "training_state.pt", "state.json", "manifest.json"
REQUIRED = (MODEL, TRAINING, STATE)
PLAIN_TYPES = (bool, int, float, str, type(None))


def step_name(step: int) -> str:
    """Return the directory name of the checkpoint of a step, such as `step-00001200`."""
    return f"step-{step:08d}"


def save_checkpoint(
    directory: Path | str,
    step: int,
    *,
    model_state: Mapping[str, Tensor],
    training_state: dict[str, Any],
    state: dict[str, Any],
    ema_state: Mapping[str, Tensor] | None = None,
    parents: bool = True,
) -> Path:
    """Write the checkpoint `directory/step-N/`, flush it to the disk and return its path. Replace a checkpoint of the same step.

    `training_state`: dicts, lists, tuples, numbers, strings and tensors. `state`: JSON values with string keys; NaN and infinities are
    replaced as in `files.finite`. `state["score"]`: the score by which the best checkpoints are kept, the value of the metric
    `state["monitor"]`, whose direction is `state["mode"]`; each may be missing. `parents=False`: the parent of `directory` must
    exist, so that a deleted run directory is not created again.

    Raise `TypeError` for a value of another type. On an `OSError`, an older checkpoint of the step still exists, the new one does not, and
    the temporary files are deleted if the disk allows it."""
    import torch

    directory = Path(directory)
    assert_plain(training_state, "training_state", tensors=True)
    assert_plain(state, "state", tensors=False)
    directory.mkdir(exist_ok=True, parents=parents)
    final = directory / step_name(step)
    temporary = directory / f"{TEMPORARY}{final.name}-{os.getpid()}"
    if temporary.exists():
        delete(temporary)
    temporary.mkdir()
    try:
        entries = {MODEL: write_weights(temporary / MODEL, model_state)}
        if ema_state is not None:
            entries[EMA] = write_weights(temporary / EMA, ema_state)
        with HashingWriter(temporary / TRAINING) as file:
            torch.save(without_references(training_state), file)  # type: ignore[arg-type]
        entries[TRAINING] = file.entry
        (temporary / STATE).write_bytes(to_utf8(to_json(state)))
        write_manifest(temporary, step, state.get("score"), entries, state.get("monitor"), state.get("mode"))
        commit_directory(temporary, final)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def write_manifest(
    directory: Path,
    step: int,
    score: float | None,
    known: Mapping[str, FileEntry] | None = None,
    monitor: str | None = None,
    mode: str | None = None,
) -> None:
    """Write `manifest.json` of a checkpoint: size and hash of every other file of `directory`, and a hash of the manifest itself.

    `score`: value of the metric `monitor` of the checkpoint; None if there is none. `mode`: direction of the metric, "min" or "max".
    `known`: manifest entries of files that were hashed while they were written; these files are not read again. Nothing is flushed to the
    disk."""
    entries = dict(known or {})
    for file in sorted(directory.iterdir()):
        if file.name != MANIFEST and file.name not in entries:
            entries[file.name] = FileEntry(file.stat().st_size, file_digest(file))
    files = {name: entries[name]._asdict() for name in sorted(entries)}
    ranked = score if score is not None and math.isfinite(score) else None
    content: dict[str, Any] = {"format": FORMAT, "step": step, "score": ranked, "monitor": monitor, "mode": mode, "files": files}
    content["sha256"] = content_digest(content)
    (directory / MANIFEST).write_bytes(to_utf8(to_json(content)))


def without_references(value: Any) -> Any:
    """Return a copy of `value`, nested dicts, lists and tuples, in which no container occurs twice and equal strings are one object.

    pickle writes an object that it has written before as a reference. A state that was partly loaded from a checkpoint has other objects
    than the state of a run that was never stopped; with this copy, equal states give files with the same bytes."""
    if isinstance(value, dict):
        return type(value)((without_references(key), without_references(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(map(without_references, value))
    return sys.intern(value) if isinstance(value, str) else value


def assert_plain(value: Any, where: str, *, tensors: bool) -> None:
    """Raise `TypeError` if `value`, or a value nested in it, would not be loaded unchanged.

    Allowed are JSON values, and with `tensors=True` also tensors and integer keys, which `torch.load(weights_only=True)` accepts. `where`:
    name of `value` in the message; the path of the nested value is appended to it, such as `state['best']`."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            if type(key) is not str and not (tensors and type(key) is int):
                raise TypeError(f"{where}: key {key!r} is a {type(key).__name__}, not a string")
            assert_plain(item, f"{where}[{key!r}]", tensors=tensors)
    elif type(value) in (list, tuple):
        for i, item in enumerate(value):
            assert_plain(item, f"{where}[{i}]", tensors=tensors)
    elif type(value) not in PLAIN_TYPES:
        import torch

        if not (tensors and isinstance(value, torch.Tensor)):
            kind, allowed = f"{type(value).__module__}.{type(value).__qualname__}", " and tensors" if tensors else ""
            raise TypeError(f"{where} is a {kind}; a checkpoint contains only plain containers, numbers, strings{allowed}")
