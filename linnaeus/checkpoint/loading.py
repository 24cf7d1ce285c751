"""Verify and load checkpoints.

Every file is checked against the manifest. No code in a checkpoint is ever executed: the loaders accept only plain data, even if the
manifest matches. An error of the disk (`OSError`) is never reported as damage (`CheckpointDamaged`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.format import EMA, FORMAT, MANIFEST, MODEL, REQUIRED, STATE, TRAINING
from linnaeus.checkpoint.weight_files import read_weights
from linnaeus.errors import one_line
from linnaeus.files import content_digest, file_digest, is_absent, system_error

if TYPE_CHECKING:
    from torch import Tensor

HASHING_THREADS = 4


class CheckpointDamaged(ValueError):
    """A checkpoint that cannot be used: a file is missing, altered or of the wrong type, or the manifest belongs to another directory.

    `reason`: the defect, with the name of the file. Its subclass `CheckpointNewer` is for an intact checkpoint of a newer format."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class CheckpointNewer(CheckpointDamaged):
    """A checkpoint that is intact, but has a format that only a later version of the program can read."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Content of a verified checkpoint. Its tensors are memory-mapped from the files: copy a tensor before you change or store it."""

    path: Path
    step: int
    model_state: dict[str, Tensor]
    ema_state: dict[str, Tensor] | None
    training_state: dict[str, Any]
    state: dict[str, Any]


def load_checkpoint(path: Path | str, *, verified: bool = False) -> LoadedCheckpoint:
    """Verify a checkpoint and return its content, with memory-mapped tensors.

    With `verified=True` only the sizes of the files are checked, because another process has already checked the hashes. Raise
    `CheckpointDamaged` if a file is missing, altered or not plain data, `CheckpointNewer` for a newer format, and `OSError` if the disk
    cannot be read at present."""
    path = Path(path)
    manifest = check_sizes(path) if verified else verify(path)
    averages = _read_weights(path, EMA) if EMA in manifest["files"] else None
    training_state, state = _read_training(path), _read_json(path, STATE)
    return LoadedCheckpoint(path, manifest["step"], _read_weights(path, MODEL), averages, training_state, state)


def verify(path: Path | str) -> dict[str, Any]:
    """Check the size and hash of every file of a checkpoint, and return its manifest. Raise the same errors as `load_checkpoint`.

    Four threads compute hashes in parallel, because hashing takes most of the time of a resume."""
    path = Path(path)
    manifest = check_sizes(path)
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        list(pool.map(lambda name: _check_hash(path, name, manifest["files"][name]["sha256"]), manifest["files"]))
    return manifest


def read_state(path: Path) -> dict[str, Any]:
    """Return `state.json` of a checkpoint after checking its hash. The other files are not read.

    Raise the same errors as `load_checkpoint`."""
    entry = read_manifest(path)["files"].get(STATE)
    if entry is None:
        raise CheckpointDamaged(path, f"{STATE} is not in {MANIFEST}")
    _file_size(path, STATE)
    _check_hash(path, STATE, entry["sha256"])
    return _read_json(path, STATE)


def check_sizes(path: Path) -> dict[str, Any]:
    """Check that every file of a checkpoint exists and has its size, and return the manifest.

    Raise the same errors as `load_checkpoint`."""
    manifest = read_manifest(path)
    for name in REQUIRED:
        if name not in manifest["files"]:
            raise CheckpointDamaged(path, f"{name} is not in {MANIFEST}")
    for name, entry in manifest["files"].items():
        size = _file_size(path, name)
        if size != entry["size"]:
            raise CheckpointDamaged(path, f"{name} has {size} bytes, {entry['size']} were written")
    return manifest


def intact_manifest(path: Path) -> dict[str, Any] | None:
    """Return the manifest of a checkpoint if every file exists and has its size, otherwise None.

    Raise `OSError` if the disk cannot be read at present."""
    try:
        return check_sizes(path)
    except CheckpointDamaged:
        return None


def intact_scores(found: Iterable[tuple[int, Path]], monitor: str | None) -> dict[int, float | None]:
    """Return {step: score} of the intact checkpoints in `found`, pairs of step and path. The score is None if the checkpoint was not
    validated, or if its score is of another metric than `monitor`. `monitor=None` accepts the scores of every metric.

    Raise `OSError` if the disk cannot be read at present."""
    manifests = {step: (path, manifest) for step, path in found if (manifest := intact_manifest(path)) is not None}
    return {
        step: manifest["score"] if monitor is None or _metric_of_score(path, manifest) in (None, monitor) else None
        for step, (path, manifest) in manifests.items()
    }


def _metric_of_score(path: Path, manifest: dict[str, Any]) -> str | None:
    """Return the name of the metric of the score in `manifest`; None if it is unknown.

    Manifests of earlier versions do not name it; then it is read from the configuration in state.json, if that has one."""
    if manifest["score"] is None or manifest.get("monitor") is not None:
        return manifest.get("monitor")
    try:
        return str(read_state(path)["run"]["config"]["schedule"]["best_monitor"])
    except (CheckpointDamaged, KeyError, TypeError):
        return None


# -- the manifest --------------------------------------------------------------------------------------------------------------


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint after checking its hash, structure and format. Raise the same errors as `load_checkpoint`."""
    _file_size(path, MANIFEST)  # a pipe would block the read
    content = _read_json(path, MANIFEST)
    if content.get("sha256") != content_digest(content):
        raise CheckpointDamaged(path, f"{MANIFEST} was altered (its own hash does not match)")
    if _is_count(content.get("format")) and content["format"] > FORMAT:
        raise CheckpointNewer(path, f"it has format {content['format']}, this program reads up to {FORMAT}: update linnaeus")
    if not _is_manifest(content):
        raise CheckpointDamaged(path, f"{MANIFEST} was not written by this program (an entry is missing or has another type)")
    number = re.fullmatch(r"step-(\d+)(\..*)?", path.name)  # checkpoints are ordered by name; other names are allowed
    if number and int(number[1]) != content["step"]:
        raise CheckpointDamaged(path, f"{MANIFEST} was not written for this directory (it is of step {content['step']})")
    return content


def _is_manifest(content: dict[str, Any]) -> bool:
    """Return True if the entries of the manifest `content` have the right types, and each file name in it is a plain name, without a
    folder."""
    score, files = content.get("score", "missing"), content.get("files")
    return (
        _is_count(content.get("format"))
        and _is_count(content.get("step"))
        and (score is None or type(score) in (int, float))
        and all(type(content.get(name)) in (str, type(None)) for name in ("monitor", "mode"))
        and isinstance(files, dict)
        and all(
            isinstance(entry, dict) and _is_count(entry.get("size")) and isinstance(entry.get("sha256"), str) and Path(name).name == name
            for name, entry in files.items()
        )
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


# -- single files --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _reading(path: Path, name: str, kind: str = "a file") -> Iterator[None]:
    """Convert the exceptions of a block that reads the file `name` of the checkpoint `path`, because loaders raise exceptions of many
    types.

    Raise `CheckpointDamaged` if the file is missing or its content is not `kind` (such as "a JSON object"). Raise `OSError`, naming the
    file, if the system cannot read the file at present."""
    try:
        yield
    except Exception as error:
        cause = system_error(error, path / name)
        if cause is None:
            raise CheckpointDamaged(path, f"{name} is not {kind} ({one_line(error)})") from None
        if not is_absent(cause):
            raise cause from None
        defect = "is missing" if cause.errno == errno.ENOENT else f"cannot be read ({cause.strerror})"
        raise CheckpointDamaged(path, f"{name} {defect}") from None


def _file_size(path: Path, name: str) -> int:
    with _reading(path, name):
        found = os.stat(path / name)
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointDamaged(path, f"{name} is not a file")
    return found.st_size


def _check_hash(path: Path, name: str, sha256: str) -> None:
    with _reading(path, name):
        digest = file_digest(path / name)
    if digest != sha256:
        raise CheckpointDamaged(path, f"{name} was altered (its hash does not match)")


def _read_weights(path: Path, name: str) -> dict[str, Tensor]:
    with _reading(path, name, "a safetensors file"):
        return read_weights(path / name)


def _read_training(path: Path) -> dict[str, Any]:
    """Return the content of `training_state.pt`. Tensors are memory-mapped, so each is read from the disk once, when it is copied.

    `weights_only=True` is passed explicitly: an environment variable can change torch's default, but not an argument."""
    import torch

    with _reading(path, TRAINING, "plain data"):
        return _mapping(torch.load(path / TRAINING, map_location="cpu", weights_only=True, mmap=True))


def _read_json(path: Path, name: str) -> dict[str, Any]:
    with _reading(path, name, "a JSON object"):
        return _mapping(json.loads((path / name).read_bytes()))


def _mapping(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"it contains a {type(content).__name__}")
    return content
