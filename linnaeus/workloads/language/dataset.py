"""Windows of a text by position: what a loader worker does to make a batch. See `workloads/base.py` for the protocol.

A sample is a window of `block` tokens to read and as many to predict, the same ones shifted by one; targets beyond the end of the text
are `IGNORED`. Training by `windows` goes through the text once an epoch: window n begins at n x block + a shift that is a
function of (seed, epoch), below `block`, so that the cuts move; what lies before the first window, and the remainder that fills no
window, is left out, another part each epoch. By `random` a window begins anywhere, a function of (seed, epoch, position), as nanoGPT draws
them: an epoch is as long, and about 37 % of a text is not seen in one.

Validation goes through the whole text from its first token: each token but the first is a target exactly once, whatever the block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from linnaeus import randomness
from linnaeus.config.errors import ConfigError
from linnaeus.workloads.base import Batch, SampleIndex
from linnaeus.workloads.language.model.token_loss import IGNORED
from linnaeus.workloads.language.store import TokenArray

SHIFT, OFFSET = 0, 1  # draws of the stream AUGMENT


class TextWindows:
    """One split as windows. `order` is windows or random in training; None: the windows of validation."""

    def __init__(self, array: TokenArray, block: int, seed: int, order: str | None, fingerprint: str) -> None:
        """Raises ConfigError for a text of fewer than two tokens."""
        if array.size < 2:
            split = "validation" if order is None else "training"
            raise ConfigError(f"data.path: the {split} part has {array.size} tokens, and the first predicts the second; give more text")
        self.array, self.block, self.seed, self.order, self.fingerprint = array, block, seed, order, fingerprint
        targets = array.size - 1
        self.windows = -(-targets // block) if order is None else max(1, targets // block)

    def __len__(self) -> int:
        return self.windows

    def groups(self, level: str | None) -> None:
        return None

    def resampling(self) -> None:
        return None

    def begins(self, epoch: np.ndarray, position: np.ndarray, sample: np.ndarray) -> np.ndarray:
        """int64 [B]: the first token of each window."""
        if self.order is None:
            return sample * self.block
        if self.order == "random":
            last = max(0, self.array.size - 1 - self.block)  # where a whole window ends with the text
            draws = [randomness.uniforms(randomness.key(self.seed, randomness.AUGMENT, int(e), OFFSET), p) for e, p in zip(epoch, position)]
            return np.minimum((np.array(draws) * (last + 1)).astype(np.int64), last)
        return sample * self.block + np.array([self.shift(int(e)) for e in epoch])

    def shift(self, epoch: int) -> int:
        """Where the first window of an epoch begins; a text that fills no window begins at its first token."""
        room = min(self.block, self.array.size - self.block)
        return randomness.key(self.seed, randomness.AUGMENT, epoch, SHIFT) % room if room > 0 else 0

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        """`input` int64 [B, block]; `target` int64 [B, block], `IGNORED` beyond the text and in stand-ins; `weight` float32 [B];
        `sample` int64 [B]."""
        epoch, position, sample, _, real = np.array(indices, dtype=np.int64).reshape(-1, 5).T
        place = self.begins(epoch, position, sample)[:, None] + np.arange(self.block + 1)
        tokens = self.array.tokens[np.minimum(place, self.array.size - 1)].astype(np.int64)
        known = (place[:, 1:] < self.array.size) & (real[:, None] > 0)
        return {
            "input": torch.from_numpy(tokens[:, :-1].copy()),
            "target": torch.from_numpy(np.where(known, tokens[:, 1:], IGNORED)),
            "weight": torch.from_numpy(real.astype(np.float32)),
            "sample": torch.from_numpy(sample.copy()),
        }
