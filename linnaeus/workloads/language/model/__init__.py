"""The network of the language workload: `gpt`, a decoder in named sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.workloads.language.config import GPTConfig
    from linnaeus.workloads.language.model.gpt import GPT


def build_gpt(config: GPTConfig, seed: int, vocabulary: int, block: int) -> GPT:
    """Return the network of `config` on the CPU, with weights that are a function of `seed`.

    `vocabulary` is the number of tokens, `block` the longest context in tokens. Raise `ConfigError` for impossible settings."""
    import torch

    from linnaeus.randomness import INIT, key
    from linnaeus.workloads.language.model.gpt import GPT

    with torch.device("meta"):  # skips torch's own initialisation
        model = GPT(config, vocabulary, block)
    model.to_empty(device="cpu")
    torch.default_generator.manual_seed(key(seed, INIT) & 0x7FFFFFFFFFFFFFFF)
    model.init_weights()
    return model
