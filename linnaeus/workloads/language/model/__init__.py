"""Networks of the language workload: `gpt`, a decoder in named sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.workloads.language.config import GPTConfig
    from linnaeus.workloads.language.model.gpt import GPT


def build_gpt(config: GPTConfig, seed: int, vocabulary: int, block: int) -> GPT:
    """The network of `config.model` on the CPU, its weights a function of `seed`.

    `vocabulary` is the number of the tokenizer's tokens, `block` the longest context in tokens. Raises ConfigError where the
    configuration asks for what a model cannot be."""
    import torch

    from linnaeus.randomness import INIT, key
    from linnaeus.workloads.language.model.gpt import GPT

    with torch.device("meta"):  # no time goes into torch's own initialisation, and no number comes from it
        model = GPT(config, vocabulary, block)
    model.to_empty(device="cpu")
    torch.default_generator.manual_seed(key(seed, INIT) & 0x7FFFFFFFFFFFFFFF)
    model.init_weights()
    return model
