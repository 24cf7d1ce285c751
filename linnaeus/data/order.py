"""Compute the order of the samples in an epoch, as a pure function of (seed, epoch).

Positions 2k and 2k + 1 of the order form a slot: two samples that may be mixed with each other. As many slots as possible contain two
samples of the same group; the remaining samples share slots and are not mixed. The order does not depend on processes, workers or
accumulation. An epoch contains every sample once, or the samples drawn by `resampling.py`; no sample is mixed with itself.

`block_order` is for data that do not fit into memory: samples that are near each other in storage are read at about the same time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from linnaeus.data.resampling import Resampling
from linnaeus.randomness import ORDER, hashes, key, permutation


def epoch_order(seed: int, epoch: int, size: int, groups: np.ndarray | None = None, resampling: Resampling | None = None) -> np.ndarray:
    """Return the dataset index of the sample at each position of an epoch, int64 [size].

    `groups`: the group of each sample, int64 [size], -1 for a sample without a group; None: samples are not paired. `resampling`: how often
    each sample occurs; None: once."""
    if groups is None:
        order = permutation(key(seed, ORDER, epoch), size)
        return order if resampling is None else resampling.multiset(epoch)[order]
    if resampling is None:
        pairs, singles = _pair_samples(permutation(key(seed, ORDER, epoch), size), groups)
    else:
        pairs, singles = _pair_distinct(resampling.multiset(epoch), groups, seed, ORDER, epoch)
    # without this permutation the sample left over at the end would always belong to the last group
    singles = singles[permutation(key(seed, ORDER, epoch, 2), len(singles))]
    slots = np.concatenate([pairs, singles[: len(singles) // 2 * 2].reshape(-1, 2)])
    slots = slots[permutation(key(seed, ORDER, epoch, 1), len(slots))]
    return np.concatenate([slots.reshape(-1), singles[len(singles) // 2 * 2 :]])


class Blocks(NamedTuple):
    """Parameters of `block_order`: the number of samples in a block and the number of blocks in a window."""

    records: int  # consecutive samples in a block
    window: int  # largest number of blocks in a window
    starts: np.ndarray | None = None  # int64 [blocks], first sample of each block, for blocks of different sizes; None: all have one size


def block_order(seed: int, epoch: int, size: int, blocks: Blocks) -> np.ndarray:
    """Return the dataset index of the sample at each position of an epoch, int64 [size]: every sample once, shuffled in large windows.

    A random permutation of all blocks is cut into windows. The numbers of blocks in two windows differ by one at most. The samples of a
    window are shuffled and occupy consecutive positions. With a single window the order equals that of `epoch_order`."""
    samples = np.arange(size)
    block = samples // blocks.records if blocks.starts is None else np.searchsorted(blocks.starts, samples, side="right") - 1
    count = int(block[-1]) + 1 if size else 0
    windows = -(-count // blocks.window)
    place = np.empty(count, dtype=np.int64)
    place[permutation(key(seed, ORDER, epoch, 5), count)] = np.arange(count)
    window = (place * windows // max(count, 1))[block]
    return np.lexsort((hashes(key(seed, ORDER, epoch), samples), window)).astype(np.int64)


def _pair_samples(shuffled: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pair samples of the same group in their shuffled order. Return the pairs, int64 [P, 2], and the samples left over, int64 [S]."""
    by_group = shuffled[np.argsort(groups[shuffled], kind="stable")]
    members = groups[by_group]
    index, size = _index_in_run(members)
    paired = (members >= 0) & (index < size // 2 * 2)
    return by_group[paired].reshape(-1, 2), by_group[~paired]


def _pair_distinct(samples: np.ndarray, groups: np.ndarray, *stream: int) -> tuple[np.ndarray, np.ndarray]:
    """Return as many pairs [P, 2] as possible of two different samples of the same group, and the samples left over [S].

    samples: int64 [N], with copies. groups: int64 [size], the group of each sample; samples of group -1 are not paired. stream: key of the
    random permutations.

    The T elements of a group are in random order, with the copies of a sample adjacent. Let c be the larger of ceil(T / 2) and the largest
    number of copies of one sample. Elements c to T - 1 are permuted, except copies of the sample at index c. Then element i is paired with
    element c + i, for i < T - c. Elements T - c to c - 1 are left over. Only the sample at index c can be on both sides of c. Its copies
    end the first part and begin the second. As a sample has at most c copies, element i and element c + i are never copies of the same
    sample."""
    copies = np.bincount(samples, minlength=len(groups))
    present = np.flatnonzero((copies > 0) & (groups >= 0))
    present = present[permutation(key(*stream, 3), len(present))]
    present = present[np.argsort(groups[present], kind="stable")]
    grouped = np.repeat(present, copies[present])
    if not len(grouped):
        return grouped.reshape(-1, 2), samples
    index, size = _index_in_run(groups[grouped])
    start = np.arange(len(grouped)) - index
    starts = np.flatnonzero(index == 0)
    most = np.repeat(np.maximum.reduceat(_index_in_run(grouped)[1], starts), size[starts])
    cut = np.maximum((size + 1) // 2, most)
    at_cut = grouped[np.minimum(start + cut, len(grouped) - 1)]
    free = np.flatnonzero((index >= cut) & (grouped != at_cut))
    moved = free[permutation(key(*stream, 4), len(free))]
    grouped[free] = grouped[moved[np.argsort(start[moved], kind="stable")]]
    first = np.flatnonzero(index < size - cut)
    single = (index >= size - cut) & (index < cut)
    pairs = np.stack([grouped[first], grouped[first + cut[first]]], axis=1)
    return pairs, np.concatenate([samples[groups[samples] < 0], grouped[single]])


def _index_in_run(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each of `values` [N], return its index in its run of equal adjacent values, int64 [N], and the length of this run, int64 [N]."""
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    lengths = np.diff(np.append(starts, len(values)))
    return np.arange(len(values)) - np.repeat(starts, lengths), np.repeat(lengths, lengths)
