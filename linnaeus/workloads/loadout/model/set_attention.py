"""Attention among the elements of a set, which have no order.

`AttentionBlock` is the multihead attention block of Lee et al. 2019 ("Set Transformer"). Two layers are made of it: `PlainLayer`,
self-attention among the elements, and `InducedLayer`, the published layer with inducing points.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AttentionBlock(nn.Module):
    """Attention block in which queries q [B, Q, H] attend to keys k [B, K, H]: x = norm(q + attention(q, k)), result norm(x +
    feed_forward(x)).

    `norm=False`: without the two norms."""

    def __init__(self, width: int, heads: int, norm: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.feed_forward = feed_forward(width)
        self.norm1, self.norm2 = layer_norm(width, norm), layer_norm(width, norm)

    def forward(self, queries: Tensor, keys: Tensor, real: Tensor | None = None) -> Tensor:
        """Return [B, Q, H]. real: bool [B, K], True for keys that are not padding, at least one in each set; None: all keys."""
        q, k, v = (self._split(part(x)) for part, x in ((self.query, queries), (self.key, keys), (self.value, keys)))
        mask = None if real is None else real[:, None, None, :]
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0)
        x = self.norm1(queries + self.output(found.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.feed_forward(x))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class InducedBlock(nn.Module):
    """Attention of a set through M learned points: the points attend to the set, then the set attends to the points.

    The result is added to the set and normalised; this norm also exists with `norm=False`."""

    def __init__(self, width: int, heads: int, points: int, norm: bool, dropout: float) -> None:
        super().__init__()
        self.points = nn.Parameter(_points(points, width))
        self.read, self.write = (AttentionBlock(width, heads, norm, dropout) for _ in range(2))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        points = self.read(self.points.expand(len(x), -1, -1), x, real)
        return self.norm(x + self.write(x, points))


class InducedLayer(nn.Module):
    """Attention layer of the published SplatNLP model.

    Two induced blocks, a pooling and two attention blocks reduce the set to M vectors. The elements of the set attend to these vectors. A
    feed-forward network follows."""

    def __init__(self, width: int, heads: int, points: int, norm: bool, dropout: float) -> None:
        super().__init__()
        self.induced = nn.ModuleList(InducedBlock(width, heads, points, norm, dropout) for _ in range(2))
        self.seeds = nn.Parameter(_points(points, width))
        self.pool = AttentionBlock(width, heads, norm, dropout)
        self.pool_output = nn.Linear(width, width)
        self.among = nn.ModuleList(AttentionBlock(width, heads, norm, dropout) for _ in range(2))
        self.read = AttentionBlock(width, heads, norm, dropout)
        self.feed_forward = feed_forward(width)
        self.norm1, self.norm2 = layer_norm(width, norm), layer_norm(width, norm)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        y = x
        for block in self.induced:
            y = y + block(y, real)
        z = self.pool_output(self.pool(self.seeds.expand(len(x), -1, -1), y, real))
        for block in self.among:
            z = z + block(z, z)
        x = self.norm1(x + self.dropout(self.read(x, z)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))


class PlainLayer(nn.Module):
    """Self-attention among the elements of the set, without inducing points: a set of up to 15 elements does not need them."""

    def __init__(self, width: int, heads: int, norm: bool, dropout: float) -> None:
        super().__init__()
        self.block = AttentionBlock(width, heads, norm, dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        return self.block(x, x, real)


def feed_forward(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def layer_norm(width: int, norm: bool) -> nn.Module:
    return nn.LayerNorm(width) if norm else nn.Identity()


def _points(number: int, width: int) -> Tensor:
    return torch.empty(1, number, width)
