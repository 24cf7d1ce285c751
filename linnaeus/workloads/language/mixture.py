"""Which window each position of an epoch draws, where phases of the schedule mix named sources.

A position draws its source by a keyed uniform of (seed, epoch, position) against the mixture at the update that uses it. The k-th draw
of a source in the run takes the k-th window of keyed permutations of its windows, one of (seed, source, pass) for each pass through
them: a window comes again once all of its source have come, however many epochs that takes. An epoch that draws from sources as large as
they are has every window once in the order it has anyway; the passes go on behind it where they stood.

All of it is a pure function of the seed, the epoch and the schedule, for a whole epoch at once: no process, worker or accumulation
step has a part in it, and a resume finds the same. How often earlier epochs drew from each source is counted anew by whoever needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linnaeus.randomness import MIXTURE, hashes, key, uniforms
from linnaeus.schedule import OpsSchedule

SOURCE, WINDOW = 0, 1  # draws of the stream


class Mixture:
    """The draws of a run, epoch by epoch, from sources of `windows` int64 [S] windows by their `names`."""

    def __init__(self, seed: int, schedule: OpsSchedule, names: Sequence[str], windows: np.ndarray) -> None:
        self.seed, self.schedule, self.names, self.windows = seed, schedule, tuple(names), windows
        resolved = schedule.resolved
        self.used = min(
            int(windows.sum()), resolved.steps_per_epoch * resolved.global_batch_size
        )  # positions: `data.last_batch` may drop some
        self._before = [np.zeros_like(windows)]  # [S] draws of each source before the epoch: 0.1 s for a million positions, once

    def of_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray] | None:
        """(window, pass) at each position, as `walk` gives them; None: the epoch has every window once in the order it has anyway."""
        source = self.sources(epoch)
        return None if source is None else walk(self.seed, source, self.before(epoch), self.windows)

    def sources(self, epoch: int) -> np.ndarray | None:
        """int64 [used]: the source at each position of an epoch; None: as `of_epoch`."""
        resolved = self.schedule.resolved
        steps = epoch * resolved.steps_per_epoch + np.arange(resolved.steps_per_epoch)
        mixture = self.schedule.get_mixture(steps, self.names, self.windows.tolist())
        return (
            None
            if in_proportion(mixture, self.windows)
            else drawn_sources(self.seed, epoch, mixture, resolved.global_batch_size, self.used)
        )

    def before(self, epoch: int) -> np.ndarray:
        """int64 [S]: how often the mixed epochs before this one drew from each source."""
        while len(self._before) <= epoch:
            source = self.sources(len(self._before) - 1)
            drawn = 0 if source is None else np.bincount(source, minlength=len(self.windows))
            self._before.append(self._before[-1] + drawn)
        return self._before[epoch]


def drawn_sources(seed: int, epoch: int, mixture: np.ndarray, global_batch_size: int, size: int) -> np.ndarray:
    """int64 [size]: the source of each position of an epoch, by inverting the distribution function of its update.

    `mixture` float64 [updates, S] has the probabilities at each update of the epoch, which uses `global_batch_size` positions."""
    position = np.arange(size)
    draws, update = uniforms(key(seed, MIXTURE, epoch, SOURCE), position), position // global_batch_size
    left = np.cumsum(mixture[:, ::-1], axis=1)[:, ::-1]  # of each source and those behind it
    reached = np.where(left[:, 1:] > 0, np.cumsum(mixture, axis=1)[:, :-1], np.inf)  # or rounding might draw a source of weight 0
    source = np.zeros(size, np.int64)
    for bound in reached.T:
        source += draws >= bound[update]
    return source


def walk(seed: int, source: np.ndarray, before: np.ndarray, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(window int64 [N], pass int32 [N]) at positions that draw from `source` int64 [N], where `before` int64 [S] draws of each source
    came earlier. Windows, int64 [S] of each, are numbered through all sources, passes within one."""
    found, turn, first = np.empty_like(source), np.empty(len(source), np.int32), np.cumsum(windows) - windows
    for number, (count, begun) in enumerate(zip(windows.tolist(), before.tolist())):
        mine = np.flatnonzero(source == number)
        if len(mine):
            found[mine] = first[number] + _passes(key(seed, MIXTURE, number, WINDOW), count, begun, len(mine))
            turn[mine] = (begun + np.arange(len(mine))) // count
    return found, turn


def _passes(stream: int, count: int, begun: int, draws: int) -> np.ndarray:
    """int64 [draws]: the numbers below `count`, all of them in a keyed order, then all of them in another, from the place `begun` on.
    No other orders are made than those that are asked for."""
    first, last = begun // count, (begun + draws - 1) // count
    orders = hashes(stream, np.arange(first * count, (last + 1) * count)).reshape(-1, count).argsort(axis=1, kind="stable")
    return orders.reshape(-1)[begun - first * count :][:draws]


def in_proportion(mixture: np.ndarray, windows: np.ndarray) -> bool:
    """Whether all updates draw from sources as large as they are, which every window once does, and better than draws do."""
    return bool(np.allclose(mixture, windows / windows.sum(), rtol=1e-9, atol=0))
