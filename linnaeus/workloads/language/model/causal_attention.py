"""Define a block of the decoder: causal attention and a two-layer perceptron with pre-norm and residual connections; rotary positions.

To generate text, `generation.KeyValueCache` stores the keys and values of earlier tokens. A block then calls the function `attend` with the
queries, keys and values of the new tokens in place of its own attention. Any other part of a block must be causal too: its output at a
position may depend on that position and earlier ones only, and on tokens of earlier calls only through `attend`.

Rotary positions (Su et al. 2021, "RoFormer") rotate queries and keys by angles proportional to their position, so that their product
depends on their distance only. D rotated channels have D / 2 planes; plane i rotates by base^(-2i / D) per token. The other channels of a
head, if there are any, do not depend on positions.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.workloads.language.model.dimensions import Dimensions

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # queries, keys and values of new tokens [B, H, T, D] -> attention output [B, H, T, D]
ROTARY_BASE = 10_000.0  # the slowest plane makes a full turn in about 60,000 tokens


def rotary_table(length: int, channels: int, base: float) -> Tensor:
    """Return the cosines and sines of the rotation angles at positions 0 to `length` - 1, float64 [2, length, channels / 2]."""
    frequency = base ** -(torch.arange(0, channels, 2, dtype=torch.float64, device="cpu") / channels)
    angle = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()])


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Return x [B, H, T, head width] with the pairs (i, i + D / 2) of its first D channels rotated by the angles of `table`.

    `table`: [2, T, D / 2], or [2, B, 1, T, D / 2] if each row has its own positions."""
    cos, sin = table[0], table[1]
    a, b, *others = x.split(table.shape[-1], dim=-1)  # `others` are not rotated
    return torch.cat([a * cos - b * sin, a * sin + b * cos, *others], dim=-1).to(x.dtype)


class CausalAttention(nn.Module):
    """Multi-head self-attention in which each position attends to itself and earlier positions."""

    def __init__(self, width: int, heads: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = nn.Linear(width, 3 * width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, rotary: Tensor | None, attend: Attend | None) -> Tensor:
        """Return [B, T, width] from x [B, T, width]. `rotary`: the rotary table of the positions; None: positions are learned. `attend`:
        function that computes the attention from queries, keys and values; None: ordinary causal attention among the tokens of x."""
        query, key, value = (part.transpose(1, 2) for part in self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).unbind(2))
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)
        if attend is not None:
            attended = attend(query, key, value)
        else:
            dropout = self.dropout if self.training else 0.0
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        return self.output(attended.transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    """Two linear layers with a hidden width of 4 x width and GELU between them. `approximate` is the argument of `F.gelu`: `none` or
    `tanh`."""

    def __init__(self, width: int, bias: bool, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate
        self.up = nn.Linear(width, 4 * width, bias=bias)
        self.down = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class Block(nn.Module):
    """Transformer block: x + attention(norm(x)), then x + dimensions(x) if the block has dimensions (named adapters, `dimensions.py`), then
    x + perceptron(norm(x)). If `parallel` is True, all of them read the input of the block: x + attention(norm(x)) + dimensions(x) +
    perceptron(norm(x))."""

    def __init__(
        self, width: int, heads: int, bias: bool, dropout: float, dimensions: Dimensions | None, approximate: str, parallel: bool
    ) -> None:
        super().__init__()
        self.parallel = parallel
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.attention = CausalAttention(width, heads, bias, dropout)
        self.dimensions = dimensions
        self.perceptron = Perceptron(width, bias, approximate)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rotary: Tensor | None, attend: Attend | None = None, weights: Tensor | None = None) -> Tensor:
        """Return the residual stream [B, T, width] after the block. `rotary` and `attend`: as in `CausalAttention.forward`.

        `weights`: weights of the dimensions (named adapters), [B, D], or [D] for all samples; None without dimensions."""
        start = x
        x = x + self.dropout(self.attention(self.norm1(x), rotary, attend))
        if self.dimensions is not None:
            assert weights is not None
            x = x + self.dropout(self.dimensions(start if self.parallel else x, weights))
        return x + self.dropout(self.perceptron(self.norm2(start if self.parallel else x)))
