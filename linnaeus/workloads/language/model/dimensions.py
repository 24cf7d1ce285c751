"""Dimensions: named adapters beside attention and perceptron, whose strengths a curriculum sets.

    x + sum over dimensions d of  w_d * gate_d(norm x) * adapter_d(norm x)

An adapter is a narrow perceptron (down, GELU, up: Houlsby et al. 2019), its gate a sigmoid for each position; the weights w_d come with the
batch, one row a sample. Position by position, so what follows a token cannot reach it. All dimensions are one pair of matrices, in which
each has rows of its own: a gate times a weight scales those of its dimension, and the second matrix adds them up.

Without batch weights those of the last update are used, in validation and for text. What a dimension is worth is the loss without
it: its weight is set to 0, the others stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from linnaeus.workloads.language.config import GPTConfig

NARROWER = 8  # an adapter is this much narrower than the stream: eight dimensions together are as wide as it


class Dimensions(nn.Module):
    """What the dimensions of one block add to the stream."""

    def __init__(self, width: int, number: int, adapter_width: int, bias: bool) -> None:
        super().__init__()
        self.number = number
        self.norm = nn.LayerNorm(width, bias=bias)
        self.gate = nn.Linear(width, number, bias=bias)
        self.down = nn.Linear(width, number * adapter_width, bias=bias)
        self.up = nn.Linear(number * adapter_width, width, bias=bias)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """What is added to x [B, T, width] by dimensions of the `weights` [B, D], or [D] for every sample."""
        x = self.norm(x)
        inner = F.gelu(self.down(x)).unflatten(-1, (self.number, -1))
        strength = self.gate(x).sigmoid() * weights.unsqueeze(-2)
        return self.up((inner * strength.unsqueeze(-1).to(inner.dtype)).flatten(-2))


def first_block(layers: int) -> int:
    """The first of `layers` blocks that has dimensions: the lowest quarter reads only."""
    return layers // 4


def without_one(weights: Tensor, sample: Tensor) -> Tensor:
    """[B, D]: `weights`, [B, D] or [D], with one dimension of each sample int64 [B] switched off, the one that `switched_off` names."""
    return weights * ~switched_off(sample, weights.shape[-1])


def switched_off(sample: Tensor, number: int) -> Tensor:
    """bool [B, D]: the dimension without which a validation sample int64 [B] is also run, `sample` mod D."""
    return (sample % number)[:, None] == torch.arange(number, device=sample.device)


def adapter_width(config: GPTConfig, width: int) -> int:
    """Channels of an adapter. ConfigError for names that cannot be rows of a report, and for a width of nothing."""
    names = config.dimensions
    if not names and config.adapter_width is not None:
        raise ConfigError(f"model.adapter_width={config.adapter_width} has no effect without model.dimensions; name some, or make it null")
    wrong = next((name for name in names if not name.isidentifier()), None)
    if wrong is not None:
        raise ConfigError(f"model.dimensions names {wrong!r}; a name is letters, digits and underscores, and no digit comes first")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"model.dimensions names {twice} twice; name it once")
    return -(-width // NARROWER) if config.adapter_width is None else config.adapter_width
