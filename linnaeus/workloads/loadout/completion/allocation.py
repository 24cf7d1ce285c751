"""Find the legal gear that reaches given minimums of ability points with the fewest sub slots, by an exact search.

A standard ability that needs p points takes m main slots (0 to 3) and ceil((p - 10 m) / 3) sub slots. A build has three main slots, so n
abilities have at most C(n + 3, 3) combinations of m; all are tried. The best combination has the fewest sub slots, then the fewest points
beyond the minimums, then the largest sum of priority x m. Only abilities with a minimum are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

import numpy as np

from linnaeus.workloads.loadout.game.abilities import (
    ABILITIES,
    FULL_POINTS,
    MAIN_POINTS,
    PIECE_OF,
    SUB_POINTS,
    ability_points,
    free_slots,
    main_item,
    sub_item,
)
from linnaeus.workloads.loadout.game.gear import empty_build, problem


def allocate(
    minimums: Mapping[str, int], locked: np.ndarray | None = None, priority: Mapping[str, float] | None = None
) -> np.ndarray | None:
    """Return the gear, int8 [40], that contains `locked` and has at least the points in `minimums`; None if no legal build has them.

    minimums: ability -> points. locked: legal gear that is kept, int8 [40]; None: no gear. priority: ability -> a number that ranks
    combinations which are otherwise equal (see the module); 0 for an ability that is missing."""
    base = empty_build() if locked is None else locked.copy()
    owned = dict(zip(ABILITIES, ability_points(base).tolist(), strict=True))
    for ability, points in minimums.items():
        if ability in PIECE_OF and points > owned[ability]:
            if points > MAIN_POINTS:
                return None
            base[main_item(ability)] = 1
    needs = {ability: points - owned[ability] for ability, points in minimums.items() if ability not in PIECE_OF}
    needs = {ability: points for ability, points in needs.items() if points > 0}
    if problem(base) is not None or sum(needs.values()) > FULL_POINTS:
        return None
    free_mains, free_subs = (int(number) for number in free_slots(base))
    best: tuple[tuple[float, ...], dict[str, tuple[int, int]]] | None = None
    for slots in _choices(list(needs.items()), free_mains):
        subs = sum(sub for _, sub in slots.values())
        if subs > free_subs:
            continue
        points = sum(MAIN_POINTS * main + SUB_POINTS * sub for main, sub in slots.values())
        worth = sum((priority or {}).get(ability, 0.0) * main for ability, (main, _) in slots.items())
        rank = (subs, points - sum(needs.values()), -worth)
        if best is None or rank < best[0]:
            best = rank, slots
    if best is None:
        return None
    for ability, (main, sub) in best[1].items():
        base[main_item(ability)] += main
        base[sub_item(ability)] += sub
    return base


def _choices(needs: list[tuple[str, int]], mains: int) -> Iterator[dict[str, tuple[int, int]]]:
    """Yield {ability: (main slots, sub slots)} for every way to reach all points in `needs` with at most `mains` main slots.

    needs: (standard ability, points) of each ability."""
    if not needs:
        yield {}
        return
    (ability, points), rest = needs[0], needs[1:]
    for main in range(min(mains, ceil(points / MAIN_POINTS)) + 1):
        sub = ceil(max(0, points - MAIN_POINTS * main) / SUB_POINTS)
        for others in _choices(rest, mains - main):
            yield {ability: (main, sub), **others}
