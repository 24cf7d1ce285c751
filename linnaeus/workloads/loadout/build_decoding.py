"""Complete builds with a model: in one step, by closure, or by beam search. Given gear is locked: slots are only added.

`direct` asks the model once and fills all slots so that the expected number of right slots is highest (`slot_filling.py`). `closure` adds
the slots with a probability of at least 0.5, asks again, until none is left, and fills the rest. `beam` adds one slot at a time and keeps
the builds with the highest sum of log-probabilities; it is the method with several answers.

Requests are answered together: a model call has all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.loadout.abilities import MAIN_ITEMS, free_slots
from linnaeus.workloads.loadout.slot_filling import fill, legal_tails

METHODS = ("direct", "closure", "beam")
SURE = 0.5  # closure
SMALLEST = 1e-12  # probability of a slot, so that its logarithm is finite
Tails = Callable[[np.ndarray, np.ndarray], Tensor]  # builds int8 [N, 40], weapon int64 [N] -> [N, 40, 9]


class Answer(NamedTuple):
    """A full build, int8 [40]. probability: float [40, 9], that the build has at least j more of each item than was given. score: sum of
    the log-probabilities of the added slots."""

    build: np.ndarray
    probability: np.ndarray
    score: float


def complete(
    tails: Tails, given: np.ndarray, weapon: np.ndarray, method: str = "direct", top: int = 1, width: int = 5
) -> list[list[Answer]]:
    """Return the answers to N requests, best first: `top` or fewer of `beam`, one of the other methods.

    given: int8 [N, 40], legal gear; weapon: int64 [N]; width: builds that `beam` keeps of each request, at least `top`."""
    assert method in METHODS
    if not len(given):
        return []
    first = tails(given, weapon)
    if method == "beam":
        found = _beam(tails, given, weapon, first, max(width, top))
    else:
        builds = _closure(tails, given, weapon, first) if method == "closure" else _filled(first, given)
        found = [[(build, math.nan)] for build in builds]
    probability = first.double().cpu().numpy()
    return [
        [
            Answer(build, probability[i], _score(probability[i], build - given[i]) if math.isnan(score) else score)
            for build, score in rows[:top]
        ]
        for i, rows in enumerate(found)
    ]


def _score(probability: np.ndarray, added: np.ndarray) -> float:
    copies = np.arange(1, probability.shape[1] + 1) <= added[:, None]
    return float(np.log(probability[copies].clip(min=SMALLEST)).sum())


def _filled(tails: Tensor, given: np.ndarray) -> np.ndarray:
    observed = torch.from_numpy(given.astype(np.int64)).to(tails.device)
    found: np.ndarray = (observed + fill(tails, observed).items).cpu().numpy().astype(np.int8)
    return found


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


# -- beam search -----------------------------------------------------------------------------------------------------------------


def _beam(tails: Tails, given: np.ndarray, weapon: np.ndarray, first: Tensor, width: int) -> list[list[tuple[np.ndarray, float]]]:
    """Return (build, score) of the best builds of each request, best first."""
    states = [[(build, 0.0)] for build in given]
    free = np.sum(free_slots(given), 0)
    while True:
        active = [i for i in range(len(given)) if free[i] > 0]
        if not active:
            return states
        owner = [i for i in active for _ in states[i]]
        builds = np.stack([build for i in active for build, _ in states[i]])
        values = (
            first[torch.tensor(active)] if len(builds) == len(active) and (builds == given[active]).all() else tails(builds, weapon[owner])
        )
        gain, item = _next_slots(values, builds, width)
        states_before, row = states, 0
        states = list(states)
        for i in active:
            number = len(states_before[i])
            states[i] = _extended(states_before[i], gain[row : row + number], item[row : row + number], width)
            row += number
        free[active] -= 1


def _next_slots(tails: Tensor, builds: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-probabilities and items, [S, width] each, of the most probable single slots to add to `builds` [S, 40]; -inf for an
    item that does not fit."""
    observed = torch.from_numpy(builds.astype(np.int64)).to(tails.device)
    first = legal_tails(tails, observed)[:, :, 0].double()
    mains, subs = (torch.from_numpy(number > 0).to(tails.device).unsqueeze(1) for number in free_slots(builds))
    room = torch.cat([mains.expand(-1, MAIN_ITEMS), subs.expand(-1, first.shape[1] - MAIN_ITEMS)], 1) & (first >= 0)
    value, item = torch.where(room, first.clamp(min=SMALLEST).log(), -torch.inf).sort(dim=1, descending=True, stable=True)
    return value[:, :width].cpu().numpy(), item[:, :width].cpu().numpy()


def _extended(states: list[tuple[np.ndarray, float]], gain: np.ndarray, item: np.ndarray, width: int) -> list[tuple[np.ndarray, float]]:
    """Return the `width` best builds that have one slot more, each once, with its best score."""
    found: dict[bytes, tuple[np.ndarray, float]] = {}
    for (build, score), gains, items in zip(states, gain, item, strict=True):
        for value, added in zip(gains.tolist(), items.tolist(), strict=True):
            if value == -math.inf:
                break
            after = build.copy()
            after[added] += 1
            known = found.get(after.tobytes())
            if known is None or known[1] < score + value:
                found[after.tobytes()] = after, score + value
    return sorted(found.values(), key=lambda state: (-state[1], state[0].tobytes()))[:width]
