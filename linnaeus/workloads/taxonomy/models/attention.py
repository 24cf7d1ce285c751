"""Transformer blocks over a sequence of special tokens (class, metadata) followed by image tokens on a grid.

Image tokens carry 2-D rotary positions (Su et al. 2021, one half of a head for each axis): a query and a key meet by
their offset in rows and columns. Special tokens have no place and are not turned.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.models.residual import Residual

ROTARY_BASE = 100.0  # grids are tens of tokens wide, not thousands: the slowest wave spans about 600 tokens


def rotary_table(rows: int, columns: int, head_width: int, special: int) -> Tensor:
    """Cosines and sines [2, special + rows * columns, head_width / 2]: a turn per pair of channels, none for special tokens."""
    assert head_width % 4 == 0, "a head has pairs of channels for each of two axes"
    frequency = ROTARY_BASE ** -(torch.arange(head_width // 4, dtype=torch.float64) / (head_width // 4))
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angle = torch.cat([y.reshape(-1, 1) * frequency, x.reshape(-1, 1) * frequency], dim=1)
    angle = torch.cat([angle.new_zeros(special, angle.shape[1]), angle])
    return torch.stack([angle.cos(), angle.sin()]).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + half) of x [..., T, head_width] by the angles of a `rotary_table`."""
    cos, sin = table
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Multi-head attention in which the first `queries` tokens ask (all of them by default) and every token answers."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def forward(self, x: Tensor, table: Tensor, queries: int | None) -> Tensor:
        key, value = self.key_value(x).chunk(2, dim=-1)
        query = rotate(self._heads(self.query(x[:, :queries])), table[:, :queries])
        answer = F.scaled_dot_product_attention(query, rotate(self._heads(key), table), self._heads(value))
        return self.output(answer.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Pre-norm attention and MLP. With `queries` only the first tokens are computed and returned: what a last block
    is asked for, at a fraction of its cost (class attention, Touvron et al. 2021)."""

    def __init__(self, width: int, head_width: int, expansion: float, scale: float | None, dropout: float, drop_path: float) -> None:
        super().__init__()
        hidden = int(width * expansion)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, head_width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.residual1 = Residual(width, scale, dropout, drop_path)
        self.residual2 = Residual(width, scale, dropout, drop_path)

    def forward(self, x: Tensor, table: Tensor, queries: int | None = None) -> Tensor:
        x = self.residual1(x[:, :queries], self.attention(self.norm1(x), table, queries))
        return self.residual2(x, self.mlp(self.norm2(x)))
