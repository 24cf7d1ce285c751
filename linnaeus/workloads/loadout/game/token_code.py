"""Tokens of a build: two codes in which the model reads gear and predicts it.

In both codes a token means "at least this level of an ability" (thermometer code): a build has the token of its level and of all lower
levels. A target is multi-hot. The predicted probability of a token is the probability that the build reaches the level.

- `slots` (182 tokens): levels are numbers of slots. `swim_speed_up_sub_2` means at least two sub slots. Every slot adds one token.
- `points` (140 tokens): levels are ability points, `THRESHOLDS`; main-only abilities have one token. This is the code of SplatNLP. It has
  less information: a main (10 points) and three subs (9 points) are the same tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.loadout.game.abilities import (
    ABILITIES,
    FULL_POINTS,
    ITEM_ABILITY,
    ITEM_POINTS,
    ITEMS,
    MAIN_ITEMS,
    MOST,
    PIECE_OF,
    SLOTS,
    STANDARD,
    SUB_SLOTS,
    ability_points,
)

PAD, NULL = 0, 1  # an unused place of a set, and the only token of the empty build
SPECIAL = ("<PAD>", "<NULL>")
THRESHOLDS = (3, 6, 12, 15, 21, 29, 38, 51, 57)
LEVELS = SUB_SLOTS  # highest number of slots of an item


class TokenCode(ABC):
    """Base class of the codes that represent a build as a set of V tokens.

    names: names of the tokens, the two special tokens first. longest: largest number of tokens of a build."""

    names: tuple[str, ...]
    longest: int
    levels: np.ndarray  # [V] level of each token, out of reach for the special ones
    measured: np.ndarray  # [V] index of the quantity in `quantities`

    @abstractmethod
    def quantities(self, builds: np.ndarray) -> np.ndarray:
        """Return what the levels measure (numbers of slots or ability points) for each build, [N, Q]. builds: int8 [N, 40], counts of
        `ITEMS`."""

    @abstractmethod
    def tails(self, probabilities: Tensor, observed: Tensor) -> Tensor:
        """Return the probability that a build has at least j = 1 to 9 more of each item than `observed`, int [B, 40]: [B, 40, 9].

        probabilities: [B, V], predicted probability of each token. The result is 0 where a legal build cannot have so many copies of the
        item, and does not increase with j."""

    def __len__(self) -> int:
        return len(self.names)

    def multi_hot(self, builds: np.ndarray) -> np.ndarray:
        """Return bool [N, V], True for the tokens that each build has. The special tokens are False. builds: int8 [N, 40]."""
        return self.quantities(builds)[:, self.measured] >= self.levels

    def token_sets(self, builds: np.ndarray) -> np.ndarray:
        """Return the token numbers of each build, ascending and padded with `PAD`: int64 [N, longest]. An empty build gets `NULL`. builds:
        int8 [N, 40]."""
        return sets_of(self.multi_hot(builds), self.longest)


def sets_of(multi_hot: np.ndarray, longest: int) -> np.ndarray:
    """Return the token numbers in each row of `multi_hot`, bool [N, V], padded with `PAD`: int64 [N, longest]. A row without tokens gets
    `NULL`."""
    found = np.full((len(multi_hot), longest), PAD, np.int64)
    rows, tokens = multi_hot.nonzero()
    place = np.arange(len(rows)) - np.searchsorted(rows, rows)
    found[rows, place] = tokens
    found[~multi_hot.any(1), 0] = NULL
    return found


class SlotsCode(TokenCode):
    """Code whose levels are numbers of slots, for each of the 40 items: 182 tokens."""

    longest = SLOTS

    def __init__(self) -> None:
        levels = [(item, level) for item in range(len(ITEMS)) for level in range(1, MOST[item] + 1)]
        self.measured = np.array([0, 0, *(item for item, _ in levels)])
        self.levels = np.array([SLOTS + 1, SLOTS + 1, *(level for _, level in levels)])
        self.names = (*SPECIAL, *(self._name(item, level) for item, level in levels))
        first = np.searchsorted(self.measured[2:], np.arange(len(ITEMS))) + 2
        self._first = torch.from_numpy(first)  # [40] token of level 1
        self._most = torch.from_numpy(MOST)

    @staticmethod
    def _name(item: int, level: int) -> str:
        name = ITEMS[item]
        return name if name in PIECE_OF else f"{name}_{'main' if item < MAIN_ITEMS else 'sub'}_{level}"

    def quantities(self, builds: np.ndarray) -> np.ndarray:
        return builds

    def tails(self, probabilities: Tensor, observed: Tensor) -> Tensor:
        first, most = self._first.to(observed.device), self._most.to(observed.device)
        level = observed.long().unsqueeze(2) + torch.arange(1, LEVELS + 1, device=observed.device)  # [B, 40, 9]
        token = (first.view(1, -1, 1) + level - 1).clamp(max=len(self) - 1)
        found = probabilities.gather(1, token.flatten(1)).view(level.shape)
        return torch.where(level <= most.view(1, -1, 1), found, 0.0).cummin(2).values


class PointsCode(TokenCode):
    """Code whose levels are ability points, for each of the 26 abilities: 140 tokens, as in SplatNLP."""

    longest = 15  # nine subs of one token each and three mains of at most two

    def __init__(self) -> None:
        only = len(PIECE_OF)
        levels = [(a, t) for a in range(len(ABILITIES)) for t in (THRESHOLDS if a >= only else (1,))]
        self.measured = np.array([0, 0, *(ability for ability, _ in levels)])
        self.levels = np.array([FULL_POINTS + 1, FULL_POINTS + 1, *(level for _, level in levels)])
        self.names = (*SPECIAL, *PIECE_OF, *(f"{name}_{level}" for name in STANDARD for level in THRESHOLDS))
        # p points lie between two thresholds: the number of the lower one, and the weight of the higher one
        points = np.arange(FULL_POINTS + LEVELS * 10 + 1)
        above = np.searchsorted(THRESHOLDS, points)  # number of thresholds below p
        edges = np.array([0, *THRESHOLDS, FULL_POINTS + 1])
        self._above = torch.from_numpy(above)
        self._share = torch.from_numpy(((points - edges[above]) / np.diff(edges)[above]).clip(max=1.0)).float()

    def quantities(self, builds: np.ndarray) -> np.ndarray:
        return ability_points(builds)

    def tails(self, probabilities: Tensor, observed: Tensor) -> Tensor:
        """Return the probabilities that `TokenCode.tails` describes. Between two thresholds of points the probability is interpolated
        linearly. The thresholds that `observed` reaches have probability 1, because without `data.visible_targets` the model does not learn
        them."""
        device, only, size = observed.device, len(PIECE_OF), len(observed)
        owned = torch.from_numpy(ability_points(observed.cpu().numpy())[:, only:]).to(device)  # [B, 14]
        standard = probabilities[:, 2 + only :].view(size, len(STANDARD), len(THRESHOLDS))
        reached = owned.unsqueeze(2) >= torch.tensor(THRESHOLDS, device=device)
        standard = torch.where(reached, 1.0, standard).cummin(2).values
        ends = standard.new_ones(size, len(STANDARD), 1), standard.new_zeros(size, len(STANDARD), 2)
        survival = torch.cat([ends[0], standard, ends[1]], 2)  # at 0 points, the nine thresholds, and beyond
        ability = torch.from_numpy(ITEM_ABILITY[only:] - only).to(device)  # [28]
        each = torch.from_numpy(ITEM_POINTS[only:]).to(device).view(1, -1, 1)
        points = owned[:, ability].unsqueeze(2) + each * torch.arange(1, LEVELS + 1, device=device)  # [B, 28, 9]
        above, share = self._above.to(device)[points], self._share.to(device)[points].to(survival)
        curve = survival[:, ability]  # [B, 28, 12]
        found = curve.gather(2, above) * (1 - share) + curve.gather(2, (above + 1).clamp(max=11)) * share
        main_only = probabilities[:, 2 : 2 + only].unsqueeze(2) * (torch.arange(LEVELS, device=device) == 0)
        level = observed.long().unsqueeze(2) + torch.arange(1, LEVELS + 1, device=device)
        allowed = level <= torch.from_numpy(MOST).to(device).view(1, -1, 1)
        return torch.where(allowed, torch.cat([main_only, found], 1), 0.0).cummin(2).values


CODES: dict[str, Callable[[], TokenCode]] = {"slots": SlotsCode, "points": PointsCode}
