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
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.files import TEMPORARY, commit_directory, file_digest, text_digest
from linnaeus.checkpoint.weights import read_weights, write_weights
from linnaeus.config.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
MODEL, EMA, TRAINING, STATE, MANIFEST = "model.safetensors", "ema.safetensors", "training_state.pt", "state.json", "manifest.json"
REQUIRED = (MODEL, TRAINING, STATE)
PLAIN = (bool, int, float, str, type(None))


class CheckpointDamaged(ValueError):
    """A checkpoint is not what was written; `reason` names the file and what is wrong with it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A verified checkpoint in host memory. Tensors of `model_state` are mapped from the file: copy what you keep and change."""

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
) -> Path:
    """Write `directory/step-N/` and return it once it is on the disk under its final name.

    `training_state`: dicts, lists, tuples, numbers, strings and tensors. `state`: what JSON can hold, keys strings; its `score`,
    if any, is what retention ranks by. A checkpoint of the same step is replaced. TypeError: something is not plain.
    """
    import torch

    directory = Path(directory)
    assert_plain(training_state, "training_state", tensors=True)
    assert_plain(state, "state", tensors=False)
    directory.mkdir(parents=True, exist_ok=True)
    final = directory / step_name(step)
    temporary = directory / f"{TEMPORARY}{final.name}-{os.getpid()}"
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir()
    write_weights(temporary / MODEL, model_state)
    if ema_state is not None:
        write_weights(temporary / EMA, ema_state)
    torch.save(training_state, temporary / TRAINING)
    (temporary / STATE).write_text(json.dumps(state, indent=2) + "\n")
    write_manifest(temporary, step, state.get("score"))
    commit_directory(temporary, final)
    return final


def assert_plain(value: Any, where: str, *, tensors: bool) -> None:
    """TypeError naming the place of the first value that `weights_only=True` or JSON would not give back as it was."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            if type(key) is not str and not (tensors and type(key) is int):
                raise TypeError(f"{where}: key {key!r} is a {type(key).__name__}, not a string")
            assert_plain(item, f"{where}[{key!r}]", tensors=tensors)
    elif type(value) in (list, tuple):
        for i, item in enumerate(value):
            assert_plain(item, f"{where}[{i}]", tensors=tensors)
    elif type(value) not in PLAIN and not (tensors and _is_tensor(value)):
        raise TypeError(f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds plain values only")


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def write_manifest(directory: Path, step: int, score: float | None) -> None:
    """Sizes and hashes of every file of `directory`, and a hash of the manifest itself; nothing is flushed."""
    files = {f.name: {"size": f.stat().st_size, "sha256": file_digest(f)} for f in sorted(directory.iterdir()) if f.name != MANIFEST}
    content: dict[str, Any] = {"format": FORMAT, "step": step, "score": score, "files": files}
    content["sha256"] = _manifest_digest(content)
    (directory / MANIFEST).write_text(json.dumps(content, indent=2) + "\n")


def _manifest_digest(content: Mapping[str, Any]) -> str:
    return text_digest(json.dumps({k: v for k, v in content.items() if k != "sha256"}, sort_keys=True))


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, checked for itself. CheckpointDamaged: missing, unreadable or altered; ConfigError: of a newer format."""
    try:
        content = json.loads((path / MANIFEST).read_text())
    except FileNotFoundError:
        raise CheckpointDamaged(path, f"{MANIFEST} is missing") from None
    except (ValueError, OSError) as error:
        raise CheckpointDamaged(path, f"{MANIFEST} cannot be read ({error})") from None
    if not isinstance(content, dict) or content.get("sha256") != _manifest_digest(content):
        raise CheckpointDamaged(path, f"{MANIFEST} was altered (its own hash does not match)")
    if content["format"] > FORMAT:
        raise ConfigError(f"{path}: has checkpoint format {content['format']}, this program reads up to {FORMAT}; update linnaeus")
    return content


def check_sizes(path: Path) -> dict[str, Any]:
    """The manifest, if every file is there with its size: the cheap part of `verify`."""
    manifest = read_manifest(path)
    for name in REQUIRED:
        if name not in manifest["files"]:
            raise CheckpointDamaged(path, f"{name} is not in {MANIFEST}")
    for name, entry in manifest["files"].items():
        try:
            size = (path / name).stat().st_size
        except OSError:
            raise CheckpointDamaged(path, f"{name} is missing") from None
        if size != entry["size"]:
            raise CheckpointDamaged(path, f"{name} has {size} bytes, {entry['size']} were written")
    return manifest


def verify(path: Path | str) -> dict[str, Any]:
    """The manifest, if every file is there with its size and hash. CheckpointDamaged says which is not."""
    path = Path(path)
    manifest = check_sizes(path)
    for name, entry in manifest["files"].items():
        try:
            digest = file_digest(path / name)
        except OSError as error:
            raise CheckpointDamaged(path, f"{name} cannot be read ({error.strerror})") from None
        if digest != entry["sha256"]:
            raise CheckpointDamaged(path, f"{name} was altered (its hash does not match)")
    return manifest


def load_checkpoint(path: Path | str) -> LoadedCheckpoint:
    """Verify and read a checkpoint into host memory. CheckpointDamaged or ConfigError (newer format) when it cannot be trusted."""
    path = Path(path)
    manifest = verify(path)
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
        return read_weights(path / name)
    except (SafetensorError, ValueError) as error:
        raise CheckpointDamaged(path, f"{name} is not a safetensors file ({_one_line(error)})") from None


def _read_training(path: Path) -> dict[str, Any]:
    """`weights_only=True` is said outright: an environment variable can turn off torch's default, not an explicit argument."""
    import torch

    try:
        content = torch.load(path / TRAINING, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointDamaged(path, f"{TRAINING} is not plain data ({_one_line(error)})") from None
    if not isinstance(content, dict):
        raise CheckpointDamaged(path, f"{TRAINING} holds a {type(content).__name__}, not a dict")
    return content


def _read_state(path: Path) -> dict[str, Any]:
    try:
        content = json.loads((path / STATE).read_text())
    except ValueError as error:
        raise CheckpointDamaged(path, f"{STATE} is not JSON ({_one_line(error)})") from None
    if not isinstance(content, dict):
        raise CheckpointDamaged(path, f"{STATE} holds a {type(content).__name__}, not an object")
    return content


def _one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:160] if lines else type(error).__name__
