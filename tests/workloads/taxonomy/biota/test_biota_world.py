"""The tree, the frequencies, the inherited traits and the cryptic groups of the worlds of biota."""

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.biota.individuals import NULL_GENUS, NULL_SPECIES
from linnaeus.workloads.taxonomy.biota.render import render_forms
from linnaeus.workloads.taxonomy.biota.world import GROUND_COLOURS, MARK_COLOURS, build_world


@pytest.mark.parametrize("number", [0, 1, 7])
def test_every_world_has_the_same_numbers_of_taxa(number):
    world, again = build_world(number), build_world.__wrapped__(number)
    tree = world.tree
    assert again.tree.names == tree.names != build_world(number + 1).tree.names
    np.testing.assert_array_equal(again.forms.pattern, world.forms.pattern)
    assert tree.ranks == ("order", "family", "genus", "species")
    assert tree.sizes == (5, 15, 40, 120)
    lineages = [tuple(tree.lineage_ids("species")[s].split("|")) for s in range(120)]
    assert lineages == sorted(set(lineages)) and all(len(lineage) == 4 for lineage in lineages)
    assert all(species.split()[0] == genus for *_, genus, species in lineages)
    for r in range(4):
        assert len({lineage[: r + 1] for lineage in lineages}) == len({lineage[r] for lineage in lineages}) == tree.sizes[r]


def test_frequencies_follow_a_power_law_and_the_rarest_species_has_training_rows(drawn):
    slope = np.polyfit(np.log(np.arange(1, 121)), np.log(np.sort(drawn.world.prior)[::-1]), 1)[0]
    assert slope == pytest.approx(-0.85, abs=1e-6)
    counts = np.bincount(drawn.labels[:8000, 3] + 1, minlength=121)[1:]
    assert counts.min() >= 12 and counts.max() > 20 * counts.min()


@pytest.mark.parametrize("start", [0, 8000, 12345])
def test_any_run_of_individuals_contains_every_species_in_its_share(drawn, start):
    counts = np.bincount(drawn.species[start : start + 2000], minlength=120)
    assert np.abs(counts - 2000 * drawn.world.prior).max() < 6
    assert counts.min() >= 1


@pytest.mark.parametrize("number", [0, 1, 7])
def test_cryptic_groups_of_each_kind_share_a_form_and_have_their_frequency(number):
    world = build_world(number)
    cryptic = np.array([bool(k) for k in world.cryptic_kind])
    assert 0.10 <= world.prior[cryptic].sum() <= 0.16
    assert {k for k in world.cryptic_kind if k} == {"range", "season", "elevation"}
    for form in range(world.form.max() + 1):
        group = np.flatnonzero(world.form == form)
        assert len(set(world.lineage[group, 2])) == 1
        assert (len(group) > 1) == bool(cryptic[group].all()) == bool(cryptic[group].any())
        assert sorted(world.cryptic_index[group]) == list(range(len(group)))
        assert world.prior[group].max() < 1.6 * world.prior[group].min()


@pytest.mark.parametrize("number", [0, 1, 7])
def test_forms_of_a_genus_differ_clearly(number):
    """Each form has its own ground colour and pattern, and colour jitter does not turn a palette colour into another."""
    world = build_world(number)
    genus = np.array([world.lineage[np.flatnonzero(world.form == f)[0], 2] for f in range(len(world.forms.plan))])
    for g in np.unique(genus):
        rows = np.flatnonzero(genus == g)
        assert len(rows) == len(np.unique(world.forms.ground[rows], axis=0)) == len(np.unique(world.forms.pattern[rows], axis=0))
        assert len(np.unique(world.forms.mark[rows], axis=0)) == 1  # one per genus
    for palette in [*GROUND_COLOURS.values(), *MARK_COLOURS.values()]:
        for i, a in enumerate(palette):
            assert all(np.abs(np.subtract(a, b)).sum() > 0.2 for b in palette[:i])


def test_closer_relatives_look_more_alike():
    """Mean difference of pictures in one pose is smallest within a genus and largest between orders."""
    world = build_world(0)
    forms = np.arange(len(world.forms.plan))
    first = np.array([np.flatnonzero(world.form == f)[0] for f in forms])
    pictures = np.concatenate([render_forms(0, forms, np.full(len(forms), n), 16).reshape(len(forms), -1) for n in range(4)], axis=1)
    distance = np.sqrt(np.square(pictures[:, None].astype(np.float32) - pictures[None]).mean(axis=2))
    shared = (world.lineage[first][:, None, :] == world.lineage[first][None]).sum(axis=2)  # ranks in common
    means = [distance[shared == n].mean() for n in (3, 2, 1, 0)]
    assert means == sorted(means)
    assert means[0] < 0.8 * means[3]


def test_null_labels_are_random_and_include_all_finer_ranks(drawn):
    world, species, null = drawn.world, drawn.species, drawn.labels < 0
    assert not null[:, :2].any() and not (null[:, 2] & ~null[:, 3]).any()
    for rank, rate in ((2, NULL_GENUS), (3, NULL_SPECIES)):
        assert null[:, rank].mean() == pytest.approx(rate, abs=4 * np.sqrt(rate / 40000))
    common = world.prior[species] > np.median(world.prior[species])
    assert null[common, 3].mean() == pytest.approx(null[~common, 3].mean(), abs=0.012)
    np.testing.assert_array_equal(drawn.labels[~null[:, 3]], world.lineage[species[~null[:, 3]]])
