"""The order of an epoch: a pure function of (seed, epoch), and for mixing a shuffle of slots of two.

Positions 2k and 2k+1 are a slot. With groups, as many slots as possible hold two members of one group; the odd ones out share
slots unmixed. Nothing here depends on processes, workers or accumulation.
"""

from __future__ import annotations

import numpy as np

from linnaeus.randomness import ORDER, key, permutation


def epoch_order(seed: int, epoch: int, size: int, groups: np.ndarray | None = None) -> np.ndarray:
    """int64 [size]: the dataset index at each position of an epoch. `groups` is int64 [size], -1 for samples of no group."""
    shuffled = permutation(key(seed, ORDER, epoch), size)
    if groups is None:
        return shuffled
    pairs, singles = _pair_up(shuffled, groups)
    singles = singles[permutation(key(seed, ORDER, epoch, 2), len(singles))]  # or the one left over were always of the last group
    slots = np.concatenate([pairs, singles[: len(singles) // 2 * 2].reshape(-1, 2)])
    slots = slots[permutation(key(seed, ORDER, epoch, 1), len(slots))]
    return np.concatenate([slots.reshape(-1), singles[len(singles) // 2 * 2 :]])


def _pair_up(shuffled: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In-group pairs [P, 2] and the rest [S], both in shuffled order within their group."""
    by_group = shuffled[np.argsort(groups[shuffled], kind="stable")]
    members = groups[by_group]
    starts = np.flatnonzero(np.concatenate([[True], members[1:] != members[:-1]]))
    rank_in_group = np.arange(len(members)) - np.repeat(starts, np.diff(np.append(starts, len(members))))
    group_size = np.repeat(np.diff(np.append(starts, len(members))), np.diff(np.append(starts, len(members))))
    paired = (members >= 0) & (rank_in_group < group_size // 2 * 2)
    return by_group[paired].reshape(-1, 2), by_group[~paired]
