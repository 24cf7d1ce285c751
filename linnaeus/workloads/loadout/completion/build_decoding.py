"""Complete builds with a model: in one step, by closure, or by beam search. Given gear is kept: slots are only added.

`direct` calls the model once and fills all slots so that the expected number of right slots is highest. Further answers are the next best
fillings, in their exact order (`ranked_fillings.py`). `closure` calls the model, adds the slots with a probability of at least 0.5, and
repeats this until there is no such slot; the rest is filled as by `direct`. `beam` adds one slot at a time and keeps the most probable
builds (`beam_search.py`).

Each model call is one batch of all requests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.loadout.completion.beam_search import Tails, beam_search
from linnaeus.workloads.loadout.completion.ranked_fillings import NONE, ranked_fillings
from linnaeus.workloads.loadout.completion.slot_filling import fill

METHODS = ("direct", "closure", "beam")
SURE = 0.5  # closure


class Answer(NamedTuple):
    """One completed build, with the model's probabilities.

    build: int8 [40], counts of `ITEMS`. probability: float [40, 9], the probability of at least j = 1 to 9 more slots of each item than in
    the given gear. expected_right: expected number of added slots that are right. log_probability: log-probability of the added slots with
    the method `beam`; None with other methods."""

    build: np.ndarray
    probability: np.ndarray
    expected_right: float
    log_probability: float | None


def complete(
    tails: Tails, given: np.ndarray, weapon: np.ndarray, method: str = "direct", top: int = 1, width: int = 5
) -> list[list[Answer]]:
    """Complete N partial builds. Return for each a list of answers, best first: at most `top`, and always one with `method="closure"`.

    tails: function of the model, P(at least j more slots of an item), see `Tails`. given: int8 [N, 40], legal gear. weapon: int64 [N].
    method: see the module. width: number of builds that `beam` keeps in each step; at least `top` are kept."""
    assert method in METHODS
    if not len(given):
        return []
    first = tails(given, weapon)
    found: list[list[tuple[np.ndarray, float | None]]]
    if method == "beam":
        found = [[*rows] for rows in beam_search(tails, given, weapon, first, max(width, top))]
    else:
        builds = _closure(tails, given, weapon, first) if method == "closure" else _filled(first, given)
        found = [[(build, None)] for build in builds]
        if method == "direct" and top > 1:
            _add_others(found, first, given, top)
    probability = first.double().cpu().numpy()
    return [
        [Answer(build, probability[i], _expected_right(probability[i], build - given[i]), score) for build, score in rows[:top]]
        for i, rows in enumerate(found)
    ]


def _expected_right(probability: np.ndarray, added: np.ndarray) -> float:
    copies = np.arange(1, probability.shape[1] + 1) <= added[:, None]
    return float(probability[copies].sum())


def _filled(tails: Tensor, given: np.ndarray) -> np.ndarray:
    observed = torch.from_numpy(given.astype(np.int64)).to(tails.device)
    found: np.ndarray = (observed + fill(tails, observed).items).cpu().numpy().astype(np.int8)
    return found


def _add_others(found: list[list[tuple[np.ndarray, float | None]]], tails: Tensor, given: np.ndarray, top: int) -> None:
    """Append further answers, best first, to each list of `found`. Each list contains one answer so far: the best filling of a request.

    The best filling is not appended again. If another filling has an equal expected number of right slots, that filling may be the first of
    the exact ranking (`ranked_fillings`)."""
    observed = torch.from_numpy(given.astype(np.int64)).to(tails.device)
    items, values = (part.cpu().numpy() for part in ranked_fillings(tails, observed, top))
    for rows, build, added, value in zip(found, given, items, values, strict=True):
        for number in np.flatnonzero(value > NONE / 2):
            other = (build + added[number]).astype(np.int8)
            if (other != rows[0][0]).any():
                rows.append((other, None))


def _closure(tails: Tails, given: np.ndarray, weapon: np.ndarray, first: Tensor) -> np.ndarray:
    builds, values = given.copy(), first
    while True:
        observed = torch.from_numpy(builds.astype(np.int64)).to(values.device)
        filled = fill(values, observed)
        sure = (filled.probability >= SURE) & (filled.item >= 0)
        added = torch.zeros_like(observed).scatter_add_(1, filled.item.clamp(min=0), sure.long())
        if not sure.any():
            return _filled(values, builds)
        builds = (observed + added).cpu().numpy().astype(np.int8)
        values = tails(builds, weapon)
