"""Score completions of partial builds. The metrics of the model, the baselines and the optimum use the same functions.

- `slots_K`: share of K removed slots that are right, compared as multisets of items.
- `references_K`: the same share, compared with the best matching of several builds that contain the given gear: the whole build of the
  sample, and the first `REFERENCES` validation builds of the weapon.
- `weapon_6`: of the slots that the token frequencies of the weapon alone fill rightly, the share that the answer fills rightly (6 removed).
- `gear_6`: of the other slots, which need the given gear, the share that the answer fills rightly (6 removed).
- `points`: 1 - (sum of absolute differences of the ability points) / (2 x 57).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.loadout.builds.build_table import Builds, content_hashes
from linnaeus.workloads.loadout.game.abilities import ABILITIES, FULL_POINTS, ITEM_ABILITY, ITEM_POINTS, ITEMS, SLOTS
from linnaeus.workloads.loadout.game.token_code import SlotsCode

COMPARED = (1, 2, 3, 4, 5, 6)  # numbers of removed slots
SHOWN = (*COMPARED, 9, SLOTS)  # those of `slots_K`
REFERENCES = 256  # builds of a weapon that an answer is compared with, at most
POOLED = 128  # partial builds compared with references at once, 24 MB for 256 references
_CODE = SlotsCode()


class Scores(NamedTuple):
    """Scores of B completions by each of M methods, int64 [M, B] each.

    right: number of right slots. references: number of right slots against the best reference. decided_right: right slots among those that
    the weapon alone decides. points: sum of the absolute differences of the ability points."""

    right: Tensor
    references: Tensor
    decided_right: Tensor
    points: Tensor


def score(added: Tensor, observed: Tensor, complete: Tensor, by_weapon: Tensor, weapon: Tensor, pool: Tensor) -> Scores:
    """Return the scores of B completions by each of M methods.

    added: int64 [M, B, 40], the slots that each completion adds. observed, complete: int64 [B, 40], the given gear and the whole build.
    by_weapon: int64 [B, 40], the slots that are added by the token frequencies of the weapon alone. weapon: int64 [B]. pool: the result of
    `reference_pool`."""
    missing = complete - observed
    right = torch.minimum(added, missing).sum(2)
    references = torch.maximum(right, best_references(added, observed, weapon, pool))
    decided_right = torch.minimum(decided_by_weapon(by_weapon, missing), added).sum(2)
    return Scores(right, references, decided_right, (to_points(added) - to_points(missing)).abs().sum(2))


def decided_by_weapon(by_weapon: Tensor, missing: Tensor) -> Tensor:
    """Return the missing slots that the token frequencies of the weapon alone fill rightly, int64 [B, 40]. Arguments: as in `score`."""
    return torch.minimum(by_weapon, missing)


def answer_metrics(counts: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the metrics that the module describes by name; NaN for a metric without samples.

    counts: int64 [N] each, for the N samples of a validation set: `seen`, 1 for a sample that was completed; the fields of `Scores`, and
    `decided`, the number of slots that the weapon alone decides. These are 0 for a sample that was not completed."""
    seen, right = counts["seen"], counts["right"]
    removed = np.arange(len(seen)) % SLOTS + 1
    results: dict[str, float] = {}
    for name, numbers, hits in (("slots", SHOWN, right), ("references", COMPARED, counts["references"])):
        results |= {f"{name}_{k}": mean(hits[removed == k].sum(), k * seen[removed == k].sum()) for k in numbers}
    decided, decided_right = (counts[name][removed == 6].sum() for name in ("decided", "decided_right"))
    results["weapon_6"] = mean(decided_right, decided)
    results["gear_6"] = mean(right[removed == 6].sum() - decided_right, 6 * seen[removed == 6].sum() - decided)
    results["points"] = 1 - mean(counts["points"].sum(), 2 * FULL_POINTS * seen.sum())
    return results


def mean(total: Any, number: Any) -> float:
    """Return `total` / `number`; NaN if `number` is 0."""
    return float(total) / float(number) if number else math.nan


def reference_pool(builds: Builds, weapons: int) -> Tensor:
    """Return the tokens of the first different builds of each weapon in `builds`, at most `REFERENCES`: multi-hot, float32 [W, R, V].

    R is the largest of these numbers. Rows beyond a weapon's builds have no token. weapons: W."""
    first = np.sort(np.unique(content_hashes(builds, 0), return_index=True)[1])
    own = [builds.items[first[builds.weapon[first] == weapon][:REFERENCES]] for weapon in range(weapons)]
    found = np.zeros((weapons, max(1, *map(len, own)), len(ITEMS)), np.int8)
    for weapon, rows in enumerate(own):
        found[weapon, : len(rows)] = rows
    return multi_hot(torch.from_numpy(found))


def best_references(added: Tensor, observed: Tensor, weapon: Tensor, pool: Tensor) -> Tensor:
    """Return the largest number of right slots, int64 [M, B], over the reference builds that contain the given gear; 0 if none contains it.

    Arguments: as in `score`. Two builds have as many slots in common as tokens."""
    given, found = multi_hot(observed), []
    answers = multi_hot(added + observed)  # [M, B, V]
    for start in range(0, len(observed), POOLED):
        rows = slice(start, start + POOLED)
        tokens = torch.cat([given[None, rows], answers[:, rows]]).transpose(0, 1)  # [B, 1 + M, V]
        common = torch.bmm(pool[weapon[rows]], tokens.transpose(1, 2))  # [B, R, 1 + M]
        shown = given[rows].sum(1).view(-1, 1, 1)
        found.append(torch.where(common[:, :, :1] == shown, common[:, :, 1:] - shown, 0.0).amax(1).T)
    return torch.cat(found, 1).long() if found else added.new_zeros(added.shape[:2])


def multi_hot(builds: Tensor) -> Tensor:
    """Return the tokens of builds int [..., 40] as numbers 0 and 1, float32 [..., V]."""
    item, level = torch.from_numpy(_CODE.measured).to(builds.device), torch.from_numpy(_CODE.levels).to(builds.device)
    return (builds.index_select(builds.dim() - 1, item) >= level).float()


def to_points(builds: Tensor) -> Tensor:
    """Return the ability points, int64 [..., 26], of builds int64 [..., 40]."""
    ability = torch.from_numpy(ITEM_ABILITY).to(builds.device)
    points = builds * torch.from_numpy(ITEM_POINTS).to(builds.device)
    return builds.new_zeros(*builds.shape[:-1], len(ABILITIES)).index_add_(builds.dim() - 1, ability, points)
