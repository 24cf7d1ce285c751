"""Compute the exact posterior of the missing slots of generated builds (`archetypes.World`), from which the best completion follows.

Given the archetype z, the sub slots are independent draws, so the counts in the missing sub slots are multinomial. A standard ability in a
main slot does not show its piece, so the likelihood of the main slots is a sum over the assignments of the observed main abilities to
pieces. The probability of at least j more of each item is the mean of P(at least j | z, assignment), weighted by P(z, assignment |
observed). The values P(at least j | z, assignment) are computed once for every weapon.
"""

from __future__ import annotations

from itertools import permutations, product
from math import comb

import numpy as np

from linnaeus.workloads.loadout.builds.archetypes import World
from linnaeus.workloads.loadout.game.abilities import ITEMS, MAIN_ITEMS, MAIN_SLOTS, PIECES, SUB_SLOTS

ORDERS = tuple(permutations(range(len(PIECES))))
SUBSETS = tuple(product((False, True), repeat=len(PIECES)))  # of pieces whose main is missing
BATCH = 2000  # builds at once


class Posterior:
    """Exact probabilities of the missing items of partial builds, for builds that one `World` generates."""

    def __init__(self, world: World) -> None:
        self.world = world
        with np.errstate(divide="ignore"):
            self._log_sub, self._log_main, self._log_prior = np.log(world.sub), np.log(world.main), np.log(world.archetype)
        self._main_tails = np.stack([_main_tails(world.main, subset) for subset in SUBSETS], 2)  # [W, K, 8, 26, 3]
        self._sub_tails = np.stack([_sub_tails(world.sub, free) for free in range(SUB_SLOTS + 1)], 2)  # [W, K, 10, 14, 9]

    def tails(self, observed: np.ndarray, weapon: np.ndarray) -> np.ndarray:
        """Return the probability that a build has at least j = 1 to 9 more of each item than `observed`, float64 [N, 40, 9].

        observed: int [N, 40], legal parts of builds. weapon: int [N]."""
        parts = [self._batch(observed[i : i + BATCH], weapon[i : i + BATCH]) for i in range(0, len(observed), BATCH)]
        return np.concatenate(parts) if parts else np.zeros((0, len(ITEMS), SUB_SLOTS))

    def _batch(self, observed: np.ndarray, weapon: np.ndarray) -> np.ndarray:
        subs = observed[:, MAIN_ITEMS:].astype(np.int64)
        by_subset = self._main_likelihood(observed[:, :MAIN_ITEMS], weapon)  # [N, K, 8]
        log_sub = np.einsum("na,nka->nk", subs, self._log_sub[weapon]) + self._log_prior[weapon]
        joint = by_subset * np.exp(log_sub - log_sub.max(1, keepdims=True))[..., None]
        joint /= joint.sum((1, 2), keepdims=True)
        found = np.zeros((len(observed), len(ITEMS), SUB_SLOTS))
        found[:, :MAIN_ITEMS, :MAIN_SLOTS] = np.einsum("nks,nksaj->naj", joint, self._main_tails[weapon], optimize=True)
        free = SUB_SLOTS - subs.sum(1)
        found[:, MAIN_ITEMS:] = np.einsum("nk,nkaj->naj", joint.sum(2), self._sub_tails[weapon, :, free])
        return found

    def _main_likelihood(self, mains: np.ndarray, weapon: np.ndarray) -> np.ndarray:
        """Return P(observed main abilities, pieces without a main ability | weapon, archetype), [N, K, 8], up to a factor for each row.

        mains: int [N, 26], counts of the observed main abilities. The last axis is the set of pieces without one, in the order of
        `SUBSETS`."""
        slots = np.full((len(mains), MAIN_SLOTS), -1)
        rows, items = mains.nonzero()
        items, rows = np.repeat(items, mains[rows, items]), np.repeat(rows, mains[rows, items])
        slots[rows, np.arange(len(rows)) - np.searchsorted(rows, rows)] = items
        main = self.world.main[weapon]  # [N, K, 3, 26]
        likelihood = np.ones((len(mains), main.shape[1], len(PIECES), MAIN_SLOTS))  # of each observed main on each piece
        for place in range(MAIN_SLOTS):
            known = slots[:, place] >= 0
            likelihood[known, :, :, place] = main[known, :, :, slots[known, place]]
        found = np.zeros((len(mains), main.shape[1], len(SUBSETS)))
        for order in ORDERS:  # observed main i is on piece order[i]
            value = np.prod([likelihood[:, :, piece, place] for place, piece in enumerate(order)], 0)
            missing = np.stack([slots[:, order.index(piece)] < 0 for piece in range(len(PIECES))], 1)
            subset = missing @ np.array([4, 2, 1])
            found[np.arange(len(mains)), :, subset] += value
        return found


def _main_tails(main: np.ndarray, missing: tuple[bool, ...]) -> np.ndarray:
    """Return P(at least j of the missing main slots have the ability), j = 1 to 3, [W, K, 26, 3].

    main: [W, K, 3, 26], probability of each ability on each piece. missing: True for each piece whose main ability is missing."""
    counts = np.zeros((*main.shape[:2], MAIN_ITEMS, MAIN_SLOTS + 1))
    counts[..., 0] = 1.0
    for piece in np.flatnonzero(missing):
        p = main[:, :, piece, :, None]
        counts = counts * (1 - p) + p * np.concatenate([np.zeros_like(counts[..., :1]), counts[..., :-1]], -1)
    return counts[..., ::-1].cumsum(-1)[..., ::-1][..., 1:]


def _sub_tails(sub: np.ndarray, free: int) -> np.ndarray:
    """Return P(at least j of `free` sub slots have the ability), j = 1 to 9, [W, K, 14, 9]: a binomial distribution.

    sub: [W, K, 14], probability of each ability in one sub slot."""
    p = sub[..., None]
    number = np.arange(SUB_SLOTS + 1)
    ways = np.array([comb(free, int(j)) for j in number], float)
    counts = np.where(number <= free, ways * p**number * (1 - p) ** np.maximum(free - number, 0), 0.0)
    return counts[..., ::-1].cumsum(-1)[..., ::-1][..., 1:]
