"""Datasets of text windows. A loader worker makes a batch from positions alone (see `data/samples.py`).

A sample has `block` input tokens, and as targets the same tokens shifted by one. Targets beyond the end of the text are `IGNORED`.

With `order=windows` training reads the text once per epoch. Window n starts at n x block + shift; the shift, below `block`, is a function
of (seed, epoch). The tokens before the first window and after the last window are left out; they differ from epoch to epoch. With
`order=random` a window starts at an offset drawn from (seed, epoch, position), as in nanoGPT; an epoch of the same length then misses about
37 % of the text.

Named sources are separate texts, whose windows are numbered together. An epoch has every window once, unless phases of the schedule mix the
sources in another proportion: then `mixture.py` selects the window of a position. The shift is then a function of (seed, pass through the
source), so that no token is predicted twice in a pass. With `order=random` the selected window only determines the source; the offset in
the source is drawn.

Validation reads each text from its first token: each token but the first is a target exactly once, for any block."""

from collections.abc import Sequence

import numpy as np
import torch

from linnaeus import randomness
from linnaeus.data.samples import Batch, PositionedDataset, SampleIndex
from linnaeus.errors import ConfigError, counted
from linnaeus.schedule import OpsSchedule
from linnaeus.workloads.language.mixture import Mixture
from linnaeus.workloads.language.model.token_loss import IGNORED
from linnaeus.workloads.language.token_array import Tokens

SHIFT, OFFSET = 0, 1  # draws of the stream AUGMENT


class TextWindows(PositionedDataset):
    """Dataset of the text windows of one split, training or validation.

    `order`: `windows` or `random` for training; None for validation. `sources`: names of the S sources in `array`, in order; () for one
    unnamed source. `dimensions`: names of the model's dimensions (named adapters). `schedule`: gives the mixture of sources and the weights
    of the dimensions; None: training windows can be counted but not read. `unlimited_size`: number of windows without a limit."""

    def __init__(
        self,
        array: Tokens,
        block: int,
        seed: int,
        order: str | None,
        fingerprint: str,
        sources: Sequence[str] = (),
        dimensions: Sequence[str] = (),
        schedule: OpsSchedule | None = None,
        limit: int | None = None,
    ) -> None:
        """`array`: tokens of the split. `block`: number of input tokens of a window. `seed`: seed of the run. `fingerprint`: hash of the
        data. `limit`: number of windows that are used, the first of each source, in proportion to its windows; None: all.

        Raise `ConfigError` for a text of fewer than two tokens, and for a `limit` below the number of sources."""
        if array.size < 2:
            split = "validation" if order is None else "training"
            raise ConfigError(f"data.path: the {split} part has {counted(array.size, 'token')}; it needs at least 2, use a longer text")
        self.array, self.block, self.seed, self.order, self.fingerprint = array, block, seed, order, fingerprint
        self.sources, self.dimensions, self.schedule = tuple(sources), tuple(dimensions), schedule
        self.sizes = np.array(array.source_sizes or [array.size], np.int64)  # [S] number of tokens
        self.starts = np.cumsum(self.sizes) - self.sizes  # [S] first token
        targets = self.sizes - 1
        self.window_counts = -(-targets // block) if order is None else np.maximum(1, targets // block)  # [S]
        self.unlimited_size = len(self)
        if limit is not None and limit < len(self):
            self.window_counts = proportional_counts(self.window_counts, limit)
            self.sizes = np.minimum(self.sizes, (self.window_counts + 1) * block)  # a shifted window ends in the block after its own
        self.first_windows = np.cumsum(self.window_counts) - self.window_counts  # [S]
        self.shift_counts = np.maximum(1, np.minimum(block, self.sizes - block)).astype(np.uint64)  # [S] shifts that fill a window
        self.mixture = None if len(self.sources) < 2 or schedule is None else Mixture(seed, schedule, self.sources, self.window_counts)
        self._latest: tuple[int, tuple[np.ndarray, np.ndarray] | None] = (-1, None)  # (epoch, draws), which take seconds to compute

    def __len__(self) -> int:
        return int(self.window_counts.sum())

    def source_of(self, window: np.ndarray) -> np.ndarray:
        """Return the source number of each window, int64 [B]."""
        return np.searchsorted(self.first_windows, window, side="right") - 1

    def epoch_shifts(self, epoch: int) -> np.ndarray:
        """Return the offset in tokens of the first window of each source in an epoch, int64 [S].

        Offsets are relative to the start of the source. The offset is 0 for a source of at most `block` + 1 tokens."""
        return (np.uint64(randomness.key(self.seed, randomness.AUGMENT, epoch, SHIFT)) % self.shift_counts).astype(np.int64)

    def pass_shifts(self, source: np.ndarray, pass_number: np.ndarray) -> np.ndarray:
        """Return the offset of the first window in pass number `pass_number` through source number `source`, int64 [B]. Both arguments are
        [B]."""
        stream = randomness.key(self.seed, randomness.AUGMENT, SHIFT)
        return (randomness.hashes(stream, pass_number) % self.shift_counts[source]).astype(np.int64)

    def epoch_draws(self, epoch: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (window, pass through its source) at each position of an epoch in which the schedule mixes sources; None for an epoch in
        the usual order."""
        if self.mixture is None:
            return None
        if self._latest[0] != epoch:
            self._latest = (epoch, self.mixture.epoch_draws(epoch))
        return self._latest[1]

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        """Return the batch of `indices`, which must belong to one epoch.

        `input` int64 [B, block]; `target` int64 [B, block], `IGNORED` beyond the text and in placeholders; `weight` float32 [B]; `sample`
        int64 [B], the window numbers. Training with dimensions (named adapters) adds their weights, `dimensions` float32 [B, D]; validation
        with named sources adds `source` int64 [B]."""
        epoch, position, window, step, real = np.array(indices, dtype=np.int64).reshape(-1, 5).T
        if self.order is None:
            source = self.source_of(window)
            start = self.starts[source] + (window - self.first_windows[source]) * self.block
        else:
            assert (epoch == epoch[0]).all(), "a batch must be of one epoch"
            window, source, start = self._training_windows(int(epoch[0]), position, window)
        end = (self.starts + self.sizes)[source, None]
        index = start[:, None] + np.arange(self.block + 1)
        tokens = self.array.read(np.minimum(index, end - 1))
        known = (index[:, 1:] < end) & (real[:, None] > 0)
        batch = {
            "input": torch.from_numpy(tokens[:, :-1].copy()),
            "target": torch.from_numpy(np.where(known, tokens[:, 1:], IGNORED)),
            "weight": torch.from_numpy(real.astype(np.float32)),
            "sample": torch.from_numpy(window.copy()),
        }
        if self.order is None:
            return batch | ({"source": torch.from_numpy(source)} if self.sources else {})
        return batch | (self._dimension_weights(step) if self.dimensions else {})

    def _training_windows(self, epoch: int, position: np.ndarray, window: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return three arrays, int64 [B]: the window at each position, its source and its first token. `window`: int64 [B], the windows at
        these positions if the epoch is not mixed."""
        mixed = self.epoch_draws(epoch)
        window = window if mixed is None else mixed[0][position]
        source = self.source_of(window)
        first, start = self.first_windows[source], self.starts[source]
        if self.order == "windows":
            shift = self.epoch_shifts(epoch)[source] if mixed is None else self.pass_shifts(source, mixed[1][position])
            return window, source, start + (window - first) * self.block + shift
        last = np.maximum(0, self.sizes[source] - 1 - self.block)  # the offset at which a whole window ends with the text
        draws = randomness.uniforms(randomness.key(self.seed, randomness.AUGMENT, epoch, OFFSET), position)
        offset = np.minimum((draws * (last + 1)).astype(np.int64), last)
        return first + np.minimum(offset // self.block, self.window_counts[source] - 1), source, start + offset

    def _dimension_weights(self, step: np.ndarray) -> Batch:
        assert self.schedule is not None, "call build_datasets first"
        return {"dimensions": torch.from_numpy(self.schedule.get_dimension_weights(step, self.dimensions).astype(np.float32))}


def proportional_counts(counts: np.ndarray, total: int) -> np.ndarray:
    """Return counts with the sum `total`, int64 [S], in proportion to `counts`, each at least 1 and at most its count.

    Raise `ConfigError` if `total` is below S."""
    if total < len(counts):
        raise ConfigError(f"trainer.limit_train_samples={total} is below the number of sources, {len(counts)}; raise it")
    found = np.maximum(1, counts * total // counts.sum())
    while (missing := total - int(found.sum())) != 0:  # at most S rounds
        behind = np.where(found < counts, counts * total / counts.sum() - found, -np.inf)
        ahead = np.where(found > 1, found - counts * total / counts.sum(), -np.inf)
        found[(behind if missing > 0 else ahead).argmax()] += np.sign(missing)
    return found
