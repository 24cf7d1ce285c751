"""Dimensions: named adapters between attention and perceptron of a block, with weights that the schedule's phases set. A block adds to x

    sum over dimensions d of  w_d * gate_d(norm x) * adapter_d(norm x)

An adapter is a narrow perceptron (down, GELU, up: Houlsby et al. 2019). Its gate is a sigmoid at each position. The weights w_d come with
the batch, one row per sample. Every operation is per position, so the block stays causal. The adapters are computed together: the matrix
`down` has some rows for each dimension, and the matrix `up` some columns. The hidden units of a dimension are scaled by gate x weight, and
`up` sums the dimensions.

A batch without weights, in validation and generation, uses the weights of the run's last update. The score of a dimension is the loss with
its weight set to 0 and the other weights unchanged, minus the loss with all weights."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.errors import ConfigError
from linnaeus.workloads.language.config import GPTConfig


class Dimensions(nn.Module):
    """Adapters of all dimensions (named adapters, see module) in one block, with the gates of the adapters."""

    def __init__(self, width: int, number: int, adapter_width: int, bias: bool) -> None:
        super().__init__()
        self.number = number
        self.norm = nn.LayerNorm(width, bias=bias)
        self.gate = nn.Linear(width, number, bias=bias)
        self.down = nn.Linear(width, number * adapter_width, bias=bias)
        self.up = nn.Linear(number * adapter_width, width, bias=bias)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the sum over dimensions (named adapters) that the block adds to x, [B, T, width], from x [B, T, width]. `weights`: [B, D],
        or [D] for all samples."""
        x = self.norm(x)
        inner = F.gelu(self.down(x)).unflatten(-1, (self.number, -1))
        strength = self.gate(x).sigmoid() * weights.unsqueeze(-2)
        return self.up((inner * strength.unsqueeze(-1).to(inner.dtype)).flatten(-2))


def ablation_mask(sample: Tensor, number: int) -> Tensor:
    """Return bool [B, D], True for the dimension number `sample` mod D, which is ablated (has weight 0) for this validation sample.
    `sample`: int64 [B], window numbers. `number`: D."""
    return (sample % number)[:, None] == torch.arange(number, device=sample.device)


def adapter_width(config: GPTConfig, width: int) -> int:
    """Return the number of channels of an adapter. Raise `ConfigError` for a repeated name of a dimension (named adapter), for a name that
    cannot be part of a metric's name, and for an adapter width without dimensions."""
    names = config.dimensions
    if not names and config.adapter_width is not None:
        raise ConfigError(f"model.adapter_width={config.adapter_width} has no effect without model.dimensions; set them, or use null")
    invalid = next((name for name in names if not name.isidentifier()), None)
    if invalid is not None:
        raise ConfigError(f"model.dimensions has {invalid!r}; a name must be letters, digits and underscores, and not begin with a digit")
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ConfigError(f"model.dimensions has {repeated} twice; names must be unique")
    if config.adapter_width is not None:
        return config.adapter_width
    return -(-width // 8)  # eight dimensions together are as wide as the stream
