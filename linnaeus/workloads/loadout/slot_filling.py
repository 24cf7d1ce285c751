"""Fill the free slots of builds in one step, so that the expected number of right slots is highest.

A completion is right in min(predicted, true) slots of each item. Its expectation is the sum, over the j-th copies that it adds, of the
probability that the build has at least j more. These probabilities fall with j, and the rules of gear (numbers of slots, one main-only
ability per piece) are a matroid, so taking the most probable copies one after the other is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linnaeus.workloads.loadout.abilities import ITEM_PIECE, MAIN_ITEMS, MAIN_SLOTS, PIECES, SUB_SLOTS

_PIECE = torch.from_numpy(ITEM_PIECE)


class Filled(NamedTuple):
    """Completions of B builds. items: int64 [B, 40], how many of each item were added.

    probability: [B, 12], of each added slot; item: int64 [B, 12], its item. Places 0 to 2 are for main slots and 3 to 11 for sub slots, in
    decreasing probability; a place that is not needed has probability 0 and item -1."""

    items: Tensor
    probability: Tensor
    item: Tensor


def legal_tails(tails: Tensor, observed: Tensor) -> Tensor:
    """Return `tails` [B, 40, 9] with -1 for each main-only ability that cannot be added: all of a piece for which `observed` [B, 40] has
    one, and otherwise all but the most probable one of the piece. Second and further copies of these abilities are -1, too."""
    found = tails.clone()
    piece = _PIECE.to(tails.device)
    for number in range(len(PIECES)):
        members = torch.nonzero(piece == number).flatten()
        taken = observed[:, members].sum(1) > 0
        first = found[:, members, 0]
        keep = torch.zeros_like(first, dtype=torch.bool).scatter_(1, first.argmax(1, keepdim=True), True) & ~taken.unsqueeze(1)
        found[:, members, 0] = torch.where(keep, first, -1.0)
        found[:, members, 1:] = -1.0
    return found


def fill(tails: Tensor, observed: Tensor) -> Filled:
    """Return the completion of `observed`, int [B, 40], with the highest expected number of right slots. All free slots are filled.

    tails: [B, 40, 9], the probability of at least j = 1 to 9 more of each item. The observed gear must be legal."""
    legal = legal_tails(tails, observed)
    parts = (
        _fill_kind(legal[:, :MAIN_ITEMS, :MAIN_SLOTS], observed[:, :MAIN_ITEMS], MAIN_SLOTS),
        _fill_kind(legal[:, MAIN_ITEMS:], observed[:, MAIN_ITEMS:], SUB_SLOTS),
    )
    mains, subs = parts
    subs_item = torch.where(subs.item >= 0, subs.item + MAIN_ITEMS, -1)
    return Filled(
        torch.cat([mains.items, subs.items], 1), torch.cat([mains.probability, subs.probability], 1), torch.cat([mains.item, subs_item], 1)
    )


def _fill_kind(tails: Tensor, observed: Tensor, slots: int) -> Filled:
    """Fill the free slots of one kind, main or sub, with the most probable copies of its I items. tails: [B, I, J]. observed: int [B, I].
    slots: number of slots of this kind in a build."""
    size, items, copies = tails.shape
    free = slots - observed.sum(1, dtype=torch.int64)
    value, place = tails.flatten(1).sort(dim=1, descending=True, stable=True)  # stable: equal values in the order of the items
    value, item = value[:, :slots], place[:, :slots] // copies
    chosen = torch.arange(slots, device=tails.device) < free.unsqueeze(1)
    added = torch.zeros(size, items, dtype=torch.int64, device=tails.device).scatter_add_(1, item, chosen.long())
    return Filled(added, torch.where(chosen, value, 0.0), torch.where(chosen, item, -1))
