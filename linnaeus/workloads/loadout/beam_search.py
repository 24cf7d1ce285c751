"""Find probable builds by a beam search, which adds one slot at a time. Given gear is kept.

The expected number of further slots of an item is the sum of its tails, the probabilities of at least 1, 2, ... more. Divided by the sum
over all items that fit the same kind of slot (main or sub), it is the probability that the next free slot of this kind has the item. The
log-probability of a build is the sum of the logarithms of these over the added slots, main slots first, plus the logarithm of the number of
orders in which the slots of each kind could have been added, because their order has no meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.loadout.abilities import ITEM_PIECE, MAIN_ITEMS, PIECES, free_slots

SMALLEST = 1e-12  # probability of a slot, so that its logarithm is finite
State = tuple[np.ndarray, float]  # build int8 [40] and its log-probability
Tails = Callable[[np.ndarray, np.ndarray], Tensor]  # builds int8 [N, 40], weapon int64 [N] -> [N, 40, 9]
KINDS = (slice(0, MAIN_ITEMS), slice(MAIN_ITEMS, None))  # items of main slots and of sub slots


def beam_search(tails: Tails, given: np.ndarray, weapon: np.ndarray, first: Tensor, width: int) -> list[list[State]]:
    """Return for each of N requests the best full builds that the search finds, at most `width`, best first.

    tails: function of the model (see `Tails`). given: int8 [N, 40], legal gear. weapon: int64 [N]. first: the result of `tails` for
    `given`."""
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
    """Return (log-probabilities, items), [S, width] each, of the `width` most probable slots to add to each of `builds` [S, 40].

    tails: [S, 40, 9]. items: slice of the items of one kind of slot. An item that does not fit has the log-probability -inf."""
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
    """Return the `width` best builds with one slot more than those of `states`, best first. A build that several states lead to occurs
    once, with its best log-probability.

    given: int8 [40], the gear of the request. gain, item: rows of `_next_slots` for `states`. step: number of slots of this kind that have
    been added, with the new one."""
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
