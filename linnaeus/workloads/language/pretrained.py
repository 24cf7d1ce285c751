"""Adapt the weights of `run.init_from` to a language model: check that the weights were trained on the same tokens, and convert the layout
of GPT-2 and nanoGPT.

Weights of a run with other tokens (`identity` in its dataset.json) are refused, because an id would mean another token. GPT-2's published
weights (`config.json` and `model.safetensors` of the Hugging Face hub: gpt2, gpt2-medium, gpt2-large, gpt2-xl) have other names, transposed
matrices and a stored causal mask. nanoGPT's ckpt.pt has GPT-2's names and matrices that are not transposed. If settings of the model
(`model.layers`, ...) differ from the settings of the weights, one error lists all of them. If the weights have more positions than
`data.block`, the first `data.block` positions are used."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnaeus.checkpoint.initial_weights import PUBLISHED, InitialWeights
from linnaeus.checkpoint.weight_matching import matches_prefix
from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError
from linnaeus.files import read_json
from linnaeus.workloads.language.model.gpt import GPT, rounded_up
from linnaeus.workloads.run_weights import folder_of

RECORD = "dataset.json"
EMBEDDING, HEAD = "token.weight", "head.weight"
GPT2_ROWS = (50257, 50304)  # rows of GPT-2's embedding, and rounded up to a multiple of 64
NAMES = {
    "wte": "token",
    "wpe": "position",
    "ln_f": "norm",
    "ln_1": "norm1",
    "attn.c_attn": "attention.query_key_value",
    "attn.c_proj": "attention.output",
    "ln_2": "norm2",
    "mlp.c_fc": "perceptron.up",
    "mlp.c_proj": "perceptron.down",
    "lm_head": "head",
}
CAUSAL_MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")
GELUS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh", "gelu": "erf"}  # config.json -> model.gelu
KEYS = ("positions", "bias", "gelu", "parallel_residual", "tied_embeddings")  # settings that are checked, besides the size
# Values in config.json that the model here cannot change.
FIXED = {"layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}


def adapt_weights(weights: InitialWeights, model: GPT, config: Config, tokens: str) -> InitialWeights:
    """Return the weights under the names of `model`. `tokens`: identity (kind, size and hash) of this run's tokens. Raise `ConfigError` for
    weights of a run with other tokens, and for GPT-2 weights whose settings differ from the model's settings."""
    of_tokens = [EMBEDDING] if model.head is None else [EMBEDDING, HEAD]
    if all(matches_prefix(config.run.init_skip, name) for name in of_tokens):  # the tokens of the weights do not matter
        return _convert_gpt2(weights, model, config, None)
    notes = check_tokens(weights, tokens, of_tokens)
    return _convert_gpt2(dataclasses.replace(weights, notes=[*weights.notes, *notes]), model, config, tokens)


def check_tokens(source: InitialWeights, tokens: str, weights: Sequence[str]) -> list[str]:
    """Compare the tokens of the run that contains the file of the weights `source` with the tokens of this run. Return messages for the
    user.

    `tokens` is the identity (kind, size and hash) of this run's tokens. `weights`: names of the weights that have a row for each token.
    Raise `ConfigError` if the tokens of the two runs differ."""
    run = folder_of(source, RECORD)
    trained = None if run is None else (read_json(run / RECORD) or {}).get("identity")
    if run is None or not isinstance(trained, str) or trained == tokens:
        return []
    if trained.startswith("unknown-") or tokens.startswith("unknown-"):
        return [f"tokens: {run} was trained on {trained}, this run has {tokens}: it is unknown whether they are the same"]
    raise ConfigError(
        f"run.init_from: {run} was trained on the tokens {trained}, this run has {tokens}; use its tokenizer, "
        f"data.tokenizer={trained.partition('-')[0]} data.tokenizer_file={run / 'tokenizer.json'}, or skip the weights of "
        f"tokens, run.init_skip=[{','.join(name.partition('.')[0] for name in weights)}]"
    )


# -- the layout of GPT-2 -------------------------------------------------------------------------------------------------------


def _convert_gpt2(weights: InitialWeights, model: GPT, config: Config, tokens: str | None) -> InitialWeights:
    """Convert weights in GPT-2's layout to the names and layout of `model`. Return weights in any other layout unchanged.

    tokens: identity of this run's tokens. None if `run.init_skip` skips the embedding; then the number of rows of the embedding is not
    checked. Learned positions from number `model.block` on are cut off. Raise `ConfigError` for other tokens or other settings of the
    model."""
    path = str(config.run.init_from)
    state = {name.removeprefix("transformer."): tensor for name, tensor in weights.state.items()}
    embedding, first = state.get("wte.weight"), state.get("h.0.attn.c_attn.weight")
    if embedding is None or first is None or embedding.dim() != 2 or first.dim() != 2:
        return weights
    transposed = first.shape[0] != 3 * embedding.shape[1]  # published weights are [inputs, outputs]
    rows = embedding.shape[0] if tokens is not None else None
    if tokens is not None and rows in GPT2_ROWS and tokens.partition("-")[0] not in ("gpt2", "unknown"):
        raise ConfigError(f"run.init_from: {path} was trained on the tokens of GPT-2, this run has {tokens}; use data.tokenizer=gpt2")
    published = _read_published_config(Path(path)) if transposed else {}
    _check_settings(path, _settings(state, published, transposed), config, model, rows)
    notes = [] if "n_head" in published else [f"{weights.source} does not have the number of heads; model.heads is not checked"]
    converted = _renamed(state, transposed)
    positions = converted.get("position.weight")
    if positions is not None and positions.dim() == 2 and len(positions) > model.block:
        converted["position.weight"] = positions[: model.block]
        notes.append(f"{weights.source} has {len(positions)} positions; the first {model.block} are used (data.block)")
    return dataclasses.replace(weights, state=converted, notes=[*weights.notes, *notes])


def _read_published_config(path: Path) -> dict[str, Any]:
    """Return the content of config.json of published weights; {} if the file does not exist.

    Raise `ConfigError` if the file cannot be read, and for an activation function or another value that `model=gpt` does not support."""
    file = (path if path.is_dir() else path.parent) / PUBLISHED
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"run.init_from: {file} cannot be read ({' '.join(str(error).split())}); download it again") from None
    content = content if isinstance(content, dict) else {}
    unsupported = [name for name, value in FIXED.items() if content.get(name, value) != value]
    if str(content.get("activation_function", "gelu_new")) not in GELUS:
        unsupported.append("activation_function")
    if unsupported:
        raise ConfigError(f"run.init_from: {file} has {unsupported[0]}={content[unsupported[0]]}, which model=gpt does not support")
    return content


def _settings(state: Mapping[str, Tensor], published: Mapping[str, Any], transposed: bool) -> dict[str, Any]:
    """Return the settings of the group `model` (name -> value) that a model with the weights `state` must have.

    `published`: content of the published config.json; {} for nanoGPT's weights. `transposed`: True for GPT-2's published weights, False for
    nanoGPT's."""
    needed = {
        "layers": 1 + max(int(name.split(".")[1]) for name in state if re.match(r"h\.\d+\.", name)),
        "heads": published.get("n_head"),
        "width": state["wte.weight"].shape[1],
        "positions": "learned" if "wpe.weight" in state else None,
        "bias": "ln_f.bias" in state,
        "gelu": GELUS[published.get("activation_function", "gelu_new")] if transposed else "erf",
        "parallel_residual": False,
        "tied_embeddings": "lm_head.weight" not in state or _is_tied(state),
    }
    return {name: value for name, value in needed.items() if value is not None}


def _check_settings(path: str, needed: Mapping[str, Any], config: Config, model: GPT, rows: int | None) -> None:
    """Raise `ConfigError` if the settings of `model` differ from the settings `needed`. `rows`: number of rows of the embedding in the
    file; None if the embedding is skipped."""
    chosen: Any = config.model
    own = dataclasses.asdict(model.size) | {name: getattr(chosen, name) for name in KEYS}
    wrong = [f"model.{name}={str(value).lower()}" for name, value in needed.items() if own[name] != value]
    multiple = {rounded_up(model.vocabulary, 64): 64, model.vocabulary: 1}.get(rows or 0)
    if rows != len(model.token.weight) and multiple is not None:
        wrong.append(f"model.vocabulary_multiple={multiple}")
    if wrong:
        raise ConfigError(f"run.init_from: {path} is a GPT-2 with other settings; set {' '.join(wrong)}")


def _renamed(state: Mapping[str, Tensor], transposed: bool) -> dict[str, Tensor]:
    """Return the weights under the names of `model/gpt.py`. Leave out causal masks, and the output layer if it is a copy of the embedding.

    `transposed`: True if matrices of blocks are [inputs, outputs]; these matrices are then transposed. A weight without a counterpart in
    the model keeps its name; loading refuses it later."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if CAUSAL_MASK.fullmatch(name):
            continue
        if name == "lm_head.weight" and _is_tied(state):
            continue  # the tied head, stored a second time
        renamed[_new_name(name)] = tensor.t() if transposed and name.startswith("h.") and tensor.dim() == 2 else tensor
    return renamed


def _is_tied(state: Mapping[str, Tensor]) -> bool:
    """Return True if the output layer `lm_head` of GPT-2 is a copy of the embedding."""
    return torch.equal(state["lm_head.weight"], state["wte.weight"])


def _new_name(name: str) -> str:
    found = re.fullmatch(r"(?:h(\.\d+\.))?(.+)\.(\w+)", name)
    if found is None or found[2] not in NAMES:
        return name
    return f"{'blocks' + found[1] if found[1] else ''}{NAMES[found[2]]}.{found[3]}"
