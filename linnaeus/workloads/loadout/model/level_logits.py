"""Logits of tokens by the distance between the token's level and the level that the input set shows.

A token means "at least n of an item"; n is its level. For a plain output layer, "one more than the set shows" is another token, with other
weights, for each number that the set shows. This layer has weights per item and distance (the token's level minus the highest level of the
item in the set), so that "one more" always has the same weights.

After 2,500 updates the completions of the default model have 96.3 % of the optimum's right slots with 1 of 12 slots removed (92.9 % without
this layer), and 98.4 % with 6 removed (97.7 % without).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.workloads.loadout.game.token_code import SPECIAL, TokenCode


class LevelLogits(nn.Module):
    """Linear layer from H channels to the logits of V tokens, with one output for each item and distance 0, 1, 2, ... (see the module).

    A token whose level the set already shows has distance 0. With `PointsCode` an item is an ability."""

    tables: Tensor  # int64 [3, V]: item of each token, its level, and the output of distance 0 of its item

    def __init__(self, width: int, code: TokenCode) -> None:
        super().__init__()
        self._values = _tables(code)
        self.items = int(self._values[0].max()) + 1
        self.register_buffer("tables", torch.from_numpy(self._values), persistent=False)
        self.linear = nn.Linear(width, int((self._values[2] + self._values[1]).max()) + 1)

    def init_weights(self) -> None:
        """Set the buffer `tables`. The weights of `linear` are initialised by the network that contains this layer."""
        self.tables.copy_(torch.from_numpy(self._values))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return logits [B, V]. x: [B, H], features of the pooled sets. tokens: int64 [B, L], the input sets."""
        item, level, first = self.tables
        shown = torch.zeros(len(tokens), self.items, dtype=torch.int64, device=tokens.device)
        shown = shown.scatter_reduce(1, item[tokens], level[tokens], "amax")  # highest level of each item in the set
        return self.linear(x).gather(1, first + (level - shown[:, item]).clamp(min=0))


def _tables(code: TokenCode) -> np.ndarray:
    item, special = code.measured.copy(), len(SPECIAL)
    item[:special] = item.max() + 1  # an item of level 0
    level = np.array([(item[:token] == item[token]).sum() + 1 for token in range(len(item))])
    level[:special] = 0
    outputs = np.bincount(item) + 1
    return np.stack([item, level, (np.cumsum(outputs) - outputs)[item]]).astype(np.int64)
