"""Datasets of partial builds: part of a build goes in, the whole build is the target. A batch is a function of positions.

Training: an epoch has `subsets` partial builds of each build, and with `empty` one more without any gear. k of its slots are removed, with
probability proportional to k^1.2 for k = 1 to 11, so most examples show little. Slots are removed, so a partial build is one that a
person could have. With `removal=tokens` single tokens are removed as in SplatNLP, which makes inputs that no gear has.

Validation: each build with 1, 2, ... 12 slots removed, the same slots in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from linnaeus.data.samples import Batch, PositionedDataset, SampleIndex
from linnaeus.randomness import MASK, VALIDATION, key, uniforms
from linnaeus.workloads.loadout.abilities import SLOTS
from linnaeus.workloads.loadout.build_table import Builds
from linnaeus.workloads.loadout.gear import count_items, slot_items
from linnaeus.workloads.loadout.token_code import TokenCode, sets_of

SKEW = 1.2
DRAWS = 16  # uniform numbers of a sample: the number removed, then one for each slot or token


def removal_probabilities(size: int) -> np.ndarray:
    """Return P(k) for k = 1 to size - 1 removed of `size`, proportional to k^1.2, float64 [size - 1]; [1.0] for a size of 1."""
    weights = np.arange(1, max(size, 2)) ** SKEW
    found: np.ndarray = weights / weights.sum()
    return found


_PARTS = [removal_probabilities(size).cumsum() for size in range(1, DRAWS)]
_CUMULATIVE = np.stack([np.pad(part, (0, DRAWS - len(part)), constant_values=2.0) for part in _PARTS])  # 2: never reached


def numbers_removed(draws: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the number removed, int64 [N], for uniform numbers [N] and sets of `sizes` int [N]. Of a set of one, nothing is removed."""
    found = 1 + (_CUMULATIVE[sizes - 1] < draws[:, None]).sum(1)
    return np.where(sizes > 1, np.minimum(found, sizes - 1), 0)


def kept_slots(draws: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Return True at the slots that stay, bool [N, S]: those with the `removed` lowest of the uniform numbers [N, S] go."""
    rank = draws.argsort(1, kind="stable").argsort(1, kind="stable")
    return rank >= removed[:, None]


class PartialBuilds(PositionedDataset):
    """Partial builds of one side. Subclasses choose what is removed."""

    def __init__(self, builds: Builds, code: TokenCode, visible_targets: bool) -> None:
        self.builds, self.code, self.visible_targets = builds, code, visible_targets
        self.slots = slot_items(builds.items)

    def batch(self, build: np.ndarray, kept: np.ndarray, real: np.ndarray, sample: np.ndarray) -> Batch:
        """Return the batch of `build` int [B] with the slots `kept` bool [B, 12].

        `tokens` int64 [B, L], `weapon` int64 [B], `target` bool [B, V], `scored` bool [B, V], the targets that the loss counts; `weight`
        and `sample`."""
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
    """Partial builds of an epoch: `subsets` of each build, and the empty one last with `empty`."""

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
    """Each build with 1 to 12 slots removed. Batches also have `observed` and `complete`, int8 [B, 40]."""

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

    def parts(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (build int64 [N], kept slots bool [N, 12]) of sample numbers."""
        build, removed = sample // SLOTS, sample % SLOTS + 1
        draws = uniforms(key(0, VALIDATION, SLOTS), sample[:, None] * SLOTS + np.arange(SLOTS))
        return build, kept_slots(draws, removed)
