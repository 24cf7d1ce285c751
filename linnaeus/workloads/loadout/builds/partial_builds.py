"""Datasets of partial builds: the input is part of a build, the target is the whole build. A batch is a function of its `SampleIndex`
values.

Training: an epoch has `subsets` partial builds of each build, and with `empty` one more without any gear. k of the 12 slots are removed, k
= 1 to 11 with probability proportional to k^1.2, so most inputs have few slots. Whole slots are removed, so every input is gear that a
player could have. With `removal=tokens` single tokens are removed as in SplatNLP; such an input may be a set of tokens that no gear has.

Validation: each build with 1, 2, ... 12 slots removed. The removed slots are the same in every run.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from linnaeus.data.samples import Batch, PositionedDataset, SampleIndex
from linnaeus.randomness import MASK, VALIDATION, key, uniforms
from linnaeus.workloads.loadout.builds.build_table import Builds, content_hashes
from linnaeus.workloads.loadout.game.abilities import SLOTS
from linnaeus.workloads.loadout.game.gear import count_items, slot_items
from linnaeus.workloads.loadout.game.token_code import TokenCode, sets_of

SKEW = 1.2
DRAWS = 16  # uniform numbers of a sample: the number removed, then one for each slot or token


def removal_probabilities(size: int) -> np.ndarray:
    """Return the probability that k of `size` elements are removed, for k = 1 to `size` - 1: proportional to k^1.2, float64 [size - 1].

    Return [1.0] for `size` 1."""
    weights = np.arange(1, max(size, 2)) ** SKEW
    found: np.ndarray = weights / weights.sum()
    return found


_PARTS = [removal_probabilities(size).cumsum() for size in range(1, DRAWS)]
_CUMULATIVE = np.stack([np.pad(part, (0, DRAWS - len(part)), constant_values=2.0) for part in _PARTS])  # 2: never reached


def numbers_removed(draws: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return how many elements to remove from each of N sets, int64 [N]; 0 for a set with one element.

    draws: uniform numbers, float64 [N]. sizes: int [N], number of elements of each set."""
    found = 1 + (_CUMULATIVE[sizes - 1] < draws[:, None]).sum(1)
    return np.where(sizes > 1, np.minimum(found, sizes - 1), 0)


def kept_slots(draws: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Return bool [N, S], True for the slots that stay. In row i the `removed[i]` slots with the lowest `draws` are removed.

    draws: float [N, S], a random number for each slot. removed: int [N]."""
    rank = draws.argsort(1, kind="stable").argsort(1, kind="stable")
    return rank >= removed[:, None]


class PartialBuilds(PositionedDataset):
    """Base class of the training and validation set of partial builds. Subclasses choose the slots that are removed."""

    def __init__(self, builds: Builds, code: TokenCode, visible_targets: bool) -> None:
        self.builds, self.code, self.visible_targets = builds, code, visible_targets
        self.slots = slot_items(builds.items)

    def batch(self, build: np.ndarray, kept: np.ndarray, real: np.ndarray, sample: np.ndarray) -> Batch:
        """Return a batch of B partial builds, in which only some slots of each build are shown.

        build: int [B], row numbers of the builds. kept: bool [B, 12], True for a slot that is shown. real: int [B], 0 for a placeholder
        sample. sample: int64 [B].

        Entries of the batch: `tokens` int64 [B, L]; `weapon` int64 [B]; `target` bool [B, V], the tokens of the whole build; `scored` bool
        [B, V], the tokens that the loss counts; `weight` float32 [B], equal to `real`; `sample` int64 [B]."""
        observed = count_items(self.slots[build], kept)
        return self._collate(build, self.code.multi_hot(observed), real, sample)

    def _collate(self, build: np.ndarray, visible: np.ndarray, real: np.ndarray, sample: np.ndarray) -> Batch:
        target = self.code.multi_hot(self.builds.items[build])
        scored = np.ones_like(target) if self.visible_targets else ~visible
        scored[:, :2] = False  # the special tokens
        scored &= (real > 0)[:, None]
        return {
            "tokens": torch.from_numpy(sets_of(visible, self.code.longest)),
            "weapon": torch.from_numpy(self.builds.weapon[build]),
            "target": torch.from_numpy(target),
            "scored": torch.from_numpy(scored),
            "weight": torch.from_numpy(real.astype(np.float32)),
            "sample": torch.from_numpy(sample.copy()),
        }


class TrainingBuilds(PartialBuilds):
    """Training set. An epoch has `subsets` partial builds of each build and, with `empty`, one more in which all slots are removed."""

    def __init__(self, builds: Builds, code: TokenCode, seed: int, subsets: int, empty: bool, removal: str, visible_targets: bool) -> None:
        super().__init__(builds, code, visible_targets)
        self.seed, self.subsets, self.per_build, self.removal = seed, subsets, subsets + empty, removal

    def __len__(self) -> int:
        return len(self.builds) * self.per_build

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        epoch, position, sample, _, real = np.array(indices, dtype=np.int64).reshape(-1, 5).T
        assert (epoch == epoch[0]).all(), "a batch must be of one epoch"
        build, empty = sample // self.per_build, sample % self.per_build == self.subsets
        draws = uniforms(key(self.seed, MASK, int(epoch[0])), position[:, None] * DRAWS + np.arange(DRAWS))
        if self.removal == "tokens":
            return self._without_tokens(build, empty, draws, real, sample)
        removed = np.where(empty, SLOTS, numbers_removed(draws[:, 0], np.full(len(build), SLOTS)))
        return self.batch(build, kept_slots(draws[:, 1 : 1 + SLOTS], removed), real, sample)

    def _without_tokens(self, build: np.ndarray, empty: np.ndarray, draws: np.ndarray, real: np.ndarray, sample: np.ndarray) -> Batch:
        whole = self.code.multi_hot(self.builds.items[build])
        rows, tokens = whole.nonzero()
        place = np.arange(len(rows)) - np.searchsorted(rows, rows)
        sizes = whole.sum(1)
        order = np.full((len(build), self.code.longest), 2.0)  # after every token of the set
        order[rows, place] = draws[rows, 1 + place]
        kept = kept_slots(order, np.where(empty, sizes, numbers_removed(draws[:, 0], sizes)))
        visible = np.zeros_like(whole)
        visible[rows, tokens] = kept[rows, place]
        return self._collate(build, visible, real, sample)


class ValidationBuilds(PartialBuilds):
    """Validation set: each build 12 times, with 1 to 12 slots removed.

    Batches also have `observed`, int8 [B, 40], the partial builds, and `complete`, int8 [B, 40], the whole builds."""

    def __init__(self, builds: Builds, code: TokenCode) -> None:
        super().__init__(builds, code, visible_targets=False)

    def __len__(self) -> int:
        return len(self.builds) * SLOTS

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        _, _, sample, _, real = np.array(indices, dtype=np.int64).reshape(-1, 5).T
        build, kept = self.parts(sample)
        observed, complete = count_items(self.slots[build], kept), self.builds.items[build]
        return self.batch(build, kept, real, sample) | {
            "observed": torch.from_numpy(observed),
            "complete": torch.from_numpy(complete),
        }

    @functools.cached_property
    def hashes(self) -> np.ndarray:
        """Return a hash of each build, uint64 [N]; equal builds have equal hashes."""
        return content_hashes(self.builds, 0)

    def names(self, samples: Sequence[int] | np.ndarray) -> list[str]:
        """Return the names of partial builds, such as `build-17-3fa2c01b/3 removed`: number and hash of the build, and how many slots are
        removed. Equal names are equal partial builds, also in runs on other data."""
        parts = ((int(sample) // SLOTS, int(sample) % SLOTS + 1) for sample in samples)
        return [f"build-{build}-{int(self.hashes[build]) >> 32:08x}/{removed} removed" for build, removed in parts]

    def parts(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the partial builds of `sample`, int64 [N]: (row numbers of their builds, int64 [N]; True for the slots that stay, bool [N,
        12])."""
        build, removed = sample // SLOTS, sample % SLOTS + 1
        draws = uniforms(key(0, VALIDATION, SLOTS), sample[:, None] * SLOTS + np.arange(SLOTS))
        return build, kept_slots(draws, removed)
