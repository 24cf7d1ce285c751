"""`run.init_from=PATH`: the weights alone, for a new run to begin with. Continuing a run with everything else is `resume.py`.

PATH is a checkpoint directory, a run directory (its newest checkpoint that verifies), a safetensors file, a folder of one as models are
published (`config.json` and `model.safetensors`), or a torch file: a bare state dict, or one under `model_state_dict`, `model` or
`state_dict`. Names of wrappers in front (`module.`, `_orig_mod.`) go.
What begins with a name of `run.init_skip` is not taken. Of the rest nothing is taken by halves: every weight of the model must be
there with its shape and nothing may be left over, but for the names that `run.init_allow` begins; and all of it is checked before
the model or a file is touched.
"""

from __future__ import annotations

import json
import pickle
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.damage import CheckpointDamaged
from linnaeus.checkpoint.fitting import Report, check_fit, load_into, some
from linnaeus.checkpoint.format import EMA, MANIFEST, MODEL, STATE, TRAINING, verify
from linnaeus.checkpoint.resume import list_checkpoints
from linnaeus.checkpoint.weight_files import convert_ddp_state, read_weights
from linnaeus.errors import ConfigError
from linnaeus.files import file_digest

if TYPE_CHECKING:
    from torch import Tensor, nn

PUBLISHED = "config.json"  # beside published weights; no checkpoint of ours has one, so none is read unverified
INSIDE = ("model_state_dict", "model", "state_dict")  # where plain files keep the state dict, in this order


@dataclass(frozen=True)
class InitialWeights:
    """Weights read and not yet compared with a model: `state` by clean names, on the host; `source` says what was read, for a
    person; `digest` is the SHA-256 of the file; `notes` what else to know."""

    source: str
    digest: str
    state: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)


def initial_weights(path: str, model: nn.Module, allow: Sequence[str] = (), skip: Sequence[str] = ()) -> Report:
    """Read, check and load at once; see `read_initial`, `check_fit`, `load_into`."""
    weights = read_initial(path)
    report = check_fit(weights, model, allow, skip)
    load_into(weights, report, model)
    return report


def read_initial(path: str) -> InitialWeights:
    """The weights that PATH stands for. ConfigError, one line, for what is not there, damaged, or no plain data; nothing in a
    file is ever executed."""
    found = Path(path)
    if not found.exists():
        raise ConfigError(f"run.init_from: {path!r} is not there; give a run directory, a checkpoint, or a file of weights")
    try:
        return _of_directory(found) if found.is_dir() else _of_file(found)
    except CheckpointDamaged as damage:
        raise ConfigError(f"run.init_from: {damage.path} is damaged ({damage.reason}); name another checkpoint") from None
    except OSError as error:
        raise ConfigError(f"run.init_from: {path} cannot be read ({error.strerror}); give a file that you may read") from None


def _of_directory(path: Path) -> InitialWeights:
    if (path / MANIFEST).exists():
        return _of_checkpoint(path, [])
    for folder in (path / "checkpoints", path):
        skipped: list[str] = []
        for _, checkpoint in reversed(list_checkpoints(folder)):
            try:
                return _of_checkpoint(checkpoint, skipped)
            except CheckpointDamaged as damage:
                skipped.append(f"checkpoint {damage.path} was skipped: {damage.reason}")
        if skipped:
            raise ConfigError(f"run.init_from: no checkpoint in {folder} verifies; the newest: {skipped[0]}")
    if (path / PUBLISHED).is_file() and (path / MODEL).is_file():
        return _of_file(path / MODEL)
    raise ConfigError(f"run.init_from: {path} holds no checkpoint; give a run directory, a step-... directory, or a file of weights")


def _of_checkpoint(path: Path, notes: list[str]) -> InitialWeights:
    """The weights that the run validated: the averages where its validation results are theirs (`val_ema/...`), else the raw ones."""
    files = verify(path)["files"]
    best = json.loads((path / STATE).read_text()).get("best", {})
    averaged = EMA in files and any(name.startswith("val_ema") for name in best)
    if EMA in files:
        chosen, other = (EMA, MODEL) if averaged else (MODEL, EMA)
        which = "averaged" if averaged else "raw"
        notes = [
            *notes,
            f"{path} has raw and averaged weights; {which} ones were validated and are taken, for the others name {path / other}",
        ]
    else:
        chosen = MODEL
    return InitialWeights(str(path / chosen), files[chosen]["sha256"], _read_safetensors(path / chosen), notes)


def _of_file(path: Path) -> InitialWeights:
    if path.name == TRAINING:
        raise ConfigError(f"run.init_from: {path} is the state of an optimizer; the weights are {path.with_name(MODEL)}")
    if (path.parent / MANIFEST).exists():
        verify(path.parent)
    with open(path, "rb") as file:
        head = file.read(9)
    if path.suffix == ".safetensors" or head[8:] == b"{":
        return InitialWeights(str(path), file_digest(path), _read_safetensors(path))
    name, state, others = _state_dict_of(path, _read_torch(path))
    notes = [f"not read from {path}: {some(others)}"] if others else []
    return InitialWeights(f"{path}{f' [{name}]' if name else ''}", file_digest(path), _clean(path, state), notes)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    try:
        return _clean(path, read_weights(path))
    except ConfigError:
        raise
    except (SafetensorError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"run.init_from: {path} is no safetensors file ({_brief(error)})") from None


def _read_torch(path: Path) -> Any:
    """`weights_only=True` is said outright, so no environment variable can turn it off."""
    import torch

    unreadable = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, AssertionError)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (*unreadable, struct.error, OverflowError) as error:
        foreign = re.search(r"(?:GLOBAL|Unsupported (?:global|class|operand)[^\w]*)\s*([\w.]+\.[\w.]+)", str(error))
        what = f"holds {foreign[1]}, which is no plain data, and was not read" if foreign else "is no file of tensors that torch can read"
        raise ConfigError(f"run.init_from: {path} {what}; have it saved again as torch.save(model.state_dict(), ...)") from None


def _state_dict_of(path: Path, content: Any) -> tuple[str, Mapping[str, Any], list[str]]:
    """(key it was under, the state dict, what else the file holds)."""
    import torch

    if isinstance(content, Mapping):
        for name in INSIDE:
            if isinstance(content.get(name), Mapping):
                return name, content[name], [str(key) for key in content if key != name]
        if content and all(isinstance(value, torch.Tensor) for value in content.values()):
            return "", content, []
    holds = f"the keys {some([str(key) for key in content])}" if isinstance(content, Mapping) else f"a {type(content).__name__}"
    raise ConfigError(f"run.init_from: {path} holds {holds}, and no state dict under {', '.join(INSIDE)} or by itself")


def _clean(path: Path, state: Mapping[str, Any]) -> dict[str, Tensor]:
    import torch

    for name, value in state.items():
        plain = isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
        if not isinstance(name, str) or not plain:
            raise ConfigError(
                f"run.init_from: {path}: {name!r} is no plain tensor ({type(value).__name__}); save the state dict without it"
            )
    try:
        return convert_ddp_state(state)
    except ValueError as error:
        raise ConfigError(f"run.init_from: {path}: {error}") from None


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
