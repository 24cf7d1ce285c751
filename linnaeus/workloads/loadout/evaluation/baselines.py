"""Predict builds by statistics of the training builds, without a network.

A baseline returns probabilities of the tokens of `SlotsCode`. Slots are filled from these probabilities in the same way as from the
probabilities of the model.

- `random`: uniform random numbers, so the slots are filled at random.
- `modal`: the most frequent build of the weapon.
- `containing`: the most frequent build of the weapon that contains the given gear; if no build does, the `modal` build.
- `neighbours`: the mean of the weapon's builds, with weight exp(`SHARPNESS` x number of slots shared with the given gear).
- `log_odds`: the log-odds of each token for the weapon, plus `EVIDENCE` x the token's pairwise log-odds with each given token over all
  weapons.

Slots that `modal`, `containing` or `neighbours` leaves open are filled by the token frequencies of the weapon. These are smoothed with the
token frequencies of all weapons.
"""

from __future__ import annotations

import numpy as np

from linnaeus.randomness import VALIDATION, key, uniforms
from linnaeus.workloads.loadout.builds.build_table import Builds, content_hashes
from linnaeus.workloads.loadout.game.token_code import SlotsCode

BASELINES = ("random", "modal", "containing", "neighbours", "log_odds")
SMOOTHING = 5.0  # builds of all weapons that count as builds of each weapon
PAIR_SMOOTHING = 1.0  # builds added to each cell of a pair's table
SHARPNESS = 1.5  # nats per shared slot: weight of a neighbour
EVIDENCE = 0.5  # factor of the log-odds, because the given tokens are not independent
CHUNK = 1 << 23  # pairs of a partial build and a training build compared at once, 32 MB for each array


class Baselines:
    """Token frequencies and pairwise log-odds of the training builds of W weapons, from which all baselines predict."""

    def __init__(self, train: Builds, weapons: int) -> None:
        self.code, self.train = SlotsCode(), train
        hot = self.code.multi_hot(train.items)
        total = hot.mean(0)
        self.frequency = np.stack([self._smoothed(hot[train.weapon == weapon], total) for weapon in range(weapons)])  # [W, V]
        number, together = len(hot), hot.astype(np.float32).T @ hot.astype(np.float32)  # [V, V]
        each = together.diagonal()
        with_given = (together + PAIR_SMOOTHING * total) / (each[:, None] + PAIR_SMOOTHING)  # [given, predicted]
        without = (each - together + PAIR_SMOOTHING * total) / (number - each[:, None] + PAIR_SMOOTHING)
        self.log_odds = _logit(with_given) - _logit(without)

    @staticmethod
    def _smoothed(hot: np.ndarray, total: np.ndarray) -> np.ndarray:
        found: np.ndarray = (hot.sum(0) + SMOOTHING * total) / (len(hot) + SMOOTHING)
        return found

    def probabilities(self, observed: np.ndarray, weapon: np.ndarray) -> dict[str, np.ndarray]:
        """Return {name of the baseline: probability of each of the V tokens, float32 [N, V]} for N partial builds.

        observed: the given gear, int8 [N, 40]. weapon: int64 [N], index of the weapon."""
        size, tokens = len(observed), len(self.code)
        shown = self.code.multi_hot(observed).astype(np.float32)
        found = {name: np.zeros((size, tokens), np.float32) for name in BASELINES}
        found["random"][:] = uniforms(key(0, VALIDATION, 1), np.arange(size)[:, None] * tokens + np.arange(tokens))
        found["log_odds"][:] = 1 / (1 + np.exp(-_logit(self.frequency[weapon]) - EVIDENCE * shown @ self.log_odds))
        for number in np.unique(weapon):
            rows = np.flatnonzero(weapon == number)
            self._of_weapon(int(number), shown[rows], rows, found)
        return found

    def _of_weapon(self, weapon: int, shown: np.ndarray, rows: np.ndarray, found: dict[str, np.ndarray]) -> None:
        frequency = self.frequency[weapon]
        for name in ("modal", "containing", "neighbours"):
            found[name][rows] = 0.01 * frequency
        own = self.train.rows(self.train.weapon == weapon)
        if not len(own):
            return
        _, first, copies = np.unique(content_hashes(own, 0), return_index=True, return_counts=True)
        order = np.lexsort((first, -copies))  # the most frequent builds first, equal ones in the order of the rows
        first, copies = first[order], copies[order].astype(np.float32)
        hot = self.code.multi_hot(own.items[first]).astype(np.float32)
        found["modal"][rows] += 0.99 * hot[0]
        size = max(1, CHUNK // len(hot))
        for start in range(0, len(rows), size):
            part, given = rows[start : start + size], shown[start : start + size]
            shared = given @ hot.T  # slots in common, [part, builds]
            contains = shared == given.sum(1, keepdims=True)
            best = np.where(contains.any(1), contains.argmax(1), 0)
            found["containing"][part] += 0.99 * hot[best]
            weights = copies * np.exp(SHARPNESS * (shared - shared.max(1, keepdims=True)))
            found["neighbours"][part] += 0.99 * (weights / weights.sum(1, keepdims=True)) @ hot


def _logit(p: np.ndarray) -> np.ndarray:
    clipped = np.clip(p, 1e-6, 1 - 1e-6)
    found: np.ndarray = np.log(clipped / (1 - clipped))
    return found
