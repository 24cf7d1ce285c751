"""Convert weights to the layouts of transformers and back, and make config.json. The layout is GPT-2 for learned positions, GPT-NeoX for
rotary ones.

    GPT-2       matrices of blocks are [inputs, outputs]; every layer has biases
    GPT-NeoX    rows of query, key and value are grouped by head; every layer has biases; attention and perceptron may be parallel, and a
                fraction of the channels of a head may be rotated

In both, the output layer may share the weights of the embedding. A model without biases is written with biases of 0. A model whose biases
are all 0 is read as one without biases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.workloads.language.model.gpt import GPT
from linnaeus.workloads.language.pretrained import CAUSAL_MASK, EMBEDDING, HEAD, NAMES

QUERY_KEY_VALUE = "attention.query_key_value"
ACTIVATIONS = {"tanh": "gelu_pytorch_tanh", "none": "gelu"}  # `approximate` of F.gelu -> name in config.json


class Layout(NamedTuple):
    """Names of weights in a layout of transformers. `prefix`: text before all names but that of the output layer. `blocks`:
    name of the list of blocks. `parts`: name of a module in `model/gpt.py` -> its name in the layout."""

    prefix: str
    blocks: str
    parts: Mapping[str, str]

    def name(self, own: str) -> str:
        """Return the name in this layout of a weight. `own`: its name in `model/gpt.py`. For example, blocks.0.norm1.weight is
        transformer.h.0.ln_1.weight."""
        found = re.fullmatch(r"(?:blocks\.(\d+)\.)?(.+)\.(\w+)", own)
        assert found is not None
        block = "" if found[1] is None else f"{self.blocks}.{found[1]}."
        return f"{'' if own == HEAD else self.prefix}{block}{self.parts[found[2]]}.{found[3]}"


LAYOUTS = {
    "gpt2": Layout("transformer.", "h", {own: theirs for theirs, own in NAMES.items()}),
    "gpt_neox": Layout(
        "gpt_neox.",
        "layers",
        {
            "token": "embed_in",
            "norm": "final_layer_norm",
            "norm1": "input_layernorm",
            "attention.query_key_value": "attention.query_key_value",
            "attention.output": "attention.dense",
            "norm2": "post_attention_layernorm",
            "perceptron.up": "mlp.dense_h_to_4h",
            "perceptron.down": "mlp.dense_4h_to_h",
            "head": "embed_out",
        },
    ),
}
IGNORED_NAMES = re.compile(r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)|.*\.rotary_emb\.inv_freq")  # buffers of old files


def layout_of(network: GPT) -> str:
    """Return the layout that fits a network: gpt2 or gpt_neox. Raise `ConfigError` for a network that fits neither layout."""
    if network.dimensions:
        raise ConfigError(
            f"the model has dimensions (model.dimensions=[{','.join(network.dimensions)}]), which no architecture of transformers has; "
            "train it without them to export it"
        )
    if network.position is not None and network.parallel_residual:
        raise ConfigError(
            "the model has model.positions=learned and model.parallel_residual=true, which no architecture of transformers has together; "
            "train it with model.positions=rotary to export it"
        )
    return "gpt_neox" if network.position is None else "gpt2"


def to_layout(network: GPT) -> dict[str, Tensor]:
    """Return the weights of a network under the names and in the shapes of the layout that fits it."""
    name = layout_of(network)
    layout, found = LAYOUTS[name], {}
    for own, tensor in _with_biases(network).items():
        if name == "gpt2" and own.startswith("blocks.") and tensor.dim() == 2:
            tensor = tensor.t()
        elif name == "gpt_neox" and QUERY_KEY_VALUE in own:
            tensor = tensor.unflatten(0, (3, network.size.heads, -1)).transpose(0, 1).flatten(0, 2)
        found[layout.name(own)] = tensor.contiguous()
    return found


def _with_biases(network: GPT) -> dict[str, Tensor]:
    """Return the weights of a network, adding a bias of 0 to every layer without one."""
    state = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    layers = [
        name.removesuffix(".weight") for name in state if name.endswith(".weight") and name not in (EMBEDDING, "position.weight", HEAD)
    ]
    missing = {f"{layer}.bias": len(state[f"{layer}.weight"]) for layer in layers if f"{layer}.bias" not in state}
    return state | {name: torch.zeros(size, dtype=network.token.weight.dtype) for name, size in missing.items()}


def from_layout(state: Mapping[str, Tensor], name: str, heads: int, tied: bool) -> dict[str, Tensor]:
    """Return weights of the layout `name` under the names of `model/gpt.py`. Keep a name that is not in the layout; loading refuses it
    later.

    Leave out buffers. If `tied` is True, leave out an output layer that is a copy of the embedding. Leave out the biases if all of them are
    0."""
    layout = LAYOUTS[name]
    own_names = {theirs: own for own, theirs in layout.parts.items()}
    head, embedding = (f"{layout.parts[own]}.weight" for own in ("head", "token"))
    plain = {key.removeprefix(layout.prefix): tensor for key, tensor in state.items()}
    found: dict[str, Tensor] = {}
    for key, tensor in plain.items():
        copied = tied and key == head and embedding in plain and torch.equal(tensor, plain[embedding])
        if copied or CAUSAL_MASK.fullmatch(key) or IGNORED_NAMES.fullmatch(key):
            continue
        match = re.fullmatch(rf"(?:{layout.blocks}\.(\d+)\.)?(.+)\.(\w+)", key)
        if match is None or match[2] not in own_names:
            found[key] = tensor
            continue
        own = f"{'' if match[1] is None else f'blocks.{match[1]}.'}{own_names[match[2]]}.{match[3]}"
        if name == "gpt2" and match[1] is not None and tensor.dim() == 2:
            tensor = tensor.t()
        elif name == "gpt_neox" and QUERY_KEY_VALUE in own and len(tensor) % (3 * heads) == 0:
            tensor = tensor.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
        found[own] = tensor
    biases = [key for key in found if key.endswith(".bias")]
    return found if any(bool(found[key].any()) for key in biases) else {key: found[key] for key in found if key not in biases}


def configuration(network: GPT, end: int | None) -> dict[str, Any]:
    """Return the content of config.json for a network. `end`: id of the end marker; None if there is none."""
    size, name = network.size, layout_of(network)
    block: Any = network.blocks[0]
    activation, dropout = ACTIVATIONS[block.perceptron.approximate], network.dropout.p
    common = {
        "model_type": name,
        "vocab_size": len(network.token.weight),
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": network.head is None,
        "torch_dtype": str(network.token.weight.dtype).removeprefix("torch."),
    }
    if name == "gpt2":
        return common | {
            "architectures": ["GPT2LMHeadModel"],
            "n_positions": network.block,
            "n_embd": size.width,
            "n_layer": size.layers,
            "n_head": size.heads,
            "activation_function": activation,
            "resid_pdrop": dropout,
            "embd_pdrop": dropout,
            "attn_pdrop": dropout,
            "layer_norm_epsilon": 1e-5,
        }
    return common | {
        "architectures": ["GPTNeoXForCausalLM"],
        "max_position_embeddings": network.block,
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.width,
        "hidden_act": activation,
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
        "attention_bias": True,
        "use_parallel_residual": network.parallel_residual,
        "layer_norm_eps": 1e-5,
        "rotary_pct": network.rotary_fraction,
        "rotary_emb_base": network.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": network.rotary_base, "partial_rotary_factor": network.rotary_fraction},
    }
