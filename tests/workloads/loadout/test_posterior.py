"""Test that the posterior of generated builds is exact, and that filling slots in one step is optimal: both against enumeration."""

from itertools import combinations

import numpy as np
import torch

from linnaeus.workloads.loadout.builds.archetypes import World, make_world
from linnaeus.workloads.loadout.builds.posterior import Posterior
from linnaeus.workloads.loadout.completion.slot_filling import fill
from linnaeus.workloads.loadout.game.abilities import MAIN_ITEMS, MAIN_ONLY, STANDARD
from linnaeus.workloads.loadout.game.gear import count_items, problem, slot_items


def simulated(builds: np.ndarray, item: int) -> np.ndarray:
    """Return tails [40, 9] of the builds that show one `item`, if a random slot of each is shown."""
    slots = slot_items(builds)
    shown = slots[np.arange(len(slots)), np.random.default_rng(0).integers(0, slots.shape[1], len(slots))]
    rest = builds[shown == item]
    rest[:, item] -= 1
    assert len(rest) > 2000, "too few draws show this"
    return (rest[:, :, None] >= np.arange(1, 10)).mean(0)


def test_the_posterior_is_that_of_simulated_builds():
    """Tolerance: four standard errors of 2,000 draws at a probability of 0.5."""
    world = make_world(1, 4)
    sub = int(world.sub[0, 0].argmax())
    standard = int(world.main[0, 0, 0, MAIN_ITEMS - len(STANDARD) :].argmax()) + MAIN_ITEMS - len(STANDARD)
    only = World(np.eye(4)[0], world.archetype, world.main, world.sub)
    _, builds = only.draw(7, 0, 180_000)
    for item in (MAIN_ITEMS + sub, standard):
        observed = np.eye(40, dtype=np.int8)[item]
        exact = Posterior(world).tails(observed[None], np.array([0]))[0]
        assert np.abs(exact - simulated(builds, item)).max() < 0.045


def test_tails_sum_to_the_free_slots():
    world = make_world(0, 130)
    weapon, builds = world.draw(0, 0, 200)
    kept = np.random.default_rng(0).random((200, 12)) < 0.4
    observed = count_items(slot_items(builds), kept)
    tails = Posterior(world).tails(observed, weapon)
    mains, subs = observed[:, :MAIN_ITEMS].sum(1), observed[:, MAIN_ITEMS:].sum(1)
    np.testing.assert_allclose(tails[:, :MAIN_ITEMS].sum((1, 2)), 3 - mains, atol=1e-9)
    np.testing.assert_allclose(tails[:, MAIN_ITEMS:].sum((1, 2)), 9 - subs, atol=1e-9)


def test_one_step_filling_is_the_best_legal_completion():
    """Against all sets of main abilities that are legal, for random tails and gear with one to three free mains."""
    rng = np.random.default_rng(0)
    tails = np.sort(rng.random((20, 40, 9)), 2)[:, :, ::-1] * rng.random((20, 40, 1))
    tails[:, :12, 1:] = 0
    _, builds = make_world(0, 130).draw(0, 0, 20)
    observed = count_items(slot_items(builds), np.c_[np.arange(3) < rng.integers(0, 3, 20)[:, None], np.ones((20, 9), bool)])
    filled = fill(torch.from_numpy(tails.copy()), torch.from_numpy(observed))
    for row in range(20):
        free, best = 3 - observed[row, :MAIN_ITEMS].sum(), -1.0
        copies = [item for item in range(MAIN_ITEMS) for _ in range(free if item >= 12 else 1)]
        for chosen in set(combinations(copies, int(free))):
            added = np.bincount(chosen, minlength=40)
            if problem(observed[row] + added) is None:
                best = max(best, sum(tails[row, item, : added[item]].sum() for item in set(chosen)))
        added = filled.items[row].numpy()
        assert problem(observed[row] + added) is None and (observed[row] + added).sum() == 12
        found = sum(tails[row, item, : added[item]].sum() for item in range(MAIN_ITEMS))
        assert abs(found - best) < 1e-9
    assert len(MAIN_ONLY) == 3
