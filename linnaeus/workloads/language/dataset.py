"""Windows of a text by position: what a loader worker does to make a batch. See `workloads/base.py` for the protocol.

A sample is a window of `block` tokens to read and as many to predict, the same ones shifted by one; targets beyond the end of the text
are `IGNORED`. Training by `windows` goes through the text once an epoch: window n begins at n x block + a shift that is a
function of (seed, epoch), below `block`, so that the cuts move; what lies before the first window, and the remainder that fills no
window, is left out, another part each epoch. By `random` a window begins anywhere, a function of (seed, epoch, position), as nanoGPT draws
them: an epoch is as long, and about 37 % of a text is not seen in one.

Named sources are texts side by side, each with windows of its own, numbered through all of them: none crosses from one into another.
An epoch has every window once, unless phases of the schedule mix the sources otherwise: then `mixture.py` says which window a
position has, and the shift is that of the pass through the source, not of the epoch, so that within a pass no token is predicted twice.
By `random` the source is that of this window, and where in it the window begins is drawn.

Validation goes through the whole of each text from its first token: each token but the first is a target exactly once, whatever the block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from linnaeus import randomness
from linnaeus.data.samples import Batch, PositionedDataset, SampleIndex
from linnaeus.errors import ConfigError
from linnaeus.schedule import OpsSchedule
from linnaeus.workloads.language.mixture import Mixture
from linnaeus.workloads.language.model.token_loss import IGNORED
from linnaeus.workloads.language.store import TokenArray

SHIFT, OFFSET = 0, 1  # draws of the stream AUGMENT


class TextWindows(PositionedDataset):
    """One split as windows. `order` is windows or random in training; None: the windows of validation. `sources` are the names of the
    array's parts. Without `schedule`, which says how sources are mixed, training windows can be counted and no more."""

    def __init__(
        self,
        array: TokenArray,
        block: int,
        seed: int,
        order: str | None,
        fingerprint: str,
        sources: Sequence[str] = (),
        dimensions: Sequence[str] = (),
        schedule: OpsSchedule | None = None,
    ) -> None:
        """Raises ConfigError for a text of fewer than two tokens."""
        if array.size < 2:
            split = "validation" if order is None else "training"
            raise ConfigError(f"data.path: the {split} part has {array.size} tokens, and the first predicts the second; give more text")
        self.array, self.block, self.seed, self.order, self.fingerprint = array, block, seed, order, fingerprint
        self.sources, self.dimensions, self.schedule = tuple(sources), tuple(dimensions), schedule
        self.sizes = np.array(array.parts or [array.size], np.int64)  # [S] tokens of each source
        self.starts = np.cumsum(self.sizes) - self.sizes
        targets = self.sizes - 1
        self.windows = -(-targets // block) if order is None else np.maximum(1, targets // block)  # [S] of each source
        self.firsts = np.cumsum(self.windows) - self.windows  # [S] the number of its first
        self.room = np.maximum(1, np.minimum(block, self.sizes - block)).astype(np.uint64)  # [S] shifts there are: to fill a window
        self.mixture = None if len(self.sources) < 2 or schedule is None else Mixture(seed, schedule, self.sources, self.windows)
        self._newest: tuple[int, tuple[np.ndarray, np.ndarray] | None] = (-1, None)  # (epoch, its draws), which take seconds for millions

    def __len__(self) -> int:
        return int(self.windows.sum())

    def groups(self, level: str | None) -> None:
        return None

    def resampling(self) -> None:
        return None

    def source_of(self, window: np.ndarray) -> np.ndarray:
        """int64 [B]: the number of the source of each window."""
        return np.searchsorted(self.firsts, window, side="right") - 1

    def shifts(self, epoch: int) -> np.ndarray:
        """int64 [S]: where in each source the first window of an epoch begins; a text that fills no window begins at its first token."""
        return (np.uint64(randomness.key(self.seed, randomness.AUGMENT, epoch, SHIFT)) % self.room).astype(np.int64)

    def shifts_of_passes(self, source: np.ndarray, turn: np.ndarray) -> np.ndarray:
        """int64 [B]: where in `source` [B] the first window of the pass `turn` [B] through it begins."""
        return (randomness.hashes(randomness.key(self.seed, randomness.AUGMENT, SHIFT), turn) % self.room[source]).astype(np.int64)

    def by_position(self, epoch: int) -> tuple[np.ndarray, np.ndarray] | None:
        """(window, pass) at each position of an epoch, where the schedule mixes sources; None: the order it has anyway."""
        if self.mixture is None:
            return None
        if self._newest[0] != epoch:
            self._newest = (epoch, self.mixture.of_epoch(epoch))
        return self._newest[1]

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        """`input` int64 [B, block]; `target` int64 [B, block], `IGNORED` beyond the text and in stand-ins; `weight` float32 [B];
        `sample` int64 [B], the windows. In training of a model with dimensions `dimensions` float32 [B, D], their weights; in
        validation of named sources `source` int64 [B], their numbers. All `indices` are of one epoch."""
        epoch, position, window, step, real = np.array(indices, dtype=np.int64).reshape(-1, 5).T
        if self.order is None:
            source = self.source_of(window)
            begin = self.starts[source] + (window - self.firsts[source]) * self.block
        else:
            assert (epoch == epoch[0]).all(), "a batch is of one epoch"
            window, source, begin = self._training_windows(int(epoch[0]), position, window)
        end = (self.starts + self.sizes)[source, None]
        place = begin[:, None] + np.arange(self.block + 1)
        tokens = self.array.tokens[np.minimum(place, end - 1)].astype(np.int64)
        known = (place[:, 1:] < end) & (real[:, None] > 0)
        batch = {
            "input": torch.from_numpy(tokens[:, :-1].copy()),
            "target": torch.from_numpy(np.where(known, tokens[:, 1:], IGNORED)),
            "weight": torch.from_numpy(real.astype(np.float32)),
            "sample": torch.from_numpy(window.copy()),
        }
        if self.order is None:
            return batch | ({"source": torch.from_numpy(source)} if self.sources else {})
        return batch | (self._weights(step) if self.dimensions else {})

    def _training_windows(self, epoch: int, position: np.ndarray, window: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(window, source, first token), int64 [B] each, of positions whose window would be `window` if nothing were mixed."""
        mixed = self.by_position(epoch)
        window = window if mixed is None else mixed[0][position]
        source = self.source_of(window)
        first, start = self.firsts[source], self.starts[source]
        if self.order == "windows":
            shift = self.shifts(epoch)[source] if mixed is None else self.shifts_of_passes(source, mixed[1][position])
            return window, source, start + (window - first) * self.block + shift
        last = np.maximum(0, self.sizes[source] - 1 - self.block)  # where a whole window ends with the text
        draws = randomness.uniforms(randomness.key(self.seed, randomness.AUGMENT, epoch, OFFSET), position)
        offset = np.minimum((draws * (last + 1)).astype(np.int64), last)
        return first + np.minimum(offset // self.block, self.windows[source] - 1), source, start + offset

    def _weights(self, step: np.ndarray) -> Batch:
        assert self.schedule is not None, "build_datasets comes first"
        return {"dimensions": torch.from_numpy(self.schedule.get_dimension_weights(step, self.dimensions).astype(np.float32))}
