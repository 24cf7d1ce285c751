"""Read the weights of `run.init_from=PATH` for a warm start: a new run that starts from given weights. (`resume.py` continues a run.)
`model.pretrained_file` is read in the same way.

PATH is a checkpoint directory, a run directory (`choice.py` chooses a checkpoint that verifies), a safetensors file, a directory of
published weights (`config.json` and `model.safetensors`, or several files with their index), or a torch file with a state dict, either as
its whole content or under one of `STATE_DICT_KEYS`. Wrapper prefixes (`module.`, `_orig_mod.`) are removed. `weight_matching.py` checks all
weights before the model is changed."""

from __future__ import annotations

import json
import pickle
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.choice import run_checkpoints
from linnaeus.checkpoint.format import EMA, MANIFEST, MODEL, STATE, TRAINING
from linnaeus.checkpoint.loading import CheckpointDamaged, verify
from linnaeus.checkpoint.resume import checkpoints_under
from linnaeus.checkpoint.weight_files import INDEX, convert_ddp_state, read_weights, weights_digest
from linnaeus.checkpoint.weight_matching import shorten
from linnaeus.errors import ConfigError, one_line
from linnaeus.files import file_digest

if TYPE_CHECKING:
    from torch import Tensor

PUBLISHED = "config.json"  # exists in a directory of published weights, but not in a checkpoint of this program, which must be verified
STATE_DICT_KEYS = ("model_state_dict", "model", "state_dict")  # keys of a torch file, in the order in which they are tried


@dataclass(frozen=True)
class InitialWeights:
    """Weights read from a file, not yet compared with a model. `state`: tensors on the CPU by name.

    `source`: the file that was read, for messages. `digest`: SHA-256 of the file. `notes`: lines for the log."""

    source: str
    digest: str
    state: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)


def read_initial_weights(path: str, key: str = "run.init_from", choice: str | int | None = None) -> InitialWeights:
    """Read the weights at `path`, the value of the configuration key `key`. No code in the file is executed.

    `choice`: which checkpoint of a run directory is read ("newest", "best" or a step), see `run_checkpoints`. Raise `ConfigError`, naming
    `key`, if the path does not exist, is damaged, or contains anything but plain tensors."""
    found = Path(path)
    try:
        if not found.exists():
            raise ConfigError(f"{path!r} does not exist; use a run directory, a checkpoint, or a file of weights")
        if choice is not None and not (found.is_dir() and checkpoints_under(found)):
            raise ConfigError(f"{path} contains no checkpoints of a run, so {choice!r} cannot be chosen; give the directory of a run")
        return _of_directory(found, choice) if found.is_dir() else _of_file(found)
    except CheckpointDamaged as damage:
        raise ConfigError(f"{key}: {damage.path} is damaged ({damage.reason}); use another checkpoint") from None
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read ({error.strerror}); use a file that you may read") from None
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def _of_directory(path: Path, choice: str | int | None) -> InitialWeights:
    if (path / MANIFEST).exists():
        return _of_checkpoint(path, [])
    skipped: list[str] = []
    for checkpoint, meaning in run_checkpoints(path, choice):
        try:
            return _of_checkpoint(checkpoint, [*skipped, f"checkpoint {checkpoint.name} is used, {meaning}"])
        except CheckpointDamaged as damage:
            skipped.append(f"checkpoint {damage.path} was skipped: {damage.reason}")
    if skipped:
        raise ConfigError(f"no checkpoint under {path} verifies; the first: {skipped[0]}")
    for name in (MODEL, INDEX):
        if (path / PUBLISHED).is_file() and (path / name).is_file():
            return _of_file(path / name)
    raise ConfigError(f"{path} contains no checkpoint; use a run directory, a step-... directory, or a file of weights")


def _of_checkpoint(path: Path, notes: list[str]) -> InitialWeights:
    """Return the weights in the checkpoint `path` that its run validates: the averaged weights if the monitored metric is named
    `val_ema/...`, otherwise the raw weights. The run need not have been validated before the checkpoint.

    `notes`: lines for the log. If the checkpoint has raw and averaged weights, the `notes` of the result have one more line, which says
    so."""
    files = verify(path)["files"]
    state = json.loads((path / STATE).read_text())
    metrics = [state["monitor"]] if state.get("monitor") else state.get("best", {})  # earlier versions did not save the monitored metric
    averaged = EMA in files and any(name.startswith("val_ema") for name in metrics)
    chosen, other, kind = (EMA, MODEL, "averaged") if averaged else (MODEL, EMA, "raw")
    if EMA in files:
        line = (
            f"{path} has raw and averaged weights; the run validates the {kind} ones, which are loaded; for the others use {path / other}"
        )
        notes = [*notes, line]
    return InitialWeights(str(path / chosen), files[chosen]["sha256"], read_safetensors(path / chosen), notes)


def _of_file(path: Path) -> InitialWeights:
    if path.name == TRAINING:
        raise ConfigError(f"{path} is the state of an optimizer; the weights are {path.with_name(MODEL)}")
    if (path.parent / MANIFEST).exists():
        verify(path.parent)
    with open(path, "rb") as file:
        head = file.read(9)
    if path.suffix == ".safetensors" or path.name == INDEX or head[8:] == b"{":
        tensors = read_safetensors(path)
        return InitialWeights(str(path), weights_digest(path), tensors)
    key, state, others = _find_state_dict(path, _read_torch(path))
    notes = [f"not read from {path}: {shorten(others)}"] if others else []
    return InitialWeights(f"{path}{f' [{key}]' if key else ''}", file_digest(path), _cleaned(path, state), notes)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors in the file `path` on the CPU. `path` is a safetensors file, or an index that lists several such files.

    Raise `ConfigError` if `path` is neither."""
    from safetensors import SafetensorError

    try:
        state = read_weights(path)
    except (SafetensorError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a safetensors file ({one_line(error)})") from None
    return _cleaned(path, state)


def _read_torch(path: Path) -> Any:
    """Load a torch file with `weights_only=True`. The argument is passed explicitly, so that an environment variable cannot change torch's
    default.

    Raise `ConfigError` if the file is damaged or contains other objects than tensors and plain values."""
    import torch

    unreadable = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, AssertionError)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (*unreadable, struct.error, OverflowError) as error:
        foreign = re.search(r"(?:GLOBAL|Unsupported (?:global|class|operand)[^\w]*)\s*([\w.]+\.[\w.]+)", str(error))
        defect = "is not a file of tensors in torch's format"
        if foreign:
            defect = f"contains {foreign[1]}, which is not plain data, and was not read"
        raise ConfigError(f"{path} {defect}; save it again with torch.save(model.state_dict(), ...)") from None


def _find_state_dict(path: Path, content: Any) -> tuple[str, Mapping[str, Any], list[str]]:
    """Find the state dict in `content`, the content of a torch file. Return (key of the state dict, the state dict, all other keys of
    `content`).

    If `content` itself is the state dict, return ("", `content`, []). Raise `ConfigError` if there is no state dict."""
    import torch

    if isinstance(content, Mapping):
        for name in STATE_DICT_KEYS:
            if isinstance(content.get(name), Mapping):
                return name, content[name], [str(key) for key in content if key != name]
        if content and all(isinstance(value, torch.Tensor) for value in content.values()):
            return "", content, []
    found = f"the keys {shorten([str(key) for key in content])}" if isinstance(content, Mapping) else f"a {type(content).__name__}"
    raise ConfigError(f"{path} contains {found}, and no state dict, neither bare nor under {', '.join(STATE_DICT_KEYS)}")


def _cleaned(path: Path, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a copy of a state dict with wrapper prefixes removed. Raise `ConfigError` if a value is not a dense tensor on the CPU."""
    import torch

    for name, value in state.items():
        plain = isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
        if not isinstance(name, str) or not plain:
            raise ConfigError(f"{path}: {name!r} is not a plain tensor ({type(value).__name__}); save it without that")
    try:
        return convert_ddp_state(state)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
