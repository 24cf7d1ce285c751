"""Generate synthetic builds from a known distribution, so that the posterior of the missing slots can be computed exactly.

A weapon is drawn from a long-tailed distribution, then one of the weapon's archetypes (styles of build). Then each of the 12 slots is drawn
independently: the main ability of a piece from the archetype's distribution for that piece, a sub ability from the archetype's distribution
of sub abilities. With probability 1 - `LOYALTY` a slot is drawn from the preferences of the weapon instead.

Given the archetype, the slots are independent, so the posterior of the archetype given part of a build is a product (`posterior.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linnaeus.randomness import SYNTHETIC, Draw, key, uniforms
from linnaeus.workloads.loadout.game.abilities import ITEM_PIECE, ITEMS, MAIN_ITEMS, MAIN_ONLY, PIECES, STANDARD, SUB_SLOTS

ARCHETYPES, PER_WEAPON = 24, 5  # styles of the world, and of one weapon
LOYALTY = 0.8  # probability that a slot follows the archetype and not the weapon
TAIL = 1.0  # exponent of the frequency of weapons by rank
ONLY = len(ITEMS) - 2 * len(STANDARD)
WORLD, BUILD = 0, 1  # draws of the stream SYNTHETIC


@dataclass(frozen=True)
class World:
    """Probabilities from which builds are generated, for W weapons with K archetypes (styles of build) each.

    weapon [W]: P(weapon). archetype [W, K]: P(archetype | weapon). main [W, K, 3, 26]: P(ability in the main slot of a piece). sub [W, K,
    14]: P(standard ability in a sub slot)."""

    weapon: np.ndarray
    archetype: np.ndarray
    main: np.ndarray
    sub: np.ndarray

    def draw(self, seed: int, first: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (weapons int64 [N], builds int8 [N, 40]) of N = `number` random builds.

        Each `seed` has an endless sequence of random builds; the result is its positions `first` to `first + number - 1`."""
        index = np.arange(first, first + number)[:, None] * (3 + SUB_SLOTS + 2) + np.arange(3 + SUB_SLOTS + 2)
        draws = uniforms(key(seed, SYNTHETIC, BUILD), index)  # [N, 14]
        weapon = _choose(np.broadcast_to(self.weapon, (number, len(self.weapon))), draws[:, 0])
        archetype = _choose(self.archetype[weapon], draws[:, 1])
        builds, rows = np.zeros((number, len(ITEMS)), np.int8), np.arange(number)
        for piece in range(len(PIECES)):
            builds[rows, _choose(self.main[weapon, archetype, piece], draws[:, 2 + piece])] += 1
        for slot in range(SUB_SLOTS):
            builds[rows, MAIN_ITEMS + _choose(self.sub[weapon, archetype], draws[:, 5 + slot])] += 1
        return weapon, builds


def _choose(probabilities: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Draw a column of each row of `probabilities` [N, C]; return the column numbers, int64 [N]. The rows need not sum to 1.

    draws: a uniform number in [0, 1) for each row, [N], at which the cumulative distribution of the row is inverted."""
    above = probabilities.cumsum(1) < draws[:, None] * probabilities.sum(1, keepdims=True)
    return np.minimum(above.sum(1), probabilities.shape[1] - 1)


def make_world(seed: int, weapons: int) -> World:
    """Return a random `World` (distribution of builds) with `weapons` weapons.

    The seed determines the archetypes, the preferences of the weapons and the frequencies of the weapons."""
    draw = Draw(seed, SYNTHETIC, WORLD)
    styles = [_style(draw) for _ in range(ARCHETYPES)]
    rank = np.argsort([draw.uniform() for _ in range(weapons)])
    frequency = 1.0 / (rank + 2.0) ** TAIL
    archetype = np.zeros((weapons, PER_WEAPON))
    main, sub = np.zeros((weapons, PER_WEAPON, len(PIECES), MAIN_ITEMS)), np.zeros((weapons, PER_WEAPON, len(STANDARD)))
    for w in range(weapons):
        own_main, own_sub = _preferences(draw)
        chosen = np.argsort([draw.uniform() for _ in range(ARCHETYPES)])[:PER_WEAPON]
        archetype[w] = _normalised(np.array([draw.gamma(1.0) for _ in range(PER_WEAPON)]) + 0.05)
        for k, style in enumerate(chosen):
            main[w, k] = LOYALTY * styles[style][0] + (1 - LOYALTY) * own_main
            sub[w, k] = LOYALTY * styles[style][1] + (1 - LOYALTY) * own_sub
    return World(_normalised(frequency), archetype, main, sub)


def _style(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """Draw a random archetype. Return P(ability in the main slot of a piece) [3, 26] and P(standard ability in a sub slot) [14].

    A few abilities have most of the probability."""
    sub = _normalised(np.array([draw.gamma(0.25) for _ in STANDARD]) + 0.002)
    main = np.zeros((len(PIECES), MAIN_ITEMS))
    for piece, name in enumerate(PIECES):
        first = [ITEMS.index(ability) for ability in MAIN_ONLY[name]]
        favourite = (
            first[draw.integer(len(first))] if draw.uniform() < 0.6 else ONLY + int(_choose(sub[None], np.array([draw.uniform()]))[0])
        )
        main[piece, favourite] += 0.85
        main[piece, first] += 0.05 / len(first)
        main[piece, ONLY:] += 0.10 * sub
    return main, sub


def _preferences(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """Draw the preferences of a weapon. Return P(ability in the main slot of a piece) [3, 26] and P(standard ability in a sub slot)
    [14]."""
    sub = _normalised(np.array([draw.gamma(0.3) for _ in STANDARD]) + 0.01)
    main = np.zeros((len(PIECES), MAIN_ITEMS))
    for piece in range(len(PIECES)):
        only = np.flatnonzero(piece == ITEM_PIECE)
        main[piece, only] = 0.3 / len(only)
        main[piece, ONLY:] = 0.7 * sub
    return main, sub


def _normalised(values: np.ndarray) -> np.ndarray:
    return values / values.sum()
