"""The split keeps groups whole, divides every taxon in proportion, is reproducible, and changes little when rows are added."""

import hashlib

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.manifest.splitting.split import LEFT_OUT, computed_split, find_groups, split_from_column
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION


def column(cells):
    values = sorted(set(cells))
    return Column(np.array([values.index(c) for c in cells], dtype=np.int32), values)


def split_of(paths, taxa, fraction=0.2, seed=0, group=None):
    groups = find_groups(column(group) if group is not None else None, np.array(paths))
    return computed_split(groups, np.array(taxa), fraction, seed)


@pytest.fixture
def long_tail():
    taxa = np.repeat(np.arange(60), np.maximum(1, 200 // (np.arange(60) + 1) ** 1))
    return [f"p{i}.jpg" for i in range(len(taxa))], taxa


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
def test_every_taxon_has_about_its_share_in_validation_and_some_in_training(long_tail, fraction):
    paths, taxa = long_tail
    split = split_of(paths, taxa, fraction)
    for taxon in range(60):
        own = split[taxa == taxon]
        assert (own == TRAIN).any()
        assert abs((own == VALIDATION).sum() - fraction * len(own)) <= 1
    assert abs((split == VALIDATION).mean() - fraction) < 0.03


def test_the_order_of_the_rows_has_no_effect_and_the_seed_has_one(long_tail):
    paths, taxa = long_tail
    order = np.random.default_rng(0).permutation(len(paths))
    split = split_of(paths, taxa)
    np.testing.assert_array_equal(split_of(np.array(paths)[order], taxa[order]), split[order])
    assert (split != split_of(paths, taxa, seed=1)).mean() > 0.1


def test_added_rows_move_few(long_tail):
    paths, taxa = long_tail
    before = split_of(paths, taxa)
    added = [f"new{i}.jpg" for i in range(30)]
    after = split_of(paths + added, np.concatenate([taxa, np.arange(30)]))
    assert (before != after[: len(before)]).sum() <= 2 * 30
    assert (before != after[: len(before)]).mean() < 0.05
    assert (before != np.random.default_rng(0).permutation(before)).mean() > 0.2  # a new shuffle moves this many


def test_groups_stay_whole_and_every_taxon_has_training_rows():
    rng = np.random.default_rng(0)
    observers = rng.integers(0, 80, 2000)
    taxa = (observers // 4 + rng.integers(0, 5, 2000)) % 24  # an observer has several taxa
    split = split_of([f"p{i}.jpg" for i in range(2000)], taxa, 0.3, group=[f"o{g}" for g in observers])
    for observer in range(80):
        assert len(np.unique(split[observers == observer])) <= 1
    assert set(taxa[split == TRAIN]) == set(range(24))
    assert 0.15 < (split == VALIDATION).mean() < 0.4


def test_a_taxon_with_one_group_is_in_training():
    paths = [f"p{i}.jpg" for i in range(40)]
    split = split_of(paths, np.arange(40) // 4, 0.5, group=[f"o{i // 4}" for i in range(40)])
    assert (split == TRAIN).all()


def test_a_photograph_in_two_rows_stays_on_one_side():
    paths = [f"p{i // 2}.jpg" for i in range(200)]
    split = split_of(paths, [i % 5 for i in range(200)], 0.4)
    assert (split[::2] == split[1::2]).all() and 0 < split.mean() < 1


def test_groups_that_share_a_photograph_are_on_one_side():
    """Each observation shares a photograph with the next one of its chain of four."""
    rows = [(f"o{i:03d}", f"p{i // 4}-{i % 4 + k}.jpg") for i in range(200) for k in (0, 1)]
    order = np.random.default_rng(0).permutation(len(rows))
    observations, paths = zip(*[rows[row] for row in order], strict=True)
    groups = find_groups(column(observations), np.array(paths))
    assert groups.joined == 150 and len(groups.digest) == 50
    assert (groups.number == [int(name[1:]) // 4 for name in observations]).all()
    split = computed_split(groups, np.zeros(len(paths), dtype=np.int64), 0.4, 0)
    sides = {path: set() for path in paths}
    for path, side in zip(paths, split.tolist(), strict=True):
        sides[path].add(side)
    assert {len(found) for found in sides.values()} == {1} and 0 < split.mean() < 1


def test_a_row_without_a_group_joins_the_group_that_has_its_photograph():
    groups = find_groups(column(["b", "", "a", ""]), np.array(["1", "1", "2", "3"]))
    assert groups.number.tolist() == [1, 1, 0, 2] and (groups.ungrouped, groups.joined) == (2, 1)


def test_rows_without_a_group_are_separate_groups():
    groups = find_groups(column(["b", "", "b", "a", "NA"]), np.array(["1", "9", "3", "4", "5"]))
    assert groups.ungrouped == 2 and groups.number.tolist() == [1, 3, 1, 0, 2] and len(groups.digest) == 4


@pytest.mark.parametrize(("grouped", "count", "digest"), [(False, 273, "c58d0e14"), (True, 249, "b65e0998")])
def test_golden_split_of_a_long_tail(long_tail, grouped, count, digest):
    paths, taxa = long_tail
    cells = [["", "NA", f"s{i % 37}", f"é{i % 5}"][i % 4] for i in range(len(taxa))]
    split = split_of(paths, taxa, 0.3, 5, cells if grouped else None)
    assert (int(split.sum()), hashlib.sha256(split.tobytes()).hexdigest()[:8]) == (count, digest)


@pytest.mark.parametrize(
    ("cells", "sides"),
    [
        (["train", "Val", "validation", "TRAINING"], [TRAIN, VALIDATION, VALIDATION, TRAIN]),
        (["train", "test"], [TRAIN, LEFT_OUT]),
        (["train", "test", "val"], [TRAIN, LEFT_OUT, VALIDATION]),
        (["test", "val"], [LEFT_OUT, VALIDATION]),
    ],
)
def test_words_of_a_split_column(cells, sides):
    assert split_from_column(column(cells), "split").tolist() == sides


@pytest.mark.parametrize(("cells", "message"), [(["train", "maybe"], "'maybe'"), (["train", ""], r"\(empty\)")])
def test_other_words_are_an_error(cells, message):
    with pytest.raises(ConfigError, match=message):
        split_from_column(column(cells), "split")
