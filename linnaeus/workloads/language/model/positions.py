"""Rotary positions: queries and keys are turned by angles that grow with their place, so that they meet by their distance alone.

Su et al. 2021, "RoFormer". A head of width D has D / 2 planes; plane i turns by base^(-2i / D) a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROTARY_BASE = 10_000.0  # the slowest plane turns once in about 60,000 tokens


def rotary_table(length: int, head_width: int, base: float) -> Tensor:
    """Cosines and sines [2, length, head_width / 2], float64."""
    frequency = base ** -(torch.arange(0, head_width, 2, dtype=torch.float64, device="cpu") / head_width)
    angle = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()])


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + D / 2) of x [B, H, T, D] by the angles of `table` [2, T, D / 2], or [2, B, 1, T, D / 2] where
    each row has places of its own."""
    cos, sin = table[0], table[1]
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)
