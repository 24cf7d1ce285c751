"""Weights of `run.init_from` for a language model: they must know the tokens of this run, and may come in the layout of GPT-2.

A run says in its dataset.json which tokens it learnt; others are refused, for an id would mean another token.

GPT-2's published weights (`config.json` and `model.safetensors` of the Hugging Face hub: gpt2, gpt2-medium, gpt2-large, gpt2-xl) have
other names, matrices the other way round, and the causal table among them. nanoGPT's ckpt.pt has the same names and matrices as here. Of
either, what must be set alike (`model.layers`, `model.bias`, ...) is told in one line, and of more positions than `data.block` the first
are taken.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.fitting import covers
from linnaeus.checkpoint.initial_weights import PUBLISHED
from linnaeus.errors import ConfigError
from linnaeus.workloads.language.model.sizes import rounded_up

if TYPE_CHECKING:
    from torch import Tensor

    from linnaeus.checkpoint.initial_weights import InitialWeights
    from linnaeus.config.schema import Config
    from linnaeus.workloads.language.model.gpt import GPT

EMBEDDING = "token.weight"
GPT2_ROWS = (50257, 50304)  # of its embedding, and rounded up to a multiple of 64
OUTSIDE = {"wte": "token", "wpe": "position", "ln_f": "norm"}
IN_BLOCK = {
    "ln_1": "norm1",
    "attn.c_attn": "attention.query_key_value",
    "attn.c_proj": "attention.output",
    "ln_2": "norm2",
    "mlp.c_fc": "perceptron.up",
    "mlp.c_proj": "perceptron.down",
}
CAUSAL_TABLE = re.compile(r"h\.\d+\.attn\.(masked_)?bias")
GELUS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "erf"}  # config.json -> model.gelu
# What config.json may say of the function, and a model here computes.
FIXED = {"layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}


def adopted(weights: InitialWeights, model: GPT, config: Config, tokens: str) -> InitialWeights:
    """The weights under our names. ConfigError, one line, where they know other tokens than `tokens` (the identity of this run's), or
    are of a GPT-2 that this model is not."""
    path = str(config.run.init_from)
    if covers(config.run.init_skip, EMBEDDING):  # then it does not matter which tokens they know
        return _gpt2_as_ours(weights, model, config, path)
    notes = check_tokens(path, tokens)
    return _gpt2_as_ours(dataclasses.replace(weights, notes=[*weights.notes, *notes]), model, config, path, tokens)


def check_tokens(path: str, tokens: str) -> list[str]:
    """Notes. Raises ConfigError where `path` is of a run that has learnt other tokens."""
    run = _run_of(Path(path))
    if run is None:
        return []
    learnt = json.loads((run / "dataset.json").read_text(encoding="utf-8"))["identity"]
    if learnt == tokens:
        return []
    if learnt.startswith("unknown-") or tokens.startswith("unknown-"):
        return [f"tokens: {path} learnt {learnt}, and these are {tokens}: nobody can tell whether they mean the same"]
    raise ConfigError(
        f"run.init_from: {path} learnt the tokens {learnt}, and this run has {tokens}; give its own by "
        f"data.tokenizer={learnt.partition('-')[0]} data.tokenizer_file={run / 'tokenizer.json'}, or leave out what knows them: "
        "run.init_skip=[token]"
    )


def _run_of(path: Path) -> Path | None:
    """The directory of the language run that `path` is, or is part of."""
    for folder in (path, *path.resolve().parents[:3]):
        try:
            facts = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return folder if isinstance(facts, dict) and isinstance(facts.get("identity"), str) else None
    return None


# -- the layout of GPT-2 -------------------------------------------------------------------------------------------------------


def _gpt2_as_ours(weights: InitialWeights, model: GPT, config: Config, path: str, tokens: str | None = None) -> InitialWeights:
    """As they are, where they are of another layout. `tokens` None: it does not matter which they know."""
    state = {name.removeprefix("transformer."): tensor for name, tensor in weights.state.items()}
    embedding, first = state.get("wte.weight"), state.get("h.0.attn.c_attn.weight")
    if embedding is None or first is None or embedding.dim() != 2 or first.dim() != 2:
        return weights
    turned = first.shape[0] != 3 * embedding.shape[1]  # published: [inputs, outputs]
    rows = embedding.shape[0] if tokens is not None else None
    if tokens is not None and rows in GPT2_ROWS and tokens.partition("-")[0] not in ("gpt2", "unknown"):
        raise ConfigError(f"run.init_from: {path} knows the tokens of GPT-2, and this run has {tokens}; use data.tokenizer=gpt2")
    told = _read_config(Path(path)) if turned else {}
    _check_settings(path, _settings(state, told, turned), config, model, rows)
    notes = [] if "n_head" in told else [f"the number of heads is not in {weights.source}: model.heads is taken to be right"]
    ours = _renamed(state, turned)
    positions = ours.get("position.weight")
    if positions is not None and positions.dim() == 2 and len(positions) > model.block:
        ours["position.weight"] = positions[: model.block]
        notes.append(f"of {len(positions)} positions the first {model.block} are taken, as data.block says")
    return dataclasses.replace(weights, state=ours, notes=[*weights.notes, *notes])


def _read_config(path: Path) -> dict[str, Any]:
    """config.json of published weights; {} where there is none. ConfigError where it says what no model here can do."""
    file = (path if path.is_dir() else path.parent) / PUBLISHED
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"run.init_from: {file} cannot be read ({' '.join(str(error).split())}); fetch it again") from None
    told = told if isinstance(told, dict) else {}
    wrong = [name for name, value in FIXED.items() if told.get(name, value) != value]
    if str(told.get("activation_function", "gelu_new")) not in GELUS:
        wrong.append("activation_function")
    if wrong:
        raise ConfigError(f"run.init_from: {file} has {wrong[0]}={told[wrong[0]]}, which no model here computes")
    return told


def _settings(state: Mapping[str, Tensor], told: Mapping[str, Any], turned: bool) -> dict[str, Any]:
    """Settings of `model` that these weights ask for."""
    asked = {
        "layers": 1 + max(int(name.split(".")[1]) for name in state if re.match(r"h\.\d+\.", name)),
        "heads": told.get("n_head"),
        "width": state["wte.weight"].shape[1],
        "positions": "learned" if "wpe.weight" in state else None,
        "bias": "ln_f.bias" in state,
        "gelu": GELUS[told.get("activation_function", "gelu_new")] if turned else "erf",
    }
    return {name: value for name, value in asked.items() if value is not None}


def _check_settings(path: str, asked: Mapping[str, Any], config: Config, model: GPT, rows: int | None) -> None:
    """`rows` of the embedding; None where it is not taken."""
    chosen: Any = config.model
    have = dataclasses.asdict(model.size) | {name: getattr(chosen, name) for name in ("positions", "bias", "gelu")}
    wrong = [f"model.{name}={str(value).lower()}" for name, value in asked.items() if have[name] != value]
    multiple = {rounded_up(model.vocabulary, 64): 64, model.vocabulary: 1}.get(rows or 0)
    if rows != len(model.token.weight) and multiple is not None:
        wrong.append(f"model.vocabulary_multiple={multiple}")
    if wrong:
        raise ConfigError(f"run.init_from: {path} is a GPT-2 of other settings; begin with it as {' '.join(wrong)}")


def _renamed(state: Mapping[str, Tensor], turned: bool) -> dict[str, Tensor]:
    """Ours by the names of GPT-2. What has no counterpart keeps its name, to be refused by it."""
    import torch

    ours: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if CAUSAL_TABLE.fullmatch(name):
            continue
        if name == "lm_head.weight" and tensor.shape == state["wte.weight"].shape and torch.equal(tensor, state["wte.weight"]):
            continue  # tied, and so said twice
        ours[_our_name(name.split("."))] = tensor.t() if turned and name.startswith("h.") and tensor.dim() == 2 else tensor
    return ours


def _our_name(parts: Sequence[str]) -> str:
    *module, kind = parts
    if len(module) > 2 and module[0] == "h" and ".".join(module[2:]) in IN_BLOCK:
        return ".".join(["blocks", module[1], IN_BLOCK[".".join(module[2:])], kind])
    outside = OUTSIDE.get(".".join(module))
    return f"{outside}.{kind}" if outside is not None else ".".join(parts)
