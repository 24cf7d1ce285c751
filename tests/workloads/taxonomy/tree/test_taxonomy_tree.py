"""Test the tree: taxa are lineages, holes have anchors, and operations match their definitions on random trees."""

import json
import tracemalloc

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.taxonomy.tree.lineages import distinct_lineages, fill_holes, number_names
from tests.workloads.taxonomy.trees import chain, is_path

RANKS = ("kingdom", "family", "genus", "species")
ROWS = np.array(
    [
        ["Plantae", "Lamiaceae", "Prunella", "vulgaris"],
        ["Animalia", "Prunellidae", "Prunella", "modularis"],
        ["Plantae", "Lamiaceae", "Prunella", ""],
        ["Plantae", "Lamiaceae", "", "incognita"],
        ["Animalia", "", "", ""],
        ["", "", "", ""],
        ["Plantae", "Lamiaceae", "Salvia", "vulgaris"],
        ["", "Orphanidae", "", "sola"],
    ]
)


@pytest.fixture
def built():
    return TaxonomyTree.from_lineages(RANKS, ROWS)


def random_rows(seed, rows=400, nulls=0.15):
    """Return independent random names, with many homonyms and holes."""
    rng = np.random.default_rng(seed)
    names = rng.integers(0, [2, 3, 4, 6], (rows, 4)).astype(str)
    names[rng.random((rows, 4)) < nulls] = ""
    return names


def test_taxa_are_lineages_and_holes_have_an_anchor(built):
    tree, labels = built
    assert tree.sizes == (2, 3, 3, 5)
    np.testing.assert_array_equal(labels >= 0, ROWS != "")
    assert labels[0, 2] != labels[1, 2] and tree.names[2][labels[0, 2]] == tree.names[2][labels[1, 2]] == "Prunella"
    assert labels[0, 3] != labels[6, 3]
    species = labels[3, 3]
    assert tree.anchor[3][species] == tree.offsets[1] + labels[3, 1]
    assert tree.ancestors("species", [species, -1], "genus").tolist() == [-1, -1]
    assert tree.ancestors("species", [species], "kingdom").tolist() == [labels[3, 0]]
    texts = {("genus", labels[0, 2]): "Plantae|Lamiaceae|Prunella", ("species", species): "Plantae|Lamiaceae||incognita"}
    for (rank, cls), text in {**texts, ("species", labels[7, 3]): "|Orphanidae||sola"}.items():
        assert tree.lineage_ids(rank)[cls] == text


@pytest.mark.parametrize("seed", range(4))
def test_labels_ids_and_ancestors_agree_with_the_rows(seed):
    rows = random_rows(seed)
    tree, labels = TaxonomyTree.from_lineages(RANKS, rows)
    for row, label in zip(rows, labels, strict=True):
        for r, cls in enumerate(label):
            if cls < 0:
                assert row[r] == ""
                continue
            assert tree.lineage_ids(r)[cls] == "|".join(row[: r + 1])
            np.testing.assert_array_equal([tree.ancestors(r, [cls], to)[0] for to in range(r + 1)], label[: r + 1])
    for rank in RANKS:
        ids = [i.split("|") for i in tree.lineage_ids(rank)]
        assert ids == sorted(ids) and len({tuple(i) for i in ids}) == len(ids)
    assert is_path(tree, labels).all()


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_rows_and_leaf_counts(seed):
    rows = random_rows(seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    tree, labels = TaxonomyTree.from_lineages(RANKS, rows)
    other, moved = TaxonomyTree.from_lineages(RANKS, rows[order])
    assert tree.fingerprint() == other.fingerprint()
    np.testing.assert_array_equal(labels[order], moved)
    count = np.zeros(tree.offsets[-1], dtype=np.int64)
    for leaf in set(range(tree.offsets[-1])) - set(tree.node_parent.tolist()):
        count[chain(tree, leaf)] += 1
    np.testing.assert_array_equal(tree.leaf_count, count)


def test_negative_control_a_wrong_parent_is_not_a_path(built):
    tree, labels = built
    wrong = labels[[0, 1]].copy()
    wrong[0, 1], wrong[1, 1] = labels[1, 1], labels[0, 1]
    assert not is_path(tree, wrong).any()
    deep = labels[[0]].copy()
    deep[0, 1] = -1  # without the family the kingdom still has to agree
    assert is_path(tree, deep).all()
    deep[0, 0] = 1 - deep[0, 0]
    assert not is_path(tree, deep).any()


@pytest.mark.parametrize("ranks", [("kingdom", "species"), ("family", "genus"), ("genus", "species"), ("species",), RANKS])
def test_a_subset_keeps_classes_ids_and_ancestors(ranks):
    tree, labels = TaxonomyTree.from_lineages(RANKS, random_rows(7))
    small = tree.subset(ranks)
    columns = [RANKS.index(r) for r in ranks]
    assert small.sizes == tuple(tree.sizes[c] for c in columns)
    for fine in ranks:
        assert small.lineage_ids(fine) == tree.lineage_ids(fine)
        for coarse in ranks[: ranks.index(fine)]:
            every = np.arange(tree.sizes[RANKS.index(fine)])
            np.testing.assert_array_equal(small.ancestors(fine, every, coarse), tree.ancestors(fine, every, coarse))
    assert is_path(small, labels[:, columns]).all()


def test_restrict_renumbers_classes_and_keeps_lineages():
    tree, labels = TaxonomyTree.from_lineages(RANKS, random_rows(3))
    seen = [np.bincount(column[column >= 0], minlength=size) > 0 for column, size in zip(labels[:200].T, tree.sizes, strict=True)]
    small, renumber = tree.restrict(seen)
    rebuilt, relabelled = TaxonomyTree.from_lineages(RANKS, random_rows(3)[:200])
    assert small.fingerprint() == rebuilt.fingerprint()
    np.testing.assert_array_equal(np.stack([np.append(n, -1)[c] for n, c in zip(renumber, labels[:200].T, strict=True)], 1), relabelled)


def test_the_fingerprint_depends_on_names_and_parents_and_survives_json(built):
    renamed, moved = ROWS.copy(), ROWS.copy()
    renamed[0, 3], moved[6, 2] = "grandiflora", "Prunella"
    assert len({TaxonomyTree.from_lineages(RANKS, rows)[0].fingerprint() for rows in (ROWS, renamed, moved)}) == 3
    for tree in (built[0], built[0].subset(("kingdom", "species"))):
        loaded = TaxonomyTree.from_dict(json.loads(json.dumps(tree.to_dict())))
        assert loaded.fingerprint() == tree.fingerprint() and loaded.lineage_ids(1) == tree.lineage_ids(1)
    for unknown in ({"version": 99}, built[0].to_dict() | {"ids": []}):
        with pytest.raises(ValueError, match="version"):
            TaxonomyTree.from_dict(unknown)


@pytest.mark.parametrize("ranks", [("kingdom", "species"), ("genus", "species"), ("family", "genus")])
def test_lineage_ids_of_a_subset_are_stored_as_tails(ranks):
    tree, _ = TaxonomyTree.from_lineages(RANKS, random_rows(5))
    small = TaxonomyTree.from_dict(tree.subset(ranks).to_dict())
    smaller = small.subset(ranks[1:])
    for rank in ranks:
        assert small.lineage_ids(rank) == tree.lineage_ids(rank)
    assert smaller.lineage_ids(ranks[1]) == tree.lineage_ids(ranks[1])
    kept, _ = small.restrict([np.arange(size) % 3 > 0 for size in small.sizes])
    assert kept.lineage_ids(ranks[1]) == tuple(i for c, i in enumerate(tree.lineage_ids(ranks[1])) if c % 3 > 0)
    stored = sum(len(tail) for tails in small.tails for tail in tails)
    whole = sum(len(text) for rank in ranks for text in tree.lineage_ids(rank))
    assert stored < whole and not tree.tails


def test_keys_follow_their_taxa_and_do_not_change_the_fingerprint():
    names, codes = number_names(ROWS)
    keys = [np.array([f"{r}-{name}" for name in rank]) for r, rank in enumerate(names)]
    tree, _ = TaxonomyTree.from_codes(RANKS, names, codes, keys)
    plain, _ = TaxonomyTree.from_codes(RANKS, names, codes)
    assert tree.fingerprint() == plain.fingerprint() and "keys" not in plain.to_dict()
    small = tree.subset(("family", "species")).restrict([np.arange(3) > 0, np.arange(5) < 4])[0]
    for found in (tree, TaxonomyTree.from_dict(json.loads(json.dumps(small.to_dict())))):
        for rank, rank_names, rank_keys in zip(found.ranks, found.names, found.keys, strict=True):
            assert rank_keys == tuple(f"{RANKS.index(rank)}-{name}" for name in rank_names)


def test_names_under_several_parents_are_reported_with_rows(built):
    tree, labels = built
    lines = tree.conflicts(labels)
    assert len(lines) == 2
    assert lines[0].startswith("genus")
    assert "Plantae|Lamiaceae|Prunella (2 rows)" in lines[0] and "Animalia|Prunellidae|Prunella (1 row)" in lines[0]


def test_names_under_several_parents_are_shortened_and_without_control_characters():
    tree, labels = TaxonomyTree.from_lineages(("family", "genus"), np.array([["x" * 5000, "P\x1b[2J"], ["Prunellidae", "P\x1b[2J"]]))
    (line,) = tree.conflicts(labels)
    assert line.isprintable() and len(line) < 250 and "Prunellidae|P\\x1b[2J (1 row)" in line


def test_a_separator_in_a_name_does_not_merge_lineages():
    tree, _ = TaxonomyTree.from_lineages(("family", "genus"), np.array([["a|b", "c"], ["a", "b|c"], ["a\\", "b|c"]]))
    assert len(set(tree.lineage_ids("genus"))) == 3


def test_an_empty_table_gives_an_empty_tree():
    tree, labels = TaxonomyTree.from_lineages(RANKS, np.empty((0, 4), dtype=str))
    assert tree.sizes == (0, 0, 0, 0) and labels.shape == (0, 4)


def filled(rows):
    names, codes = number_names(np.array(rows))
    lineages, inverse = distinct_lineages(codes)
    back = fill_holes(lineages)[inverse]
    return [[names[r][c] if c >= 0 else "" for r, c in enumerate(row)] for row in back]


def test_a_hole_is_filled_with_the_only_name_of_other_rows_unless_names_are_ambiguous():
    rows = [["P", "Rosaceae", "Rosa", "canina"], ["P", "", "", "canina"], ["", "", "Rosa", ""]]
    assert filled(rows) == [rows[0], rows[0], ["P", "Rosaceae", "Rosa", ""]]
    ambiguous = [["Plantae", "Lamiaceae", "Prunella"], ["Animalia", "Prunellidae", "Prunella"], ["Animalia", "", "Prunella"]]
    assert filled(ambiguous)[2] == ambiguous[2]
    elsewhere = [["Plantae", "Lamiaceae", "Prunella"], ["Animalia", "", "Prunella"]]
    assert filled(elsewhere) == elsewhere
    homonym = [["Plantae", "Apiaceae", "Oenanthe"], ["Animalia", "", "Oenanthe"], ["", "", "Oenanthe"], ["Plantae", "", "Oenanthe"]]
    assert filled(homonym) == [*homonym[:3], homonym[0]]


def filled_slowly(lineages):
    """Return what `fill_holes` promises, hole by hole with sets of pairs."""
    found = lineages.tolist()
    ranks = lineages.shape[1]
    for hole in range(ranks - 2, -1, -1):
        for finer in range(hole + 1, ranks):
            both = [row for row in found if row[hole] >= 0 and row[finer] >= 0]
            names = {code: {row[hole] for row in both if row[finer] == code} for code in {row[finer] for row in both}}
            agreed = {(row[hole], coarser, row[coarser]) for row in both for coarser in range(hole)}
            without = [row for row in found if row[hole] < 0 <= row[finer] and len(names.get(row[finer], ())) == 1]
            fits = [all(row[c] < 0 or (*names[row[finer]], c, row[c]) in agreed for c in range(hole)) for row in without]
            homonyms = {row[finer] for row, fit in zip(without, fits, strict=True) if not fit}
            for row, fit in zip(without, fits, strict=True):
                known = max(row[:hole], default=-1) >= 0 or row[finer] not in homonyms
                if fit and known and max(row[hole + 1 : finer], default=-1) < 0:
                    row[hole] = min(names[row[finer]])
    return found


@pytest.mark.parametrize("seed", range(60))
def test_holes_are_filled_as_by_a_search_of_all_pairs(seed):
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, 6))
    codes = np.stack([np.arange(16) // 2 ** (ranks - 1 - r) for r in range(ranks)], 1).repeat(3, 0)
    codes[rng.random(codes.shape) < 0.04] = 1  # contradictions and homonyms
    codes[rng.random(codes.shape) < rng.choice([0.1, 0.3, 0.6])] = -1
    lineages = distinct_lineages(codes.astype(rng.choice([np.int32, np.int64])))[0]
    found = fill_holes(lineages)
    assert found.tolist() == filled_slowly(lineages) and found.dtype == lineages.dtype


def test_filling_holes_needs_arrays_only():
    """Arrays need 4.5 times the memory of the lineages. Python's sets of pairs need 11 times, and take twenty times as long."""
    species = np.arange(20_000)
    complete = np.stack([species // 8000, species // 400, species, species], 1)
    lineages = distinct_lineages(np.concatenate([complete, np.where(np.arange(4) == 2, -1, complete)]))[0]
    tracemalloc.start()
    try:
        found = fill_holes(lineages)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found >= 0).all() and peak < 7 * lineages.nbytes, peak / lineages.nbytes
