"""Read a model in the format of the library transformers: a published GPT-2, or a folder that `linnaeus export` has written.

A folder has config.json, model.safetensors (or several files with their index), and the files of the tokenizer. No code in it is executed,
and nothing is unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from linnaeus.checkpoint.initial_weights import InitialWeights, read_initial_weights
from linnaeus.checkpoint.weight_files import INDEX
from linnaeus.errors import ConfigError, counted, quoted
from linnaeus.workloads.language.config import GPTConfig
from linnaeus.workloads.language.pretrained import GELUS
from linnaeus.workloads.language.tokenizers import Tokenizer
from linnaeus.workloads.language.trained.library_tokenizers import read_library_tokenizer
from linnaeus.workloads.language.trained.transformers_layout import LAYOUTS, from_layout
from linnaeus.workloads.trained_models import own_file, own_json

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MOST_POSITIONS = 2**20
ROTARY_BASE, ROTARY_FRACTION = 10_000.0, 0.25  # of a GPT-NeoX whose config.json has none
# key of config.json -> (value if the key is missing, value that `model=gpt` has)
FIXED: Mapping[str, Mapping[str, tuple[Any, Any]]] = {
    "gpt2": {
        "layer_norm_epsilon": (1e-5, 1e-5),
        "scale_attn_weights": (True, True),
        "scale_attn_by_inverse_layer_idx": (False, False),
    },
    "gpt_neox": {"layer_norm_eps": (1e-5, 1e-5), "rope_type": ("default", "default")},
}
# key of config.json that is true or false -> (setting of the group `model`, value if the key is missing)
SWITCHES: Mapping[str, Mapping[str, tuple[str, bool]]] = {
    "gpt2": {"tie_word_embeddings": ("tied_embeddings", True)},
    "gpt_neox": {"tie_word_embeddings": ("tied_embeddings", False), "use_parallel_residual": ("parallel_residual", True)},
}
# Keys of config.json: (activation function, its value if the key is missing), (layers, heads, width, positions).
KEYS = {
    "gpt2": (("activation_function", "gelu_new"), ("n_layer", "n_head", "n_embd", "n_positions")),
    "gpt_neox": (("hidden_act", "gelu"), ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings")),
}
RENAMED = {"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base", "type": "rope_type"}


class Published(NamedTuple):
    """Model read from a folder. `vocabulary`: number of tokens. `block`: longest context in tokens."""

    model: GPTConfig
    vocabulary: int
    block: int
    weights: InitialWeights
    tokenizer: Tokenizer


def is_transformers_folder(path: Path) -> bool:
    """Return True if `path` is a folder with the config.json of a GPT-2 or a GPT-NeoX."""
    return path.is_dir() and (own_json(path, CONFIG) or {}).get("model_type") in list(LAYOUTS)


def read_transformers_folder(folder: Path) -> Published:
    """Return the model in a folder. Raise `ConfigError` for another architecture, and for files that are missing, damaged or do not belong
    together."""
    content = own_json(folder, CONFIG) or {}
    name = str(content["model_type"])
    _check_files(folder)
    if not (folder / WEIGHTS).is_file() and not (folder / INDEX).is_file():
        raise ConfigError(f"MODEL: {folder} has neither {WEIGHTS} nor {INDEX}; download or export it again")
    settings = _settings(folder, name, content)
    weights = read_initial_weights(str(folder), "MODEL")
    state = from_layout(weights.state, name, settings["heads"], settings["tied_embeddings"])
    tokenizer = read_library_tokenizer(folder)
    embedding = state.get("token.weight")
    if embedding is None or embedding.dim() != 2 or len(embedding) < tokenizer.size:
        rows = "no embedding" if embedding is None else f"an embedding of {list(embedding.shape)}"
        raise ConfigError(f"MODEL: {folder} has {rows}, and a tokenizer of {tokenizer.size} tokens; they are not of one model")
    if embedding.shape[1] != settings["width"]:
        raise ConfigError(f"MODEL: {folder / CONFIG} has the width {settings['width']}, and its weights {embedding.shape[1]}")
    layers = 1 + max((int(found[1]) for key in state if (found := re.match(r"blocks\.(\d+)\.", key))), default=-1)
    if layers != settings["layers"]:
        raise ConfigError(f"MODEL: {folder / CONFIG} has {counted(settings['layers'], 'layer')}, and its weights {layers}")
    block = settings.pop("block")
    model = GPTConfig(
        name="gpt",
        size="gpt2",
        **settings,
        bias="norm.bias" in state,
        vocabulary_multiple=len(embedding),
        dimensions=[],
        adapter_width=None,
    )
    return Published(model, tokenizer.size, block, replace(weights, state=state), tokenizer)


def _check_files(folder: Path) -> None:
    """Raise `ConfigError` if a file with a name that may be read (.json, .safetensors, .txt) is a link out of the folder, a pipe or another
    object that is not a file."""
    for file in sorted(folder.iterdir()):
        if file.suffix in (".json", ".safetensors", ".txt"):
            try:
                own_file(folder, file.name)
            except OSError as error:
                raise ConfigError(f"MODEL: {file} cannot be read ({error.strerror})") from None


def _settings(folder: Path, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the group `model` that a config.json describes, and `block`. `name`: gpt2 or gpt_neox. Raise `ConfigError` for
    a value that `model=gpt` does not support."""
    (activation, default_gelu), names = KEYS[name]
    merged: dict[str, Any] = dict(content)
    rope = content.get("rope_parameters") or content.get("rope_scaling")
    if isinstance(rope, dict):
        merged |= {RENAMED.get(str(key), str(key)): value for key, value in rope.items()}
    gelu = merged.setdefault(activation, default_gelu)
    wrong = [key for key, (default, ours) in FIXED[name].items() if merged.setdefault(key, default) != ours]
    wrong += [activation] if gelu not in list(GELUS) else []
    if wrong:
        values = ", ".join(f"{key}={quoted(merged[key])}" for key in wrong)
        raise ConfigError(f"MODEL: {folder / CONFIG} has {values}, which model=gpt does not support")
    numbers = [merged.get(key) for key in names]
    bad = next((key for key, n in zip(names, numbers) if type(n) is not int or not 1 <= n <= MOST_POSITIONS), None)
    if bad is not None:
        raise ConfigError(f"MODEL: {folder / CONFIG} has {bad}={quoted(merged.get(bad))}; it must be an integer from 1 on")
    layers, heads, width, block = numbers
    found: dict[str, Any] = {"layers": layers, "heads": heads, "width": width, "block": block, "gelu": GELUS[gelu], "dropout": 0.0}
    for key, (setting, default) in SWITCHES[name].items():
        found[setting] = merged.get(key, default)
        if not isinstance(found[setting], bool):
            raise ConfigError(f"MODEL: {folder / CONFIG} has {key}={quoted(merged[key])}; it must be true or false")
    if name == "gpt2":
        return found | {"positions": "learned", "rotary_base": None, "rotary_fraction": 1.0, "parallel_residual": False}
    base, fraction = merged.get("rotary_emb_base", ROTARY_BASE), merged.get("rotary_pct", ROTARY_FRACTION)
    if not (isinstance(base, int | float) and base > 1):
        raise ConfigError(f"MODEL: {folder / CONFIG} has rotary_emb_base={quoted(base)}; it must be a number above 1")
    if not (type(fraction) in (int, float) and 0 < fraction <= 1):
        raise ConfigError(f"MODEL: {folder / CONFIG} has rotary_pct={quoted(fraction)}; it must be a number above 0 and at most 1")
    return found | {"positions": "rotary", "rotary_base": base, "rotary_fraction": float(fraction)}
