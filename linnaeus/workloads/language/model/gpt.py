"""gpt: a decoder that reads tokens from left to right and says at each what comes next.

    tokens -> embedding (+ learned positions) -> dropout -> blocks -> norm -> scores by the embedding itself (tied head)

Everything between embedding and head is in `blocks`, a list that a part with further layers may extend or replace entry by entry: a
block takes the stream [B, T, width] and gives it back. The architecture and its initialisation are those of GPT-2 (Radford et al. 2019):
N(0, 0.02), and N(0, 0.02 / sqrt(2 layers)) for the matrices of a block that write to the residual stream. `model.dimensions` adds to it
what `dimensions.py` describes, in all blocks but the lowest quarter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.errors import ConfigError
from linnaeus.workloads.base import Model
from linnaeus.workloads.language.model.attention import Attend, Block
from linnaeus.workloads.language.model.dimensions import Dimensions, adapter_width, first_block, without_one
from linnaeus.workloads.language.model.positions import ROTARY_BASE, rotary_table
from linnaeus.workloads.language.model.sizes import rounded_up, size_of
from linnaeus.workloads.language.model.token_loss import token_losses

if TYPE_CHECKING:
    from linnaeus.data.samples import Batch
    from linnaeus.workloads.language.config import GPTConfig

STD = 0.02
APPROXIMATE = {"erf": "none", "tanh": "tanh"}  # model.gelu as torch names it
WRITERS = ("attention.output", "perceptron.down", "dimensions.up")  # to the residual stream
MASKABLE = tuple(
    f"{matrix}.weight"
    for matrix in ("attention.query_key_value", "attention.output", "perceptron.up", "perceptron.down", "dimensions.down", "dimensions.up")
)


class GPT(Model):
    """`model(batch)` reads `input` int64 [B, T], T up to `block`. With `target` [B, T] in the batch (-1: none) it returns `losses` [B, T]
    in float32 (or float64), their sum `loss_sum` [], and no scores, which need not outlive their loss; outside of training also `best`
    int64 [B, T], the likeliest tokens, which cost another pass over the scores. Without `target`: `logits` [B, T, rows of the embedding].

    With dimensions the batch may have their weights, `dimensions` float32 [B, D]; else those that `weigh` has set, all alike
    where it has not. Outside of training, given `target` and `sample`, there are also `losses_without` [B, T]: with one dimension switched
    off, another one for each sample (`dimensions.switched_off`)."""

    turns: Tensor | None  # rotary table [2, block, head width / 2]
    final_weights: Tensor | None  # of the dimensions [D]: those of the last update of a run

    def __init__(self, config: GPTConfig, vocabulary: int, block: int) -> None:
        """Raises ConfigError for numbers that do not go together. `vocabulary` tokens have a meaning; the rows of the embedding beyond
        them, where `vocabulary_multiple` makes any, only learn never to be predicted."""
        super().__init__()
        self.size, self.vocabulary, self.block = size_of(config), vocabulary, block
        self.rotary_base = _rotary_base(config, self.size.width // self.size.heads)
        width = self.size.width
        self.dimensions = tuple(config.dimensions)
        self.token = _embedding(rounded_up(vocabulary, config.vocabulary_multiple), width)
        self.position = _embedding(block, width) if self.rotary_base is None else None
        self.register_buffer("turns", None if self.rotary_base is None else self._turns(), persistent=False)
        self.register_buffer("final_weights", torch.empty(len(self.dimensions)) if self.dimensions else None, persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(self._block(number, config) for number in range(self.size.layers))
        self.norm = nn.LayerNorm(width, bias=config.bias)

    def _block(self, number: int, config: GPTConfig) -> Block:
        width, narrow, dimensions = self.size.width, adapter_width(config, self.size.width), None
        if self.dimensions and number >= first_block(self.size.layers):
            dimensions = Dimensions(width, len(self.dimensions), narrow, config.bias)
        return Block(width, self.size.heads, config.bias, config.dropout, dimensions, APPROXIMATE[config.gelu])

    def _turns(self) -> Tensor:
        assert self.rotary_base is not None
        return rotary_table(self.block, self.size.width // self.size.heads, self.rotary_base).float()

    def init_weights(self) -> None:
        """Every parameter and buffer, from torch's default generator."""
        into_residual = STD * (2 * len(self.blocks)) ** -0.5
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=into_residual if name.endswith(WRITERS) else STD)
            elif isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        if self.turns is not None:
            self.turns.copy_(self._turns())
        if self.final_weights is not None:
            self.final_weights.fill_(1 / len(self.dimensions))

    def weigh(self, weights: Sequence[float]) -> None:
        """Take other weights [D] where a batch has none."""
        assert self.final_weights is not None and len(weights) == len(self.dimensions)
        self.final_weights.copy_(torch.tensor(weights))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        weights = batch.get("dimensions", self.final_weights) if self.dimensions else None
        if "target" not in batch:
            return {"logits": self.logits(self.features(batch["input"], weights=weights))}
        outputs: dict[str, Tensor] = {}
        if weights is not None and "sample" in batch and not self.training:
            features = self.features(batch["input"], weights=without_one(weights, batch["sample"]))
            outputs["losses_without"] = token_losses(self.logits(features), batch["target"])
        logits = self.logits(self.features(batch["input"], weights=weights))
        outputs["losses"] = token_losses(logits, batch["target"])
        outputs["loss_sum"] = outputs["losses"].sum()  # here, where a compiler sees it: outside, a step of a small model takes 13 % longer
        return outputs if self.training else outputs | {"best": logits.argmax(-1)}

    def features(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        attend: Sequence[Attend] | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Normed features [B, T, width] of int64 tokens [B, T]. `positions` int64 [B, T] is where the tokens stand, by default 0 to
        T - 1; `attend` one callable per block in place of attention among the tokens themselves; `weights` of the dimensions [B, D] or
        [D], by default those that `weigh` has set."""
        x = self.token(tokens)
        if self.position is not None:
            x = x + (self.position.weight[: tokens.shape[1]] if positions is None else self.position(positions))
        x = self.dropout(x)
        turns, weights = self.turns, self.final_weights if weights is None else weights
        if turns is not None:
            turns = turns[:, : tokens.shape[1]] if positions is None else turns[:, positions].unsqueeze(2)
        for i, block in enumerate(self.blocks):
            x = block(x, turns, None if attend is None else attend[i], weights)
        return self.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        """Scores [..., rows of the embedding] of features [..., width]."""
        return F.linear(features, self.token.weight)

    def shared_parameters(self) -> list[nn.Parameter]:
        """The final norm."""
        return list(self.norm.parameters())

    def trunk_parameters(self) -> list[nn.Parameter]:
        """All: there is one task."""
        return list(self.parameters())

    @property
    def no_decay(self) -> set[str]:
        """Norms and biases; every matrix, the embeddings too, is decayed."""
        return {name for name, parameter in self.named_parameters() if parameter.dim() < 2}

    def maskable_parameters(self) -> list[str]:
        """Names of the matrices that connectivity masks may act on: those of attention, perceptron and adapters. Not the embedding, the
        positions or the gates, where one weight decides on a whole token, place or dimension and not on one connection of many."""
        return [name for name, _ in self.named_parameters() if name.endswith(MASKABLE)]

    def flops_per_token(self, length: int) -> int:
        """Floating-point operations of forward and backward for one token in a context of `length`: 6 N + 12 L H Q T.

        N: parameters without learned positions (6: a multiplication and an addition, forward once and backward twice); L layers of H
        heads of width Q over T = `length` tokens. (Chowdhery et al. 2022, "PaLM", appendix B; the causal half is not deducted.)"""
        weights = sum(parameter.numel() for parameter in self.parameters())
        weights -= self.position.weight.numel() if self.position is not None else 0
        return 6 * weights + 12 * self.size.layers * self.size.width * length

    def flops_per_sample(self) -> int:
        """Of a whole window, which is a sample."""
        return self.block * self.flops_per_token(self.block)


def _embedding(rows: int, width: int) -> nn.Embedding:
    """Without torch's own initialisation, which on the meta device imports its compiler: 1.6 s."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


def _rotary_base(config: GPTConfig, head_width: int) -> float | None:
    """None for learned positions. ConfigError for a base without effect, and for heads that have no pairs of channels."""
    if config.positions == "learned":
        if config.rotary_base is not None:
            raise ConfigError(
                f"model.rotary_base={config.rotary_base:g} has no effect with model.positions=learned; use positions=rotary or null"
            )
        return None
    if head_width % 2:
        raise ConfigError(f"model.positions=rotary turns pairs of channels, and heads here have {head_width}; change model.heads or width")
    return ROTARY_BASE if config.rotary_base is None else config.rotary_base
