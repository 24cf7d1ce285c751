"""Thermometer codes: golden facts, token sets, and the tails that decoding reads."""

import numpy as np
import pytest
import torch

from linnaeus.workloads.loadout.builds.archetypes import make_world
from linnaeus.workloads.loadout.game.abilities import MOST, ability_points, sub_item
from linnaeus.workloads.loadout.game.gear import empty_build, parse_gear
from linnaeus.workloads.loadout.game.token_code import LEVELS, NULL, PAD, THRESHOLDS, PointsCode, SlotsCode

BUILDS = make_world(0, 130).draw(0, 0, 300)[1]


def test_the_vocabulary_of_points_has_140_tokens():
    code = PointsCode()
    assert len(code) == 140 and code.names[:3] == ("<PAD>", "<NULL>", "comeback") and len(set(code.names)) == 140
    assert len(SlotsCode()) == 182 and len(set(SlotsCode().names)) == 182


@pytest.mark.parametrize(
    "slots, number", {"sub": 1, "sub sub": 2, "sub sub sub": 2, "main": 2, "main sub": 3, "main sub sub sub": 4}.items()
)
def test_numbers_of_tokens(slots, number):
    """3 points are 1 token, 6: 2, 9: 2, 10: 2, 13: 3, 19: 4."""
    build = parse_gear(f"swim_speed_up: {slots}")
    points = ability_points(build).max()
    assert PointsCode().multi_hot(build[None]).sum() == number == sum(points >= level for level in THRESHOLDS)


def test_57_points_of_one_ability_are_nine_tokens():
    build = parse_gear(f"swim_speed_up: {'main ' * 3}{'sub ' * 9}")
    names = [PointsCode().names[i] for i in PointsCode().token_sets(build[None])[0] if i != PAD]
    assert names == [f"swim_speed_up_{level}" for level in THRESHOLDS]


@pytest.mark.parametrize("code", (SlotsCode(), PointsCode()), ids=lambda code: type(code).__name__)
def test_token_sets(code):
    sets = code.token_sets(BUILDS)
    hot = np.zeros((len(sets), len(code)), bool)
    np.put_along_axis(hot, sets, True, 1)
    hot[:, PAD] = False
    assert (hot == code.multi_hot(BUILDS)).all() and (sets != PAD).sum(1).max() <= code.longest
    assert code.token_sets(empty_build()[None])[0].tolist() == [NULL, *[PAD] * (code.longest - 1)]


def test_every_slot_adds_one_token_of_slots():
    assert (SlotsCode().multi_hot(BUILDS).sum(1) == 12).all()


@pytest.mark.parametrize("code", (SlotsCode(), PointsCode()), ids=lambda code: type(code).__name__)
def test_tails_of_certain_tokens_are_the_build(code):
    """With the tokens of the whole build as probabilities, the tails of the empty build count its items (of points: interpolated)."""
    probabilities = torch.from_numpy(code.multi_hot(BUILDS)).double()
    tails = code.tails(probabilities, torch.zeros(len(BUILDS), 40, dtype=torch.int8))
    wanted = BUILDS[:, :, None] >= np.arange(1, LEVELS + 1)
    if isinstance(code, SlotsCode):
        assert (tails.numpy() == wanted).all()
    else:
        sure = (tails.numpy() == 0) | (tails.numpy() == 1)
        assert sure.mean() > 0.9 and (tails.numpy()[:, :12] == wanted[:, :12]).all()
    assert (tails.diff(dim=2) <= 0).all() and (tails[:, :, 1:].amax(2)[:, MOST == 1] == 0).all()


@pytest.mark.parametrize("code", (SlotsCode(), PointsCode()), ids=lambda code: type(code).__name__)
def test_tails_do_not_depend_on_the_probabilities_of_tokens_that_the_given_gear_has(code):
    """With `data.visible_targets=false` the model does not learn these."""
    given = np.minimum(BUILDS, np.random.default_rng(0).integers(0, 4, BUILDS.shape)).astype(np.int8)
    hot, seen = (torch.from_numpy(code.multi_hot(counts)) for counts in (BUILDS, given))
    sure, untrained = (torch.where(seen, value, torch.where(hot, 0.8, 0.1).double()) for value in (1.0, 0.05))
    observed = torch.from_numpy(given)
    assert torch.equal(code.tails(untrained, observed), code.tails(sure, observed))
    assert seen.any() and not torch.equal(code.tails(untrained, observed * 0), code.tails(sure, observed * 0))


def test_a_threshold_above_the_given_points_has_its_own_probability():
    code, given = PointsCode(), parse_gear("swim_speed_up: sub")
    probabilities = torch.full((1, len(code)), 0.1)
    probabilities[0, code.names.index("swim_speed_up_6")] = 0.8
    tails = code.tails(probabilities, torch.from_numpy(given[None]))
    assert tails[0, sub_item("swim_speed_up"), 0] == pytest.approx(0.8)
