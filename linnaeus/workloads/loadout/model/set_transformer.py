"""`set_transformer`: token probabilities from a set of tokens and a weapon.

    token embedding + weapon embedding -> linear -> layers -> mean or sum over the set -> residual blocks -> logits

`size=published` is SplatNLP's model with 140 tokens and 130 weapons, 83,001,420 parameters. `size=published_cli` has the defaults of
SplatNLP's command line, 20,833,612 parameters. Both have these numbers with `data.code=points`. `size=small` has no attention, which is not
worth its time: evidence for a style of build is a sum over the slots. It reads the sum of the token embeddings and the number of tokens,
and its logits also depend on the levels that the set shows (`level_logits.py`).
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout.config import SIZES, SetTransformerConfig, Size
from linnaeus.workloads.loadout.game.token_code import PAD, TokenCode
from linnaeus.workloads.loadout.model.level_logits import LevelLogits
from linnaeus.workloads.loadout.model.set_attention import InducedLayer, PlainLayer, feed_forward
from linnaeus.workloads.seeded_models import SeededModel, initialised

SHARE_OF_TOKENS = 0.06  # of all tokens in a build: initial bias of the logits
SUM_SCALE = 0.25  # of a pooling by the sum, so that a full set has about the scale of one embedding


class ResidualBlock(nn.Module):
    """Residual block: x + dropout(feed_forward(norm(x)))."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.feed_forward, self.dropout = nn.LayerNorm(width), feed_forward(width), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.feed_forward(self.norm(x)))


class SetTransformer(SeededModel):
    """Network that predicts the V tokens of a `TokenCode` for W weapons.

    `model(batch)` reads `tokens` int64 [B, L], padded with `PAD`, and `weapon` int64 [B]; it returns logits [B, V]. The tokens are sorted
    first, so that their order does not change the result, not even in the last bit."""

    def __init__(self, config: SetTransformerConfig, code: TokenCode, weapons: int) -> None:
        super().__init__()
        self.size, tokens = model_size(config), len(code)
        size = self.size
        self.token = nn.Embedding(tokens, size.embedding, padding_idx=PAD)
        self.weapon = nn.Embedding(weapons, size.embedding)
        self.input = nn.Linear(size.embedding, size.width) if size.embedding != size.width else nn.Identity()
        self.layers = nn.ModuleList(_layer(size, config.dropout) for _ in range(size.layers))
        self.blocks = nn.ModuleList(ResidualBlock(size.width, config.dropout) for _ in range(size.blocks))
        self.norm = nn.LayerNorm(size.width) if size.blocks else nn.Identity()
        self.output = nn.Linear(size.width, tokens)
        self.number = nn.Embedding(code.longest + 1, size.width) if size.levels else None
        self.levels = LevelLogits(size.width, code) if size.levels else None

    def init_weights(self) -> None:
        """Initialise every parameter and buffer, with torch's default generator."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.size.embedding**-0.5)
            elif isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, LevelLogits):
                module.init_weights()
            for points in (getattr(module, name, None) for name in ("points", "seeds")):
                if isinstance(points, nn.Parameter):
                    nn.init.xavier_uniform_(points)
        with torch.no_grad():
            self.token.weight[PAD].zero_()
            self.output.bias.fill_(torch.logit(torch.tensor(SHARE_OF_TOKENS)).item())

    def forward(self, batch: Batch) -> Tensor:
        tokens = batch["tokens"].sort(1).values
        real = tokens != PAD
        x = self.input(self.token(tokens) + self.weapon(batch["weapon"]).unsqueeze(1))
        for layer in self.layers:
            x = layer(x, real)
        weight = real.unsqueeze(2).to(x.dtype)
        total = (x * weight).sum(1)
        pooled = total / weight.sum(1).clamp(min=1) if self.size.mean else total * SUM_SCALE
        if self.number is not None:
            pooled = pooled + self.number(real.sum(1))
        for block in self.blocks:
            pooled = block(pooled)
        pooled = self.norm(pooled)
        logits = self.output(pooled)
        return logits if self.levels is None else logits + self.levels(pooled, tokens)

    def head_parameters(self) -> list[list[nn.Parameter]]:
        return [list(self.output.parameters())]

    def shared_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the output layer. The model has a single task, so no layer is shared by several tasks."""
        return list(self.output.parameters())

    def trunk_parameters(self) -> list[nn.Parameter]:
        return list(self.parameters())

    @property
    def no_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay: embeddings, learned points, norms and biases."""
        return {name for name, p in self.named_parameters() if p.dim() != 2 or name.startswith(("token.", "weapon.", "number."))}


def _layer(size: Size, dropout: float) -> nn.Module:
    if size.points:
        return InducedLayer(size.width, size.heads, size.points, size.norm, dropout)
    return PlainLayer(size.width, size.heads, size.norm, dropout)


def model_size(config: SetTransformerConfig) -> Size:
    """Return the size named `config.size`; `layers`, `width`, `heads` and `blocks` of `config` replace its values where they are not None.

    Raise `ConfigError` if `heads` is given for a network without attention layers, or does not divide `width`."""
    given = {name: value for name in ("layers", "width", "heads", "blocks") if (value := getattr(config, name)) is not None}
    size = dataclasses.replace(SIZES[config.size], **given)
    if not size.layers:
        if config.heads is not None:
            raise ConfigError(f"model.heads={config.heads} has no effect without attention layers; set model.layers, or leave it out")
        return size
    if size.width % size.heads:
        raise ConfigError(f"model.heads is {size.heads}, which does not divide the width {size.width}; set another number of heads")
    return size


def build_set_transformer(config: SetTransformerConfig, seed: int, code: TokenCode, weapons: int) -> SetTransformer:
    """Return the network on the CPU, with weights that are a function of `seed`.

    weapons: number of weapons. Raise `ConfigError` for settings that `model_size` refuses."""
    return initialised(lambda: SetTransformer(config, code, weapons), seed)
