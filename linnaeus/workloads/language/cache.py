"""Keys and values of the tokens that have been read, so that a new token is read alone.

Two tensors [layers, B, heads, places, head width], made once for the longest a sequence may become. `reading` and `stepping` give the
model what its blocks call in place of their own attention (`model.attention.Attend`), one callable a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.workloads.language.model.attention import Attend
from linnaeus.workloads.language.model.gpt import GPT

SPAN = 64  # a step looks at a multiple of so many places: few shapes, and not the whole block for a short text


class Cache:
    """Room for `rows` sequences of `places` tokens each, in the precision and on the device of the model."""

    def __init__(self, model: GPT, rows: int, places: int) -> None:
        size, like = model.size, model.token.weight
        self.places, self.layers = places, size.layers
        self.keys, self.values = like.new_zeros(2, size.layers, rows, size.heads, places, size.width // size.heads)

    def reading(self, rows: Tensor) -> Sequence[Attend]:
        """For sequences that are read from their beginning: `rows` int64 [R] says whose they are."""
        return [partial(self._read, layer, rows) for layer in range(self.layers)]

    def stepping(self, positions: Tensor, most: int) -> Sequence[Attend]:
        """For one more token of every row, at `positions` int64 [B], all below `most`."""
        span = min(-(-most // SPAN) * SPAN, self.places)
        seen = torch.arange(span, device=positions.device) <= positions[:, None]
        return [partial(self._step, layer, positions, seen[:, None, None]) for layer in range(self.layers)]

    def _read(self, layer: int, rows: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keys[layer][rows, :, : key.shape[2]] = key
        self.values[layer][rows, :, : key.shape[2]] = value
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def _step(self, layer: int, positions: Tensor, seen: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`seen` bool [B, 1, 1, span]: the places a row has filled, the one that is written now included."""
        rows = torch.arange(len(positions), device=positions.device)
        self.keys[layer][rows, :, positions] = key[:, :, 0]
        self.values[layer][rows, :, positions] = value[:, :, 0]
        span = seen.shape[-1]
        return F.scaled_dot_product_attention(query, self.keys[layer, :, :, :span], self.values[layer, :, :, :span], attn_mask=seen)
