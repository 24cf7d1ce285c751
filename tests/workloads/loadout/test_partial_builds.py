"""Examples by position: the number removed, legal parts, the split."""

import numpy as np
import pytest

from linnaeus.data.samples import SampleIndex
from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout.builds.archetypes import make_world
from linnaeus.workloads.loadout.builds.build_table import Builds, content_hashes, first_copies, split_builds
from linnaeus.workloads.loadout.builds.partial_builds import TrainingBuilds, ValidationBuilds, numbers_removed, removal_probabilities
from linnaeus.workloads.loadout.game.token_code import NULL, PAD, PointsCode, SlotsCode
from linnaeus.workloads.loadout.game.weapons import builtin_weapons

GOLDEN = [0.0102, 0.0235, 0.0382, 0.0539, 0.0705, 0.0878, 0.1056, 0.1239, 0.1428, 0.1620, 0.1816]
BUILDS = Builds(*make_world(0, 130).draw(0, 0, 400))


def training(code=SlotsCode, empty=True, removal="slots", visible=False) -> TrainingBuilds:
    return TrainingBuilds(BUILDS, code(), 5, 3, empty, removal, visible)


def indices(samples, epoch=0) -> list[SampleIndex]:
    return [SampleIndex(epoch, 7 * sample, sample, 0) for sample in samples]


def test_the_number_removed_has_the_golden_probabilities():
    np.testing.assert_allclose(removal_probabilities(12), GOLDEN, atol=5e-5)
    removed = numbers_removed((np.arange(100_000) + 0.5) / 100_000, np.full(100_000, 12))
    np.testing.assert_allclose(np.bincount(removed, minlength=12)[1:] / 100_000, removal_probabilities(12), atol=1e-4)
    assert abs(removed.mean() - 7.90) < 0.01
    assert numbers_removed(np.array([0.5]), np.array([1])).tolist() == [0], "of a set of one, nothing is removed"


def test_a_sample_is_a_function_of_its_position():
    dataset = training()
    assert len(dataset) == 1600
    whole, single = dataset.__getitems__(indices(range(40))), [dataset.__getitems__(indices([i])) for i in range(40)]
    for name, values in whole.items():
        assert all((values[i] == single[i][name][0]).all() for i in range(40)), name
    other = dataset.__getitems__(indices(range(40), epoch=1))
    assert (other["tokens"] != whole["tokens"]).any() and (other["target"] == whole["target"]).all()


@pytest.mark.parametrize("code", (SlotsCode, PointsCode))
def test_parts_have_slots_of_the_build_and_the_last_example_is_empty(code):
    batch = training(code).__getitems__(indices(range(200)))
    names = code().names
    for row in range(200):
        tokens = [int(token) for token in batch["tokens"][row] if token != PAD]
        if row % 4 == 3:
            assert tokens == [NULL]
            continue
        assert batch["target"][row, tokens].all() and not batch["scored"][row, tokens].any()
        families = [names[token].rsplit("_", 1)[0] for token in tokens]
        for token in tokens:  # lower levels are there too, so the input is gear
            assert all(lower in tokens for lower in range(token) if names[lower].rsplit("_", 1)[0] == families[tokens.index(token)]), tokens
    assert not batch["scored"][:, :2].any()


def test_single_tokens_can_be_removed_and_visible_ones_scored():
    batch = training(PointsCode, removal="tokens", visible=True).__getitems__(indices(range(0, 200, 4)))
    assert batch["scored"][:, 2:].all()
    shown, whole = (batch["tokens"] > NULL).sum(1), batch["target"].sum(1)
    assert (shown < whole).all() and (shown > 0).all()


def test_placeholders_do_not_count():
    batch = training().__getitems__([SampleIndex(0, 0, 3, 0, False)] * 2)
    assert not batch["scored"].any() and batch["weight"].sum() == 0


def test_validation_removes_one_to_twelve_slots_of_each_build():
    dataset = ValidationBuilds(BUILDS, SlotsCode())
    batch = dataset.__getitems__([SampleIndex(0, i, i, 0) for i in range(240)])
    removed = (batch["complete"] - batch["observed"]).sum(1)
    assert removed.tolist() == [*range(1, 13)] * 20 and (batch["observed"] <= batch["complete"]).all()


def test_identical_builds_are_on_one_side():
    weapon, items = np.tile(BUILDS.weapon, 3), np.tile(BUILDS.items, (3, 1))
    split = split_builds(Builds(weapon, items), builtin_weapons(), (0.3, 0.2), 1, ())
    sides = [set(content_hashes(part, 0).tolist()) for part in (split.train, split.validation, split.test)]
    assert all(sides) and not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])
    assert sum(map(len, (split.train, split.validation, split.test))) == 1200
    assert split_builds(Builds(weapon, items), builtin_weapons(), (0.3, 0.2), 2, ()).fingerprint != split.fingerprint
    kept = first_copies(Builds(weapon, items), 2)
    assert kept.sum() == 800 and kept[:800].all() and first_copies(BUILDS, None).all()


def test_the_side_of_a_build_does_not_depend_on_the_weapons_before_it_in_the_list():
    keys = builtin_weapons().keys
    longer = Builds(BUILDS.weapon + 1, BUILDS.items)
    assert (content_hashes(BUILDS, 1, keys) == content_hashes(longer, 1, ("a_new_weapon", *keys))).all()
    assert (content_hashes(BUILDS, 1) != content_hashes(longer, 1)).all()


def test_a_side_without_builds_is_one_line():
    with pytest.raises(ConfigError, match="for validation"):
        split_builds(BUILDS.rows(np.arange(2)), builtin_weapons(), (0.001, 0.0), 0, ())
