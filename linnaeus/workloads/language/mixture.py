"""Which window each position of an epoch draws, where phases of the schedule mix named sources.

A position draws its source by a keyed uniform of (seed, epoch, position) against the mixture at the update that uses it. The k-th draw of
a source within the epoch takes the k-th window of keyed permutations of its windows, one for each pass through them: a window
comes again once all of its source have come. A pure function of the seed, the epoch and the schedule, for a whole epoch at once: no
process, worker or accumulation step has a part in it, and a resume finds the same.
"""

from __future__ import annotations

import numpy as np

from linnaeus.randomness import MIXTURE, hashes, key, uniforms

SOURCE, WINDOW = 0, 1  # draws of the stream


def mixed_windows(seed: int, epoch: int, mixture: np.ndarray, global_batch: int, windows: np.ndarray) -> np.ndarray:
    """int64 [N]: the window at each position of an epoch, windows being numbered through all sources.

    `mixture` float64 [updates, S] has the probabilities of the sources at each update of the epoch, which uses `global_batch` positions;
    `windows` int64 [S] is how many each source has, N in all."""
    source = _sources(key(seed, MIXTURE, epoch, SOURCE), mixture, global_batch, int(windows.sum()))
    found, first = np.empty_like(source), np.cumsum(windows) - windows
    for number, count in enumerate(windows.tolist()):
        mine = np.flatnonzero(source == number)
        found[mine] = first[number] + _passes(key(seed, MIXTURE, epoch, WINDOW, number), count, len(mine))
    return found


def _sources(stream: int, mixture: np.ndarray, global_batch: int, size: int) -> np.ndarray:
    """int64 [size]: the source of each position, by inverting the distribution function of its update."""
    position = np.arange(size)
    draws, update = uniforms(stream, position), position // global_batch
    left = np.cumsum(mixture[:, ::-1], axis=1)[:, ::-1]  # of each source and those behind it
    reached = np.where(left[:, 1:] > 0, np.cumsum(mixture, axis=1)[:, :-1], np.inf)  # or rounding might draw a source of weight 0
    source = np.zeros(size, np.int64)
    for bound in reached.T:
        source += draws >= bound[update]
    return source


def _passes(stream: int, count: int, draws: int) -> np.ndarray:
    """int64 [draws]: the numbers below `count`, all of them in a keyed order, then all of them in another."""
    passes = -(-draws // count)
    shuffled = hashes(stream, np.arange(passes * count)).reshape(passes, count).argsort(axis=1, kind="stable")
    return shuffled.reshape(-1)[:draws]


def in_proportion(mixture: np.ndarray, windows: np.ndarray) -> bool:
    """Whether all updates draw from sources as large as they are, which every window once does, and better than draws do."""
    return bool(np.allclose(mixture, windows / windows.sum(), rtol=1e-9, atol=0))
