"""Select the text window at each position of an epoch when phases of the schedule mix named sources.

The mixture is the probability of each source at each update. Each position draws its source from the mixture at its update, with a uniform
number that is a hash of (seed, epoch, position). The windows of a source are used in passes: each pass is a permutation of all its windows,
determined by (seed, source, pass), and the k-th draw of the source in the run takes the k-th window of these passes. So a window repeats
only after all windows of its source were used. If the mixture of an epoch is proportional to the numbers of windows, nothing is drawn: the
epoch has every window once, in the usual order, and the passes do not advance.

An epoch is a function of seed, epoch number and schedule alone. The numbers of draws in earlier epochs are not stored, but counted again
when they are needed."""

from collections.abc import Sequence

import numpy as np

from linnaeus.randomness import MIXTURE, hashes, key, uniforms
from linnaeus.schedule import OpsSchedule

SOURCE, WINDOW = 0, 1  # draws of the stream MIXTURE


class Mixture:
    """Choice of text windows from S sources for all epochs of a run.

    `schedule`: gives the mixture at each update. `names`: names of the sources. `window_counts`: int64 [S], number of text windows of each
    source."""

    def __init__(self, seed: int, schedule: OpsSchedule, names: Sequence[str], window_counts: np.ndarray) -> None:
        self.seed, self.schedule, self.names, self.window_counts = seed, schedule, tuple(names), window_counts
        resolved = schedule.resolved
        # Number of positions of an epoch: `data.last_batch=drop` leaves some out.
        self.positions = min(int(window_counts.sum()), resolved.steps_per_epoch * resolved.global_batch_size)
        self._draws_before = [np.zeros_like(window_counts)]  # [S] per epoch; counting costs 0.1 s per million positions, once

    def epoch_draws(self, epoch: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the window and the pass at each position of an epoch, as `assign_windows` does; None if the epoch has every window once,
        in the usual order. A pass uses each window of a source once."""
        source = self.epoch_sources(epoch)
        return None if source is None else assign_windows(self.seed, source, self.draws_before(epoch), self.window_counts)

    def epoch_sources(self, epoch: int) -> np.ndarray | None:
        """Return the source at each position of an epoch, int64 [positions]; None if the epoch has every window once."""
        resolved = self.schedule.resolved
        steps = epoch * resolved.steps_per_epoch + np.arange(resolved.steps_per_epoch)
        mixture = self.schedule.get_mixture(steps, self.names, self.window_counts.tolist())
        if np.allclose(mixture, self.window_counts / self.window_counts.sum(), rtol=1e-9, atol=0):
            return None  # every window once draws from each source in proportion to its windows, without chance
        return draw_sources(self.seed, epoch, mixture, resolved.global_batch_size, self.positions)

    def draws_before(self, epoch: int) -> np.ndarray:
        """Return the number of draws from each source in all earlier epochs (before `epoch`) in which the schedule mixes sources, int64
        [S]."""
        while len(self._draws_before) <= epoch:
            source = self.epoch_sources(len(self._draws_before) - 1)
            drawn = 0 if source is None else np.bincount(source, minlength=len(self.window_counts))
            self._draws_before.append(self._draws_before[-1] + drawn)
        return self._draws_before[epoch]


def draw_sources(seed: int, epoch: int, mixture: np.ndarray, global_batch_size: int, size: int) -> np.ndarray:
    """Return the source of each position of an epoch, int64 [size]. It is drawn from the mixture of its update, with a uniform number that
    is a hash of (seed, epoch, position).

    `mixture`, float64 [updates, S]: the probability of each source at each update of the epoch. An update uses `global_batch_size`
    positions."""
    position = np.arange(size)
    draws, update = uniforms(key(seed, MIXTURE, epoch, SOURCE), position), position // global_batch_size
    remaining = np.cumsum(mixture[:, ::-1], axis=1)[:, ::-1]  # probability of each source and all after it
    # Infinite if all later sources have weight 0: otherwise rounding of the sum could draw one of them.
    bounds = np.where(remaining[:, 1:] > 0, np.cumsum(mixture, axis=1)[:, :-1], np.inf)
    source = np.zeros(size, np.int64)
    for bound in bounds.T:
        source += draws >= bound[update]
    return source


def assign_windows(seed: int, source: np.ndarray, before: np.ndarray, window_counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the window (int64 [N]) and the number of its pass (int32 [N]) for N positions; a pass uses each window of a source once.

    `source`: int64 [N], the source of each position. `before`: int64 [S], the number of earlier draws of each source. `window_counts`:
    int64 [S], number of text windows of each source. Windows are numbered over all sources, passes within a source."""
    window, pass_number = np.empty_like(source), np.empty(len(source), np.int32)
    first = np.cumsum(window_counts) - window_counts
    for number, (count, start) in enumerate(zip(window_counts.tolist(), before.tolist())):
        own = np.flatnonzero(source == number)
        if len(own):
            window[own] = first[number] + _permuted(key(seed, MIXTURE, number, WINDOW), count, start, len(own))
            pass_number[own] = (start + np.arange(len(own))) // count
    return window, pass_number


def _permuted(stream: int, count: int, start: int, draws: int) -> np.ndarray:
    """Return elements `start` to `start + draws` (exclusive) of an endless sequence of permutations of range(count), int64 [draws].
    `stream` determines the permutations. Only the permutations that are needed are computed."""
    first, last = start // count, (start + draws - 1) // count
    orders = hashes(stream, np.arange(first * count, (last + 1) * count)).reshape(-1, count).argsort(axis=1, kind="stable")
    return orders.reshape(-1)[start - first * count :][:draws]
