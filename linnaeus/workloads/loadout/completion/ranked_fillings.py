"""Fill the free slots of builds in the N ways with the highest expected number of right slots.

This number is a sum over items (`slot_filling.py`), so an exact ranking is possible: the items are taken one after the other, and the N
best fillings are kept for every number of slots used. Main and sub slots are ranked separately. The result is the N best pairs of a main
filling and a sub filling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from linnaeus.workloads.loadout.game.abilities import ITEM_PIECE, ITEMS, MAIN_ITEMS, MAIN_SLOTS, PIECES, SUB_SLOTS

NONE = -1e9  # value of a filling that does not exist: finite, because -inf - -inf is not a number


class Choice(NamedTuple):
    """C ways to use slots for one item, or for the main-only abilities of one piece.

    items: int64 [C, 40], the slots that each way adds. value: float64 [B, C], the expected number of right slots of each way."""

    items: Tensor
    value: Tensor


def ranked_fillings(tails: Tensor, observed: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return the N = `number` best ways to fill all free slots of B builds, best first.

    The result is (added items int64 [B, N, 40], expected number of right slots float64 [B, N]). If a build has fewer ways, the surplus
    entries have a value of at most `NONE` / 2. tails: [B, 40, 9], P(at least j more of the item). observed: int [B, 40], legal gear."""
    gain = torch.nn.functional.pad(tails.double().cumsum(2), (1, 0))  # [B, 40, 10], of 0 to 9 more
    mains, main_value = _ranked(_main_choices(gain, observed), MAIN_SLOTS - observed[:, :MAIN_ITEMS].sum(1), MAIN_SLOTS, number)
    subs, sub_value = _ranked(_sub_choices(gain), SUB_SLOTS - observed[:, MAIN_ITEMS:].sum(1), SUB_SLOTS, number)
    value, place = _highest((main_value.unsqueeze(2) + sub_value.unsqueeze(1)).flatten(1), number)
    rows = torch.arange(len(tails), device=tails.device).unsqueeze(1)
    return mains[rows, place // number] + subs[rows, place % number], value


def _main_choices(gain: Tensor, observed: Tensor) -> Iterator[Choice]:
    piece = torch.from_numpy(ITEM_PIECE)
    for place in range(len(PIECES)):
        members = torch.nonzero(piece == place).flatten()
        items = torch.cat([torch.zeros(1, len(ITEMS), dtype=torch.int64), torch.eye(len(ITEMS), dtype=torch.int64)[members]])
        taken = observed[:, members].sum(1, keepdim=True) > 0
        value = torch.where(taken, NONE, gain[:, members, 1])
        yield Choice(items, torch.cat([torch.zeros_like(value[:, :1]), value], 1))
    for item in torch.nonzero(piece < 0).flatten().tolist():
        yield _copies(gain, item, MAIN_SLOTS)


def _sub_choices(gain: Tensor) -> Iterator[Choice]:
    for item in range(MAIN_ITEMS, len(ITEMS)):
        yield _copies(gain, item, SUB_SLOTS)


def _copies(gain: Tensor, item: int, most: int) -> Choice:
    items = torch.zeros(most + 1, len(ITEMS), dtype=torch.int64)
    items[:, item] = torch.arange(most + 1)
    return Choice(items, gain[:, item, : most + 1])


def _ranked(choices: Iterable[Choice], free: Tensor, slots: int, number: int) -> tuple[Tensor, Tensor]:
    """Return (added items [B, N, 40], values [B, N]) of the N = `number` best ways to fill the free slots of one kind (main or sub).

    A filling takes one way of each of `choices`. free: [B], number of free slots. slots: number of slots of this kind, the largest possible
    `free`."""
    size, device = len(free), free.device
    value = torch.full((size, slots + 1, number), NONE, dtype=torch.float64, device=device)  # by slots used
    value[:, 0, 0] = 0.0
    items = torch.zeros(size, slots + 1, number, len(ITEMS), dtype=torch.int64, device=device)
    rows, total = torch.arange(size, device=device), torch.arange(slots + 1, device=device)
    for choice in choices:
        added = choice.items.to(device)
        before = total.unsqueeze(1) - added.sum(1)  # slots used before the choice, [slots + 1, C]
        found = value[:, before.clamp(min=0)] + choice.value.view(size, 1, -1, 1)
        found = torch.where(before.unsqueeze(2) >= 0, found, NONE).clamp(min=NONE)  # [B, slots + 1, C, N]
        value, place = _highest(found.flatten(2), number)
        chosen, entry = place // number, place % number
        source = before.clamp(min=0)[total.view(1, -1, 1), chosen]
        items = items[rows.view(-1, 1, 1), source, entry] + added[chosen]
    return items[rows, free.long()], value[rows, free.long()]


def _highest(values: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return the `number` highest values along the last dimension, in decreasing order, and their indices. Equal values keep their
    order."""
    found, place = values.sort(dim=-1, descending=True, stable=True)
    return found[..., :number], place[..., :number]
