"""Verify and load checkpoints.

Every file is checked against the manifest. No code in a checkpoint is ever executed: the loaders accept only plain data, even if the
manifest matches. An error of the disk (`OSError`) is never reported as damage (`CheckpointDamaged`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.format import EMA, FORMAT, MANIFEST, MODEL, REQUIRED, STATE, TRAINING, manifest_digest
from linnaeus.checkpoint.weight_files import read_weights
from linnaeus.errors import one_line
from linnaeus.files import file_digest, is_absent, system_error

if TYPE_CHECKING:
    from torch import Tensor

HASHING_THREADS = 4


class CheckpointDamaged(ValueError):
    """A file of a checkpoint is missing or was altered. `reason` names the file and the defect."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class CheckpointNewer(CheckpointDamaged):
    """A checkpoint is intact, but of a format that only a later version of the program reads."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A verified checkpoint. Its tensors are memory-mapped from the files: copy a tensor before you change or keep it."""

    path: Path
    step: int
    model_state: dict[str, Tensor]
    ema_state: dict[str, Tensor] | None
    training_state: dict[str, Any]
    state: dict[str, Any]


def load_checkpoint(path: Path | str, *, verified: bool = False) -> LoadedCheckpoint:
    """Verify and memory-map a checkpoint.

    With `verified=True`, after another process has checked the hashes, check only the sizes. Raise `CheckpointDamaged` if a file is
    missing, altered or not plain data, `CheckpointNewer` for a newer format, and `OSError` if the disk cannot be read at present.
    """
    path = Path(path)
    manifest = check_sizes(path) if verified else verify(path)
    names = manifest["files"]
    return LoadedCheckpoint(
        path=path,
        step=manifest["step"],
        model_state=_read_weights(path, MODEL),
        ema_state=_read_weights(path, EMA) if EMA in names else None,
        training_state=_read_training(path),
        state=_read_state(path),
    )


def verify(path: Path | str) -> dict[str, Any]:
    """Return the manifest after checking the size and hash of every file. Raise the errors of `load_checkpoint`.

    Four threads hash in parallel: hashing is most of the time of a resume.
    """
    path = Path(path)
    manifest = check_sizes(path)
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        list(pool.map(lambda name: _check_hash(path, name, manifest["files"][name]["sha256"]), manifest["files"]))
    return manifest


def check_sizes(path: Path) -> dict[str, Any]:
    """Return the manifest after checking that every file exists with its size. Raise the errors of `load_checkpoint`."""
    manifest = read_manifest(path)
    for name in REQUIRED:
        if name not in manifest["files"]:
            raise CheckpointDamaged(path, f"{name} is not in {MANIFEST}")
    for name, entry in manifest["files"].items():
        with _file_errors(path, name):
            found = os.stat(path / name)
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointDamaged(path, f"{name} is not a file")
        if found.st_size != entry["size"]:
            raise CheckpointDamaged(path, f"{name} has {found.st_size} bytes, {entry['size']} were written")
    return manifest


def is_intact(path: Path) -> bool:
    """Return True if every file exists with its size. Raise `OSError` if the disk cannot be read at present."""
    try:
        check_sizes(path)
    except CheckpointDamaged:
        return False
    return True


# -- the manifest --------------------------------------------------------------------------------------------------------------


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest after checking its own hash, structure and format. Raise the errors of `load_checkpoint`."""
    with _file_errors(path, MANIFEST):
        if not stat.S_ISREG(os.stat(path / MANIFEST).st_mode):
            raise CheckpointDamaged(path, f"{MANIFEST} is not a file")
    content = _read_json(path, MANIFEST)
    if content.get("sha256") != manifest_digest(content):
        raise CheckpointDamaged(path, f"{MANIFEST} was altered (its own hash does not match)")
    if _is_count(content.get("format")) and content["format"] > FORMAT:
        raise CheckpointNewer(path, f"it has format {content['format']}, this program reads up to {FORMAT}: update linnaeus")
    defect = _defect_of(content) or _defect_of_name(path, content["step"])
    if defect is not None:
        raise CheckpointDamaged(path, f"{MANIFEST} was not written by this program ({defect})")
    return content


def _defect_of(content: dict[str, Any]) -> str | None:
    """Return the first entry of a manifest that has the wrong type, None if all are right."""
    for key in ("format", "step"):
        if not _is_count(content.get(key)):
            return f"{key} is {content.get(key)!r}"
    score = content.get("score", "missing")
    if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float))):
        return f"score is {score!r}"
    files = content.get("files")
    if not isinstance(files, dict):
        return "files is not an object"
    for name, entry in files.items():
        plain = isinstance(entry, dict) and _is_count(entry.get("size")) and isinstance(entry.get("sha256"), str)
        if not plain or Path(name).name != name:
            return f"the entry of {name!r}"
    return None


def _defect_of_name(path: Path, step: int) -> str | None:
    """Return an error if the directory has the name of another step, because checkpoints are ordered by name. Other names are allowed."""
    number = path.name.removeprefix("step-").partition(".")[0]
    return f"it is of step {step}" if path.name.startswith("step-") and number.isdecimal() and int(number) != step else None


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


# -- single files --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _file_errors(path: Path, name: str) -> Iterator[None]:
    """Convert errors while the file `name` of the checkpoint `path` is read.

    Raise `CheckpointDamaged` if the file is missing, `OSError` that names it if the system cannot read it at present, whatever exception a
    loader raises then. Other errors, of the file's content, pass unchanged.
    """
    try:
        yield
    except CheckpointDamaged:
        raise
    except Exception as error:
        cause = system_error(error, path / name)
        if cause is None:
            raise
        if not is_absent(cause):
            raise cause from None
        defect = "is missing" if cause.errno == errno.ENOENT else f"cannot be read ({cause.strerror})"
        raise CheckpointDamaged(path, f"{name} {defect}") from None


def _check_hash(path: Path, name: str, sha256: str) -> None:
    with _file_errors(path, name):
        digest = file_digest(path / name)
    if digest != sha256:
        raise CheckpointDamaged(path, f"{name} was altered (its hash does not match)")


def _read_weights(path: Path, name: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    try:
        with _file_errors(path, name):
            return read_weights(path / name)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointDamaged(path, f"{name} is not a safetensors file ({one_line(error)})") from None


def _read_training(path: Path) -> dict[str, Any]:
    """Memory-map training_state.pt, so that each tensor is read once, when it is copied.

    `weights_only=True` is passed explicitly: an environment variable can change torch's default, but not an argument.
    """
    import torch

    try:
        with _file_errors(path, TRAINING):
            content = torch.load(path / TRAINING, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, AssertionError) as error:
        raise CheckpointDamaged(path, f"{TRAINING} is not plain data ({one_line(error)})") from None
    if not isinstance(content, dict):
        raise CheckpointDamaged(path, f"{TRAINING} contains a {type(content).__name__}, not a dict")
    return content


def _read_state(path: Path) -> dict[str, Any]:
    return _read_json(path, STATE)


def _read_json(path: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in a file of a checkpoint. Raise `CheckpointDamaged` if it contains something else."""
    with _file_errors(path, name):
        data = (path / name).read_bytes()
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointDamaged(path, f"{name} is not JSON ({one_line(error)})") from None
    if not isinstance(content, dict):
        raise CheckpointDamaged(path, f"{name} contains a {type(content).__name__}, not an object")
    return content
