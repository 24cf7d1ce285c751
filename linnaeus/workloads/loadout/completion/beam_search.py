"""Find probable builds by a beam search, which adds one slot at a time. Given gear is kept.

The model returns the probabilities of at least 1, 2, ... further slots of each item (tails). The sum of an item's tails is the expected
number of further slots of the item. Divide this number by its sum over all items that fit this kind of slot (main or sub): the quotient is
the probability that the next free slot of this kind has the item.

The log-probability of a build is the sum of the logarithms of these probabilities over the added slots, main slots first. The order of the
slots has no meaning, so the logarithm of the number of orders within each kind is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.loadout.game.abilities import ITEM_PIECE, MAIN_ITEMS, PIECES, free_slots

SMALLEST = 1e-12  # probability of a slot, so that its logarithm is finite
State = tuple[np.ndarray, float]  # build int8 [40] and its log-probability
Tails = Callable[[np.ndarray, np.ndarray], Tensor]  # builds int8 [N, 40], weapon int64 [N] -> [N, 40, 9]
KINDS = (slice(0, MAIN_ITEMS), slice(MAIN_ITEMS, None))  # items of main slots and of sub slots


def beam_search(tails: Tails, given: np.ndarray, weapon: np.ndarray, first: Tensor, width: int) -> list[list[State]]:
    """Return for each of N requests (given gear and a weapon) the most probable full builds that the search finds: at most `width`, best
    first.

    tails: function of the model, P(at least j more slots of an item), see `Tails`. given: int8 [N, 40], legal gear. weapon: int64 [N].
    first: the result of `tails` for `given`, [N, 40, 9]."""
    states: list[list[State]] = [[(build, 0.0)] for build in given]
    values = first  # of the builds of all states of the requests that are searched, in order
    for kind, items in enumerate(KINDS):
        free = free_slots(given)[kind]
        for step in range(int(free.max())):
            active = np.flatnonzero(free > step)
            builds = np.stack([build for i in active for build, _ in states[i]])
            if len(builds) != len(given) or (builds != given).any():
                values = tails(builds, weapon[[i for i in active for _ in states[i]]])
            gain, item = _next_slots(values, builds, items, width)
            row = 0
            for i in active:
                rows = slice(row, row + len(states[i]))
                row = rows.stop
                states[i] = _extended(states[i], given[i], gain[rows], item[rows], step + 1, width)
    return states


def _next_slots(tails: Tensor, builds: np.ndarray, items: slice, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `width` most probable slots to add to each of `builds` [S, 40]: (log-probabilities [S, width], items [S, width]).

    tails: P(at least j more of the item), j = 1 to 9, [S, 40, 9]. items: slice of `ITEMS` with all items of main or of sub slots. An item
    that does not fit has the log-probability -inf."""
    expected = tails.double().sum(2).clamp(min=SMALLEST)  # [S, 40]
    piece = torch.from_numpy(ITEM_PIECE)
    for place in range(len(PIECES)):
        members = torch.nonzero(piece == place).flatten()
        taken = torch.from_numpy(builds[:, members].sum(1) > 0).to(expected.device)
        expected[:, members] *= ~taken.unsqueeze(1)
    share = expected[:, items] / expected[:, items].sum(1, keepdim=True)
    value, item = share.log().sort(dim=1, descending=True, stable=True)
    return value[:, :width].cpu().numpy(), item[:, :width].cpu().numpy() + items.start


def _extended(states: Sequence[State], given: np.ndarray, gain: np.ndarray, item: np.ndarray, step: int, width: int) -> list[State]:
    """Add one slot to the builds in `states`; return the `width` most probable results, best first.

    If several states lead to the same build, the build occurs once, with its highest log-probability. given: int8 [40], the gear of the
    request. gain, item: [S, width], the results of `_next_slots` for the S states. step: number of slots of this kind (main or sub) that
    have been added, including the new slot."""
    found: dict[bytes, State] = {}
    for (build, score), gains, items in zip(states, gain, item, strict=True):
        for value, added in zip(gains.tolist(), items.tolist(), strict=True):
            if value == -math.inf:
                break
            after = build.copy()
            after[added] += 1
            total = score + value + math.log(step / (after[added] - given[added]))
            known = found.get(after.tobytes())
            if known is None or known[1] < total:
                found[after.tobytes()] = after, total
    return sorted(found.values(), key=lambda state: (-state[1], state[0].tobytes()))[:width]
