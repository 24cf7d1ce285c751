"""The best ways to fill free slots, against every way."""

from itertools import combinations_with_replacement as multisets

import numpy as np
import torch

from linnaeus.workloads.loadout.builds.archetypes import make_world
from linnaeus.workloads.loadout.completion.ranked_fillings import NONE, ranked_fillings
from linnaeus.workloads.loadout.completion.slot_filling import fill
from linnaeus.workloads.loadout.game.abilities import ITEMS, MAIN_ITEMS, SLOTS, free_slots
from linnaeus.workloads.loadout.game.gear import count_items, is_full, problem, slot_items

rng = np.random.default_rng(0)


def parts(removed):
    """Return parts of random builds, int8 [N, 40], with `removed` [N] slots free."""
    _, builds = make_world(0, 130).draw(0, 0, len(removed))
    return count_items(slot_items(builds), rng.random((len(builds), SLOTS)).argsort(1) >= np.array(removed)[:, None])


def random_tails(number):
    return torch.from_numpy(np.sort(rng.random((number, len(ITEMS), 9)), axis=2)[..., ::-1].copy())


def expected_right(tails, added):
    return float(tails.numpy()[np.arange(1, 10) <= added[:, None]].sum())


def every_value(given, tails):
    """Return the expected number of right slots of each legal way to fill the free slots."""
    found, (mains, subs) = [], (int(number) for number in free_slots(given))
    for items in ((*m, *s) for m in multisets(range(MAIN_ITEMS), mains) for s in multisets(range(MAIN_ITEMS, len(ITEMS)), subs)):
        added = np.bincount(np.array(items, np.int64), minlength=len(ITEMS))
        if problem(given + added) is None:
            found.append(expected_right(tails, added))
    return sorted(found, reverse=True)


def test_the_ranking_is_that_of_all_fillings():
    given = parts([0, 1, 1, 1, 2, 2, 2, 3, 3])
    tails = random_tails(len(given))
    items, values = ranked_fillings(tails, torch.from_numpy(given), 6)
    for row, build in enumerate(given):
        real = values[row] > NONE / 2
        assert np.allclose(values[row][real], every_value(build, tails[row])[:6])
        for added, value in zip(items[row][real].numpy(), values[row][real].tolist(), strict=True):
            assert is_full(build + added) and np.isclose(expected_right(tails[row], added), value)
        assert len({added.numpy().tobytes() for added in items[row][real]}) == real.sum()
    assert [int((row > NONE / 2).sum()) for row in values[:2]] == [1, 6], "a full build has one filling"


def test_the_first_one_is_that_of_the_single_answer():
    given = torch.from_numpy(parts(np.arange(78) % 13))
    tails = random_tails(len(given))
    assert torch.equal(ranked_fillings(tails, given, 3)[0][:, 0], fill(tails, given).items)
