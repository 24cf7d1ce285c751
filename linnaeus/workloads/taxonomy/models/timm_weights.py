"""Load pretrained weights into a timm backbone from a local file (`model.pretrained_file`), and resample position embeddings.

The weights in the file have timm's names, optionally with a prefix (if the timm model is a part of another model, as in a checkpoint of
this program). For a family of models timm may define a filter. This filter renames weights of the original authors and resizes position
embeddings."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from linnaeus.checkpoint.initial_weights import InitialWeights, read_initial_weights
from linnaeus.checkpoint.weight_matching import shorten
from linnaeus.errors import ConfigError, counted, one_line
from linnaeus.requirements import without_collection

KEY = "model.pretrained_file"


def import_timm() -> Any:
    """Return the module timm."""
    with without_collection("timm"):
        import timm

    return timm


def load_pretrained_file(backbone: Any, path: str) -> str:
    """Load the weights in the file `path` into a timm model without a classifier. Return a line for the log with three numbers of weights:
    loaded, missing in the file, and not used. Raise `ConfigError` if the file cannot be read, if no weight fits, or if a weight is not
    finite."""
    own = backbone.state_dict()
    weights = read_initial_weights(path, KEY)
    state, classifier = _without_classifier(backbone, _without_prefix(weights.state, own))
    state = _filtered(backbone, state, path)
    loaded = {name: value for name, value in state.items() if name in own and value.shape == own[name].shape}
    if not loaded:
        raise ConfigError(
            f"{KEY}: not one of {counted(len(weights.state), 'weight')} in {path} fits model.backbone, which has {len(own)}; "
            f"in the file: {shorten(list(weights.state))}; in the model: {shorten(list(own))}"
        )
    infinite = [name for name, value in loaded.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    if infinite:
        raise ConfigError(f"{KEY}: {shorten(infinite)} in {path} contains values that are not finite; use another file")
    backbone.load_state_dict(loaded, strict=False)
    counts = {"missing": [name for name in own if name not in loaded], "left over": [name for name in state if name not in loaded]}
    parts = [f"{len(names)} {title}" + (f" ({shorten(names)})" if names else "") for title, names in counts.items()]
    parts += [f"{len(classifier)} of the classifier not used"] if classifier else []
    return f"pretrained weights from {path}: {len(loaded)} loaded, {', '.join(parts)}"


def find_network(path: str) -> str:
    """Return timm's name of the network whose weights are in the file `path`, by the config.json of its folder, or by the name of the file:
    resnet18.a1_in1k.safetensors, or resnet50_a1_0-14fe96d1.pth.

    Raise `ConfigError` if the file does not exist, or if neither of them names a network."""
    timm, file = import_timm(), Path(path)
    if not file.is_file():
        raise ConfigError(f"{KEY}: {path!r} does not exist")
    for name in (_network_of_folder(file.parent / "config.json"), file.stem):
        parts = re.split(r"(?=[-_.])", name)
        for count in range(len(parts), 0, -1):
            base, _, tag = "".join(parts[:count]).partition(".")
            if timm.is_model(base):
                return f"{base}.{tag}" if timm.is_model_pretrained(f"{base}.{tag}") else base
    raise ConfigError(f"model.backbone=auto: {path} does not name a network of timm; set model.backbone to the network of these weights")


def _network_of_folder(config: Path) -> str:
    """Return the network that a config.json of timm names, with the tag of its weights, such as resnet18.a1_in1k; "" without one."""
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
        return f"{found['architecture']}.{found.get('pretrained_cfg', {}).get('tag', '')}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or a config.json of another program
        return ""


def resample_positions(weights: InitialWeights, backbone: Any, prefix: str) -> InitialWeights:
    """Return `weights` in which the position embeddings of timm's `backbone` are resampled to the backbone's image size.

    `prefix`: prefix of the backbone's names in `weights`. Weights that timm's filter cannot resample are returned unchanged."""
    state, own = weights.state, {prefix + name: value for name, value in backbone.state_dict().items()}
    different = [name for name in own if name in state and state[name].shape != own[name].shape]
    if not different:
        return weights
    part = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    filtered = {prefix + name: value for name, value in _filtered(backbone, part, weights.source, "the initial weights").items()}
    found = {name: filtered[name] for name in different if name in filtered and filtered[name].shape == own[name].shape}
    notes = [f"resampled to the image size: {shorten(list(found))}"] if found else []
    return replace(weights, state=state | found, notes=[*weights.notes, *notes])


def _without_prefix(state: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights `state` with a common prefix, such as `trunk.backbone.`, removed from their names.

    `own`: the model's own weights. The prefix is chosen so that, after it is removed, most names in `own` are found. Weights without this
    prefix keep their names."""
    first = next(iter(own), "")
    prefixes = {"", *(name.removesuffix(first) for name in state if name.endswith("." + first))}
    prefix = max(sorted(prefixes), key=lambda prefix: sum(prefix + name in state for name in own))
    return {name.removeprefix(prefix): value for name, value in state.items()}


def _without_classifier(backbone: Any, state: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights `state` without the weights of timm's classifier, and the names of the weights left out."""
    found = backbone.pretrained_cfg.get("classifier") or ()
    layers = [found] if isinstance(found, str) else list(found)
    names = [name for name in state if any(name.startswith(f"{layer}.") for layer in layers)]
    return {name: value for name, value in state.items() if name not in names}, names


def _filtered(backbone: Any, state: dict[str, Tensor], path: str, key: str = KEY) -> dict[str, Tensor]:
    """Return the weights after applying the filter that timm defines for this family of models (see module); unchanged if there is none.
    Raise `ConfigError`, naming `key`, if the weights do not fit."""
    convert = getattr(sys.modules[type(backbone).__module__], "checkpoint_filter_fn", None)
    try:
        return state if convert is None else dict(convert(state, backbone))
    except (KeyError, RuntimeError, ValueError, AttributeError, TypeError, IndexError) as error:
        raise ConfigError(f"{key}: the weights in {path} are not of model.backbone ({one_line(error)}); use another file") from None
