"""The order of an epoch: a pure function of (seed, epoch), and for mixing a shuffle of slots of two.

Positions 2k and 2k+1 are a slot. With groups, as many slots as possible hold two members of one group; the odd ones out share
slots unmixed. Nothing here depends on processes, workers or accumulation. Which samples fill the positions is every one once, or
what `resampling.py` draws; then no slot pairs a sample with itself.
"""

from __future__ import annotations

import numpy as np

from linnaeus.data.resampling import Resampling
from linnaeus.randomness import ORDER, key, permutation


def epoch_order(seed: int, epoch: int, size: int, groups: np.ndarray | None = None, resampling: Resampling | None = None) -> np.ndarray:
    """int64 [size]: the dataset index at each position of an epoch. `groups` is int64 [size], -1 for samples of no group."""
    if groups is None:
        order = permutation(key(seed, ORDER, epoch), size)
        return order if resampling is None else resampling.multiset(epoch)[order]
    if resampling is None:
        pairs, singles = _pair_up(permutation(key(seed, ORDER, epoch), size), groups)
    else:
        pairs, singles = _pair_up_unlike(resampling.multiset(epoch), groups, seed, ORDER, epoch)
    singles = singles[permutation(key(seed, ORDER, epoch, 2), len(singles))]  # or the one left over were always of the last group
    slots = np.concatenate([pairs, singles[: len(singles) // 2 * 2].reshape(-1, 2)])
    slots = slots[permutation(key(seed, ORDER, epoch, 1), len(slots))]
    return np.concatenate([slots.reshape(-1), singles[len(singles) // 2 * 2 :]])


def _pair_up(shuffled: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In-group pairs [P, 2] and the rest [S], both in shuffled order within their group."""
    by_group = shuffled[np.argsort(groups[shuffled], kind="stable")]
    members = groups[by_group]
    place, size = _places(members)
    paired = (members >= 0) & (place < size // 2 * 2)
    return by_group[paired].reshape(-1, 2), by_group[~paired]


def _pair_up_unlike(samples: np.ndarray, groups: np.ndarray, *stream: int) -> tuple[np.ndarray, np.ndarray]:
    """The same of `samples` that may repeat, each pair two different ones, and as many pairs as there can be.

    With the copies of a sample side by side, a group of T is cut behind its first max(half of T, the most copies of one), and
    the parts are paired place by place. They share one sample at most, that of the cut: last in the first part, first in the
    second, it does not meet itself. Samples are in keyed order, and those of the second part in another."""
    times = np.bincount(samples, minlength=len(groups))
    there = np.flatnonzero((times > 0) & (groups >= 0))
    there = there[permutation(key(*stream, 3), len(there))]
    there = there[np.argsort(groups[there], kind="stable")]
    grouped = np.repeat(there, times[there])
    if not len(grouped):
        return grouped.reshape(-1, 2), samples
    place, size = _places(groups[grouped])
    start = np.arange(len(grouped)) - place
    starts = np.flatnonzero(place == 0)
    most = np.repeat(np.maximum.reduceat(_places(grouped)[1], starts), size[starts])
    cut = np.maximum((size + 1) // 2, most)
    at_cut = grouped[np.minimum(start + cut, len(grouped) - 1)]
    free = np.flatnonzero((place >= cut) & (grouped != at_cut))
    moved = free[permutation(key(*stream, 4), len(free))]
    grouped[free] = grouped[moved[np.argsort(start[moved], kind="stable")]]
    first = np.flatnonzero(place < size - cut)
    alone = (place >= size - cut) & (place < cut)
    pairs = np.stack([grouped[first], grouped[first + cut[first]]], axis=1)
    return pairs, np.concatenate([samples[groups[samples] < 0], grouped[alone]])


def _places(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of `values` [N], equal ones side by side: the place of each within its run, and the length of that run; int64 [N]."""
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    lengths = np.diff(np.append(starts, len(values)))
    return np.arange(len(values)) - np.repeat(starts, lengths), np.repeat(lengths, lengths)
