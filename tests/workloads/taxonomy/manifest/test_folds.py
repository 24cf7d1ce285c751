"""Folds are disjoint, cover every group that can be validated on, keep groups whole, and hardly move when rows are added."""

from collections import Counter

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.arrays.text_arrays import digests
from linnaeus.workloads.taxonomy.manifest.splitting.folds import fold_numbers
from linnaeus.workloads.taxonomy.manifest.splitting.split import Groups
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION
from tests import runs


def folds_of(names, groups, taxon, folds=5, seed=0):
    return fold_numbers(Groups(digests(names), np.asarray(groups), 0), np.asarray(taxon), folds, seed)


def long_tail():
    taxon = np.repeat(np.arange(60), np.maximum(1, 200 // (np.arange(60) + 1)))
    return np.array([f"p{i}.jpg" for i in range(len(taxon))]), np.arange(len(taxon)), taxon


@pytest.mark.parametrize("folds", [2, 5, 10])
def test_every_taxon_is_divided_evenly_and_single_groups_are_always_trained_on(folds):
    names, groups, taxon = long_tail()
    fold = folds_of(names, groups, taxon, folds)
    for own in (fold[taxon == t] for t in range(60)):
        counts = np.bincount(own, minlength=folds + 1)
        assert (counts[0] == 1) == (len(own) == 1) and (len(own) == 1 or np.ptp(counts[1:]) <= 1)
    sizes = np.bincount(fold)[1:]
    assert len(sizes) == folds and np.ptp(sizes) < 0.5 * sizes.mean() + 12


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("folds", [2, 3, 5])
def test_a_group_is_never_validated_on_only_if_a_taxon_would_lose_its_training_rows(folds, seed):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 80, 500)
    groups[:80] = np.arange(80)
    taxon = rng.integers(0, 120, 500) // 2 * (rng.random(500) < 0.9)
    fold = folds_of([f"o{g}" for g in range(80)], groups, taxon, folds, seed)
    members = {t: set(groups[taxon == t].tolist()) for t in set(taxon.tolist())}
    for t, own in members.items():
        assert len({fold[g] for g in own} - {0}) != 1 or any(fold[g] == 0 for g in own), f"taxon {t} is in one fold only"
    for group in np.flatnonzero(fold == 0):
        rest = [{fold[g] for g in own - {group}} for own in members.values() if group in own]
        assert any(not others for others in rest) or all({f} in rest for f in range(1, folds + 1))
    assert (fold > 0).sum() >= 40


def test_names_and_seed_alone_decide():
    names, groups, taxon = long_tail()
    order = np.random.default_rng(0).permutation(len(names))
    fold = folds_of(names, groups, taxon)
    np.testing.assert_array_equal(folds_of(names[order], groups, taxon[order]), fold[order])
    assert (folds_of(names, groups, taxon, seed=1) != fold).mean() > 0.5


def test_golden_folds():
    fold = folds_of([f"p{i}.jpg" for i in range(20)], range(20), [i % 3 for i in range(20)], 3)
    assert fold.tolist() == [2, 2, 2, 2, 1, 1, 3, 2, 1, 3, 2, 3, 2, 3, 2, 1, 1, 3, 1, 3]


def test_added_groups_move_few():
    names, groups, taxon = long_tail()
    before = folds_of(names, groups, taxon)
    more = 30
    after = folds_of([*names, *(f"new{i}.jpg" for i in range(more))], range(len(names) + more), [*taxon, *range(more)])
    assert (before != after[: len(before)]).mean() < 0.1


def table(**cells):
    """Return 120 rows of 31 sites with three photographs or more, and 4 species."""
    rows = [{"path": f"{i}.jpg", "genus": f"G{i % 2}", "species": f"S{i % 4}", "site": f"s{i * 7 % 31}"} for i in range(120)]
    return [row | {name: word(i) for name, word in cells.items()} for i, row in enumerate(rows)]


def parts(build_rows, rows, folds, **keys):
    """Return the names that each fold trains and validates on."""
    sources = [build_rows(rows, folds=folds, fold=k, **keys) for k in range(1, folds + 1)]
    return sources, [[set(s.ids[s.split == side].tolist()) for side in (TRAIN, VALIDATION)] for s in sources]


def test_folds_of_a_manifest_cover_it_and_leave_test_rows_out(build_rows):
    words = ("train", "train", "train", "val", "test")
    rows = table(split=lambda i: words[i % 5])
    sources, sides = parts(build_rows, rows, 3, group_column="site")
    used = {row["path"] for row in rows if row["split"] != "test"}
    assert all(train | validation == used and not train & validation for train, validation in sides)
    assert Counter(name for _, validation in sides for name in validation) == Counter(used)
    site = {row["path"]: row["site"] for row in rows}
    for train, validation in sides:
        assert not {site[name] for name in train} & {site[name] for name in validation}
    assert len({source.fingerprint for source in sources}) == 3
    notes = " ".join(sources[1].notes)
    assert "fold 2 of 3 validates, " in notes and "of 31 groups" in notes
    assert "'split': its rows for training and validation are divided into data.folds=3; test rows are in none" in notes


def test_a_store_has_the_folds_of_its_source(tmp_path, write_manifest, capsys):
    from linnaeus.workloads.taxonomy.data_source import build_data_source
    from linnaeus.workloads.taxonomy.store import prepare_store

    path = write_manifest(table(split=lambda i: ("train", "val", "test")[i % 3]))
    assert prepare_store.main(["manifest", str(tmp_path / "store"), f"data.path={path}", "data.components=[]", "--processes", "1"]) == 0
    keys = ["data.components=[]", "data.folds=4", "data.fold=3", "data.group_column=site"]
    ours, theirs = (
        build_data_source(runs.composed([f"data={name}", f"data.path={place}", *keys]))[0]
        for name, place in (("store", tmp_path / "store"), ("manifest", path))
    )
    np.testing.assert_array_equal(ours.split, theirs.split)
    assert ours.ids.tolist() == theirs.ids.tolist() and (ours.split == VALIDATION).any()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"folds": 5}, "data.folds=5 needs data.fold, the fold that validates, from 1 to 5; all in turn: -m data.fold=1,2,3,4,5"),
        ({"fold": 2}, "data.fold=2 has no effect without data.folds"),
        ({"folds": 5, "fold": 6}, "data.fold=6 does not exist: with data.folds=5 the folds are 1 to 5"),
        ({"folds": 5, "fold": 1, "validation_fraction": 0.2}, "data.validation_fraction=0.2 has no effect with data.folds=5"),
        (
            {"folds": 99, "fold": 1},
            r"data.folds=99: fold \d+ would be empty, because only 120 of 120 groups can be validated on; use fewer",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused(build_rows, keys, message):
    with pytest.raises(ConfigError, match=message):
        build_rows(table(), **keys)


def test_folds_count_from_1():
    with pytest.raises(ConfigError, match=r"data\.fold"):
        runs.composed(["data=manifest", "data.path=x", "data.folds=5", "data.fold=0"])


def test_rows_that_cannot_be_divided_are_refused(build_rows):
    rows = [{"path": f"{i}.jpg", "genus": f"G{i}", "species": f"S{i}"} for i in range(4)]
    with pytest.raises(ConfigError, match="not one of 4 groups can be validated on, because each is the only one of a taxon"):
        build_rows(rows, folds=2, fold=1)
