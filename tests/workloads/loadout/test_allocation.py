"""Test the allocation of ability points to slots: golden cases, and brute force."""

from itertools import product

import numpy as np
import pytest

from linnaeus.workloads.loadout.completion.allocation import allocate
from linnaeus.workloads.loadout.game.abilities import ABILITIES, ability_points, free_slots, main_item, sub_item
from linnaeus.workloads.loadout.game.gear import empty_build, parse_gear, problem, to_text

ISM, SSU, SCU, RSU, QR, QSJ = (
    *("intensify_action", "swim_speed_up", "special_charge_up", "run_speed_up", "quick_respawn", "quick_super_jump"),
)
GOLDEN = [  # minimums, points of the result, points beyond the minimums
    ({}, 0, 0),
    ({"comeback": 10}, 10, 0),
    ({"comeback": 10, "haunt": 10, "stealth_jump": 10}, 30, 0),
    ({ISM: 3}, 10, 7),
    ({ISM: 9}, 10, 1),
    ({ISM: 10}, 10, 0),
    ({ISM: 12}, 20, 8),
    ({SCU: 20}, 20, 0),
    ({ISM: 9, SSU: 6}, 20, 5),
    ({ISM: 10, SSU: 6, RSU: 9}, 30, 5),
    ({"comeback": 10, ISM: 3, SSU: 21, QR: 3, QSJ: 3}, 42, 2),
]


@pytest.mark.parametrize("minimums, points, beyond", GOLDEN, ids=str)
def test_golden_cases(minimums, points, beyond):
    build = allocate(minimums)
    assert problem(build) is None and ability_points(build).sum() == points and points - sum(minimums.values()) == beyond


def test_the_expected_slots():
    build = allocate(GOLDEN[-1][0])
    assert to_text(build) == "comeback, intensify_action: sub, quick_respawn: sub, quick_super_jump: sub, swim_speed_up: main main sub"
    build = allocate({"comeback": 10, "ninja_squid": 10, ISM: 10, RSU: 10}, priority={ISM: 2.0, RSU: 1.0})
    assert build[main_item(ISM)] == 1 and build[sub_item(RSU)] == 4 and ability_points(build).sum() == 42
    few = allocate({ISM: 3, SSU: 30}, priority={ISM: 100.0})
    assert few[main_item(SSU)] == 3 and few[sub_item(ISM)] == 1, "priority does not outweigh fewer subs"


@pytest.mark.parametrize(
    "minimums",
    [
        {"comeback": 10, "last_ditch_effort": 10},
        {ISM: 60},
        {"comeback": 11},
        {name: 6 for name in ABILITIES[12:20]},
        {"haunt": 10, SSU: 57},
    ],
    ids=str,
)
def test_impossible_minimums(minimums):
    assert allocate(minimums) is None


def brute_force(minimums: dict[str, int], locked: np.ndarray) -> tuple[int, int] | None:
    """Return (subs, points beyond) of the best gear by trying every number of mains and subs of each ability."""
    names, best = [name for name in minimums if name in ABILITIES[12:]], None
    base = locked.copy()
    for name in minimums.keys() - set(names):
        base[main_item(name)] = 1
    if problem(base) is not None:
        return None
    mains, subs = (int(number) for number in free_slots(base))
    for slots in product(product(range(mains + 1), range(subs + 1)), repeat=len(names)):
        if sum(main for main, _ in slots) > mains or sum(sub for _, sub in slots) > subs:
            continue
        build = base.copy()
        for name, (main, sub) in zip(names, slots, strict=True):
            build[main_item(name)] += main
            build[sub_item(name)] += sub
        points = dict(zip(ABILITIES, ability_points(build).tolist()))
        if all(points[name] >= least for name, least in minimums.items()):
            rank = (sum(sub for _, sub in slots), int(ability_points(build).sum()))
            best = rank if best is None or rank < best else best
    return best


def test_random_requests_agree_with_brute_force():
    """150 requests of up to two standard abilities, one main-only ability and locked gear. This file run as a program checks 10,000."""
    assert disagreements(150) == []


def disagreements(number: int) -> list[dict[str, int]]:
    rng, found = np.random.default_rng(0), []
    for _ in range(number):
        standard = rng.choice(ABILITIES[12:], 2, replace=False)[: rng.integers(1, 3)]
        minimums = {str(name): int(rng.integers(1, 40)) for name in standard}
        if rng.random() < 0.3:
            minimums[str(rng.choice(ABILITIES[:12]))] = 10
        locked = empty_build()
        for _ in range(rng.integers(0, 5)):
            locked[rng.integers(0, 40)] += 1
        if problem(locked) is not None:
            locked = parse_gear("haunt, swim_speed_up: sub sub")
        build, wanted = allocate(minimums, locked), brute_force(minimums, locked)
        rank = None if build is None else (int((build - locked)[26:].sum()), int(ability_points(build).sum()))
        if rank != wanted or (build is not None and (problem(build) is not None or (build < locked).any())):
            found.append(minimums)
    return found


if __name__ == "__main__":
    print(disagreements(10_000))
