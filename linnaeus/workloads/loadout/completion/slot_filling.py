"""Fill the free slots of builds in one step, so that the expected number of right slots is highest.

A completion has min(predicted, true) right slots of each item. The expected number of right slots is the sum, over the j-th copy of each
item that the completion adds, of P(the build has at least j more of the item). These probabilities fall with j, and the rules of gear
(numbers of slots, one main-only ability per piece) are a matroid. So it is exact to take the most probable copies one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linnaeus.workloads.loadout.game.abilities import ITEM_PIECE, MAIN_ITEMS, MAIN_SLOTS, PIECES, SUB_SLOTS

_PIECE = torch.from_numpy(ITEM_PIECE)


class Filled(NamedTuple):
    """Completions of B builds. items: int64 [B, 40], how many of each item were added.

    item: int64 [B, 12], the item added to each slot. probability: [B, 12], its probability. Columns 0 to 2 are main slots and 3 to 11 sub
    slots, each in decreasing probability. Columns that are not needed have probability 0 and item -1."""

    items: Tensor
    probability: Tensor
    item: Tensor


def legal_tails(tails: Tensor, observed: Tensor) -> Tensor:
    """Return a copy of `tails` [B, 40, 9] in which main-only abilities that must not be added have -1.

    If `observed` [B, 40] has a main-only ability of a piece, all of that piece are -1; otherwise all but the most probable one. Second and
    further copies are always -1."""
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
    """Fill all free slots of `observed`, int [B, 40], legal gear. The result has the highest expected number of right slots.

    tails: [B, 40, 9], the probability that a build has at least j = 1 to 9 more of each item."""
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
    """Fill the free slots of one kind (main or sub) with the most probable copies of the I items of this kind.

    tails: [B, I, J], P(at least j more of the item). observed: int [B, I]. slots: number of slots of this kind in a build."""
    size, items, copies = tails.shape
    free = slots - observed.sum(1, dtype=torch.int64)
    value, place = tails.flatten(1).sort(dim=1, descending=True, stable=True)  # stable: equal values in the order of the items
    value, item = value[:, :slots], place[:, :slots] // copies
    chosen = torch.arange(slots, device=tails.device) < free.unsqueeze(1)
    added = torch.zeros(size, items, dtype=torch.int64, device=tails.device).scatter_add_(1, item, chosen.long())
    return Filled(added, torch.where(chosen, value, 0.0), torch.where(chosen, item, -1))
