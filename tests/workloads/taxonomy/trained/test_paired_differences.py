"""`compare`: two models whose trees have different ranks, taxa and numbers for the same taxa."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.metrics.photograph_table import PhotographTable
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import matched
from linnaeus.workloads.taxonomy.trained.evaluate import paired_bins
from linnaeus.workloads.taxonomy.trained.evaluate.paired_differences import compare
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

LINEAGES = {"a1": "A", "a2": "A", "b1": "B", "b2": "B", "c1": "C", "d1": "D"}


def tree_of(*species: str, ranks: tuple[str, ...] = ("order", "species")) -> TaxonomyTree:
    """Return the tree of these species, whose classes are numbered as `TaxonomyTree` numbers them."""
    return TaxonomyTree.from_lineages(ranks, np.array([[LINEAGES[name], name][-len(ranks) :] for name in species]))[0]


def measured(name: str, tree: TaxonomyTree, rows: Any, predicted: list[str], unread: int | None = None) -> Any:
    """Return the results of a model that predicts these species, each with probability 0.5 at every rank."""
    size, ranks = len(predicted), len(tree.ranks)
    labels = matched(rows.records.tree, rows.records.labels, tree)
    table = PhotographTable(size, ranks)
    table.real[:] = [i != unread for i in range(size)]
    names = [[LINEAGES[one], one][-ranks:] for one in predicted]
    table.path = np.array([[tree.names[r].index(text) for r, text in enumerate(own)] for own in names])
    table.path_log_p[:] = table.best_log_p[:] = np.log(0.5)
    known = labels.labels >= 0
    right = known & (table.path == labels.labels)
    table.in_top5, table.best_right, table.loss = right.copy(), right.copy(), np.where(known, 1.0 + len(name), 0.0)
    weights = 1 << np.arange(2 * ranks)
    flags = np.concatenate([known, right], 1) @ weights
    height = np.where(known[:, -1], 2 * ranks - 2 * right.sum(1), 0)
    record = torch.from_numpy(np.stack([flags, height, np.full(size, np.float32(0.5).view(np.int32))], 1))
    return SimpleNamespace(name=name, model=SimpleNamespace(tree=tree), labels=labels, table=table, record=record)


def rows_of(species: list[str], group: np.ndarray | None = None) -> Any:
    tree, labels = TaxonomyTree.from_lineages(("order", "species"), np.array([[LINEAGES[name], name] for name in species]))
    names = np.array([f"{i}.jpg" for i in range(len(species))])
    return SimpleNamespace(records=SimpleNamespace(tree=tree, labels=labels, files=SimpleNamespace(names=names)), group=group)


def values(differences: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    return {row["metric"]: (row["first"], row["other"]) for row in differences}


def test_only_photographs_whose_label_both_models_have_are_compared():
    rows = rows_of(["a1", "a2", "b1", "b2", "c1"])
    first = measured("first", tree_of("a1", "a2", "b1", "c1"), rows, ["a1", "a1", "b1", "b1", "b1"])
    other = measured("other", tree_of("d1", "c1", "b2", "b1", "a1"), rows, ["d1", "b1", "b1", "b2", "c1"])
    found = compare(first, other, rows)
    own = values(found.differences)
    # a2 is unknown to the other model, b2 to the first one: species are those of photographs 0, 2 and 4
    assert own["species/top1"] == own["species/top5"] == own["species/macro_top1"] == pytest.approx((2 / 3, 2 / 3))
    assert own["order/top1"] == pytest.approx((4 / 5, 3 / 5)) and own["species/loss"] == (6.0, 6.0)
    assert own["species/ece"] == pytest.approx((1 / 6, 1 / 6)) and own["chain"] == pytest.approx((2 / 3, 2 / 3))
    assert own["hd1"] == pytest.approx((4 / 3, 4 / 3)) and own["severity"] == (4.0, 4.0)
    assert found.name == "other" and found.photographs == 5


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_of_the_mean_over_classes_is_not_shifted_by_classes_that_resamples_lack(seed):
    """Twelve of 15 classes have one photograph or two, so that about a quarter of the classes is missing in each resample."""
    label = np.repeat(np.arange(15), [9, 9, 9] + 6 * [2] + 6 * [1])
    random = np.random.default_rng(seed)
    first, other = (paired_bins.macro(label, random.random(len(label)) < share) for share in (0.8, 0.3))
    own, second, difference, low, high = paired_bins.paired(first, other, None)
    expected = [np.mean([one.values[label == k].mean() for k in range(15)]) for one in (first, other)]
    assert [own, second] == pytest.approx(expected) and difference == pytest.approx(expected[1] - expected[0])
    assert low < difference < high and abs((low + high) / 2 - difference) < 0.15 * (high - low)
    always = paired_bins.paired(paired_bins.macro(label, label == 0), paired_bins.macro(label, label < 0), None)
    assert always[2] == pytest.approx(-1 / 15) and always[3] <= always[2] <= always[4], "a class that no resample lacks is always right"


def test_the_same_taxon_under_another_number_is_no_disagreement():
    rows = rows_of(["a1", "a2", "b1", "b2", "c1"])
    first = measured("first", tree_of("a1", "a2", "b1", "c1"), rows, ["a1", "a1", "b1", "b1", "b1"])
    other = measured("other", tree_of("d1", "c1", "b2", "b1", "a1"), rows, ["d1", "a1", "b1", "b2", "c1"])
    listed = {row.pop("photograph"): row for row in compare(first, other, rows).disagreements}
    half = {"model": "other", "first_probability": pytest.approx(0.5), "other_probability": pytest.approx(0.5)}
    assert listed == {
        # a taxon that the first model does not have, at the coarsest rank
        "0.jpg": half | {"rank": "order", "label": "A", "first": "A", "other": "D", "first_right": 1, "other_right": 0},
        # the first model does not have the label
        "3.jpg": half | {"rank": "species", "label": "b2", "first": "b1", "other": "b2", "first_right": None, "other_right": 1},
        "4.jpg": half | {"rank": "order", "label": "C", "first": "B", "other": "C", "first_right": 0, "other_right": 1},
    }


def test_a_model_that_predicts_no_taxon_disagrees_with_one_that_predicts_an_unknown_taxon():
    rows = rows_of(["a1", "a1", "a1"])
    first = measured("first", tree_of("a1"), rows, ["a1", "a1", "a1"])
    other = measured("other", tree_of("a1", "d1"), rows, ["d1", "a1", "a1"])
    first.table.path[:2, 1] = other.table.path[1:, 1] = -1
    other.table.path[0, 0] = 0
    listed = [
        (row["photograph"], row["first"], row["other"], row["first_probability"]) for row in compare(first, other, rows).disagreements
    ]
    assert listed == [("0.jpg", None, "d1", None), ("2.jpg", "a1", None, pytest.approx(0.5))]


def test_models_of_other_ranks_are_compared_at_the_common_ones():
    rows = rows_of(["a1", "a2", "b1"])
    first = measured("first", tree_of("a1", "a2", "b1"), rows, ["a1", "a1", "b1"])
    other = measured("other", tree_of("b1", "a2", "a1", ranks=("species",)), rows, ["a1", "a2", "b1"])
    found = compare(first, other, rows)
    names = {f"species/{name}" for name in ("top1", "top5", "loss", "macro_top1", "ece")}
    assert values(found.differences).keys() == names and values(found.differences)["species/top1"] == pytest.approx((2 / 3, 1))
    assert [tuple(row[name] for name in ("photograph", "rank", "first", "other")) for row in found.disagreements] == [
        ("1.jpg", "species", "a1", "a2")
    ]
    family = TaxonomyTree.from_lineages(("family",), np.array([["A"], ["B"]]))[0]
    none: Any = SimpleNamespace(name="none", model=SimpleNamespace(tree=family))
    with pytest.raises(ConfigError, match="none has none of the ranks order, species"):
        compare(first, none, rows)


def test_photographs_that_one_model_could_not_read_are_left_out():
    rows = rows_of(["a1", "a2", "b1", "b2"], np.array([0, 0, 1, 1]))
    tree = tree_of("a1", "a2", "b1", "b2")
    first = measured("first", tree, rows, ["a1", "a2", "b1", "b1"], unread=0)
    other = measured("other", tree, rows, ["a2", "a1", "b1", "b2"], unread=3)
    found = compare(first, other, rows)
    assert found.photographs == 2 and [row["photograph"] for row in found.disagreements] == ["1.jpg"]
    own = values(found.differences)
    assert own["species/top1"] == own["species/macro_top1"] == (1.0, 0.5) and own["species/ece"] == pytest.approx((0.5, 0.0), abs=1e-6)
    of_all = {row["metric"]: row["low"] for row in found.differences}
    assert of_all["species/top1"] == of_all["species/macro_top1"] == -1.0
    of_one = compare(first, other, rows_of(["a1", "a2", "b1", "b2"], np.zeros(4, int))).differences
    assert all(np.isnan(row["low"]) for row in of_one), "one observation has no interval"
    nothing = compare(
        measured("first", tree, rows_of(["a1"]), ["a1"], unread=0), measured("other", tree, rows_of(["a1"]), ["a1"]), rows_of(["a1"])
    )
    assert nothing.photographs == 0 and np.isnan([value for row in nothing.differences for value in list(row.values())[1:]]).all()
