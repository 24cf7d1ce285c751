"""What a checkpoint is: a directory `step-00001200/` that is there whole or not at all, and says so itself.

    model.safetensors     weights, for anyone (`weights.py`)
    ema.safetensors       their moving average, when there is one
    training_state.pt     optimizers, scaler, weighting, accumulators: plain containers and tensors, read with weights_only=True
    state.json            progress, schedule, best metrics, run ids: for a person as well
    manifest.json         sizes and SHA-256 of the others, written last

No pickle of ours is ever executed, and none can be smuggled in: the loader itself refuses anything but plain data, whatever
the manifest says. torch is imported by the functions that need it.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.damage import CheckpointDamaged, CheckpointNewer, reading
from linnaeus.checkpoint.hashed import FileEntry, HashedFile
from linnaeus.checkpoint.plain import assert_plain
from linnaeus.checkpoint.weight_files import read_weights, write_weights
from linnaeus.files import TEMPORARY, commit_directory, delete, file_digest, text_digest

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
MODEL, EMA, TRAINING, STATE, MANIFEST = "model.safetensors", "ema.safetensors", "training_state.pt", "state.json", "manifest.json"
REQUIRED = (MODEL, TRAINING, STATE)
HASHING_THREADS = 4


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A verified checkpoint. Its tensors are mapped from the files: copy what you keep or change, and let go of the rest."""

    path: Path
    step: int
    model_state: dict[str, Tensor]
    ema_state: dict[str, Tensor] | None
    training_state: dict[str, Any]
    state: dict[str, Any]


def step_name(step: int) -> str:
    """The directory of a step: `step-00001200`."""
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
    """Write `directory/step-N/` and return it once it is on the disk under its final name.

    `training_state`: dicts, lists, tuples, numbers, strings and tensors. `state`: what JSON can hold, keys strings; its `score`,
    if any, is what retention ranks by. A checkpoint of the same step is replaced. `parents` false: what holds `directory` must be
    there, since a run directory that has vanished is not to be made anew. TypeError: something is not plain. OSError: nothing of
    this counts, what was there before still does, and what was written is gone again as far as the disk allows.
    """
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
        entries[TRAINING] = _write_training(temporary / TRAINING, training_state)
        (temporary / STATE).write_text(json.dumps(state, indent=2) + "\n")
        write_manifest(temporary, step, state.get("score"), entries)
        commit_directory(temporary, final)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def _write_training(path: Path, training_state: dict[str, Any]) -> FileEntry:
    import torch

    with HashedFile(path) as file:
        torch.save(training_state, file)  # type: ignore[arg-type]
    return file.entry


def write_manifest(directory: Path, step: int, score: float | None, known: Mapping[str, FileEntry] | None = None) -> None:
    """Sizes and hashes of every file of `directory`, and a hash of the manifest itself; those of `known` are not read for it. Nothing
    is flushed."""
    entries = dict(known or {})
    for file in sorted(directory.iterdir()):
        if file.name != MANIFEST and file.name not in entries:
            entries[file.name] = FileEntry(file.stat().st_size, file_digest(file))
    files = {name: entries[name]._asdict() for name in sorted(entries)}
    content: dict[str, Any] = {"format": FORMAT, "step": step, "score": score, "files": files}
    content["sha256"] = _manifest_digest(content)
    (directory / MANIFEST).write_text(json.dumps(content, indent=2) + "\n")


def _manifest_digest(content: Mapping[str, Any]) -> str:
    return text_digest(json.dumps({k: v for k, v in content.items() if k != "sha256"}, sort_keys=True))


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, checked for itself: its own hash, its shape, its format. CheckpointDamaged, or CheckpointNewer of a newer format;
    OSError when the disk cannot read it now."""
    with reading(path, MANIFEST):
        if not stat.S_ISREG(os.stat(path / MANIFEST).st_mode):
            raise CheckpointDamaged(path, f"{MANIFEST} is no file")
        data = (path / MANIFEST).read_bytes()
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointDamaged(path, f"{MANIFEST} cannot be read ({_one_line(error)})") from None
    if not isinstance(content, dict) or content.get("sha256") != _manifest_digest(content):
        raise CheckpointDamaged(path, f"{MANIFEST} was altered (its own hash does not match)")
    if _is_count(content.get("format")) and content["format"] > FORMAT:
        raise CheckpointNewer(path, f"it has format {content['format']}, this program reads up to {FORMAT}: update linnaeus")
    fault = _fault_of(content) or _fault_of_name(path, content["step"])
    if fault is not None:
        raise CheckpointDamaged(path, f"{MANIFEST} is not what this program writes ({fault})")
    return content


def _fault_of(content: dict[str, Any]) -> str | None:
    """What in a manifest of our format has the wrong shape."""
    for key in ("format", "step"):
        if not _is_count(content.get(key)):
            return f"{key} is {content.get(key)!r}"
    score = content.get("score", "missing")
    if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float))):
        return f"score is {score!r}"
    files = content.get("files")
    if not isinstance(files, dict):
        return "files is no object"
    for name, entry in files.items():
        plain = isinstance(entry, dict) and _is_count(entry.get("size")) and isinstance(entry.get("sha256"), str)
        if not plain or Path(name).name != name:
            return f"the entry of {name!r}"
    return None


def _fault_of_name(path: Path, step: int) -> str | None:
    """A checkpoint may be moved and renamed, but not to the name of another step: the order among them is that of the names."""
    number = path.name.removeprefix("step-").partition(".")[0]
    return f"it is of step {step}" if path.name.startswith("step-") and number.isdecimal() and int(number) != step else None


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def check_sizes(path: Path) -> dict[str, Any]:
    """The manifest, if every file is there with its size: the cheap part of `verify`, which raises the same."""
    manifest = read_manifest(path)
    for name in REQUIRED:
        if name not in manifest["files"]:
            raise CheckpointDamaged(path, f"{name} is not in {MANIFEST}")
    for name, entry in manifest["files"].items():
        with reading(path, name):
            found = os.stat(path / name)
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointDamaged(path, f"{name} is no file")
        if found.st_size != entry["size"]:
            raise CheckpointDamaged(path, f"{name} has {found.st_size} bytes, {entry['size']} were written")
    return manifest


def is_intact(path: Path) -> bool:
    """Whether every file is there with its size. OSError when the disk does not say."""
    try:
        check_sizes(path)
    except CheckpointDamaged:
        return False
    return True


def verify(path: Path | str) -> dict[str, Any]:
    """The manifest, if every file is there with its size and hash. CheckpointDamaged says which is not, OSError
    which the disk cannot read now. Files are hashed side by side: that is most of the time it takes to resume."""
    path = Path(path)
    manifest = check_sizes(path)
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        list(pool.map(lambda name: _check_hash(path, name, manifest["files"][name]["sha256"]), manifest["files"]))
    return manifest


def _check_hash(path: Path, name: str, sha256: str) -> None:
    with reading(path, name):
        digest = file_digest(path / name)
    if digest != sha256:
        raise CheckpointDamaged(path, f"{name} was altered (its hash does not match)")


def load_checkpoint(path: Path | str, *, verified: bool = False) -> LoadedCheckpoint:
    """Verify and map a checkpoint. CheckpointDamaged (CheckpointNewer for a newer format) when it cannot be trusted; OSError when
    the disk or the system cannot read it now, which says nothing of it (`disk.py` knows how to go on).

    `verified`: another process has hashed these files just now; sizes are checked and the loaders refuse what is no plain data."""
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


def _read_weights(path: Path, name: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    try:
        with reading(path, name):
            return read_weights(path / name)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointDamaged(path, f"{name} is not a safetensors file ({_one_line(error)})") from None


def _read_training(path: Path) -> dict[str, Any]:
    """`weights_only=True` is said outright: an environment variable can turn off torch's default, not an explicit argument. Mapped,
    tensors are read when they are copied, once."""
    import torch

    try:
        with reading(path, TRAINING):
            content = torch.load(path / TRAINING, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, AssertionError) as error:
        raise CheckpointDamaged(path, f"{TRAINING} is not plain data ({_one_line(error)})") from None
    if not isinstance(content, dict):
        raise CheckpointDamaged(path, f"{TRAINING} holds a {type(content).__name__}, not a dict")
    return content


def _read_state(path: Path) -> dict[str, Any]:
    with reading(path, STATE):
        data = (path / STATE).read_bytes()
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointDamaged(path, f"{STATE} is not JSON ({_one_line(error)})") from None
    if not isinstance(content, dict):
        raise CheckpointDamaged(path, f"{STATE} holds a {type(content).__name__}, not an object")
    return content


def _one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:160] if lines else type(error).__name__
