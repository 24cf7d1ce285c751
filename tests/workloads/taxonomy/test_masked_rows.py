"""Test top-1 over the rows that have the metadata which a pass masks: against a slow loop, and the rows where it would repeat `top1`."""

import math

import numpy as np
import pytest
import torch

from linnaeus.progress.stages import validation_passes
from linnaeus.workloads.taxonomy.metrics.accuracy_table import accuracy_headline, accuracy_table
from tests.workloads.taxonomy.test_taxonomy_metrics import CPU, N, TaxonomyMetrics, case, feed, training_counts

COMPONENTS = ("SPATIAL", "TEMPORAL", "ELEVATION")
PASSES = validation_passes([("SPATIAL",), ("TEMPORAL",), ("SPATIAL", "TEMPORAL")], ("SPATIAL", "TEMPORAL"))
METADATA = {
    "SPATIAL": np.arange(N) % 2 == 0,
    "TEMPORAL": np.arange(N) % 3 == 0,
    "ELEVATION": np.zeros(N, dtype=bool),
}


def measured(key, metadata=METADATA, cuts=((0, N),), seed=0):
    """Return the results of a pass with those that are computed at the end, the tree, the scores and the batch."""
    tree, scores, batch = case("linear", seed=seed)
    metrics = TaxonomyMetrics(tree, CPU, training_counts(tree), None, N, metadata=metadata)
    metrics.begin(next(p for p in PASSES if p.key == key), PASSES)
    sums = feed(metrics, scores, batch, cuts)
    return metrics.compute(sums, metrics.counts) | metrics.compute_at_end(metrics.counts), tree, scores, batch


def slow(tree, scores, batch, rank, having):
    """Return top-1 over the labelled samples of which `having` is True."""
    r, right = tree.ranks.index(rank), []
    for row in range(N):
        label = int(batch["label"][row, r])
        if label >= 0 and batch["weight"][row] > 0 and having[int(batch["sample"][row])]:
            right.append(int(scores.path()[row, r]) == label)
    return sum(right) / len(right)


@pytest.mark.parametrize("seed", [0, 1])
def test_top1_over_the_rows_that_have_what_is_masked(seed):
    having = {
        "SPATIAL": METADATA["SPATIAL"],
        "TEMPORAL": METADATA["TEMPORAL"],
        "SPATIAL_TEMPORAL": METADATA["SPATIAL"] | METADATA["TEMPORAL"],
        "meta": METADATA["SPATIAL"] | METADATA["TEMPORAL"],
    }
    normal = measured("val", seed=seed)[0]
    for name, own in having.items():
        found, tree, scores, batch = measured(f"val_mask_{name}", cuts=((0, 9), (9, 30), (30, N)), seed=seed)
        for rank in tree.ranks:
            key = f"{rank}/with_{name}_top1"
            assert found[key] == normal[key] == slow(tree, scores, batch, rank, own), "the scores of both passes are equal here"
            assert found[f"{key}_low"] <= found[key] <= found[f"{key}_high"]
        others = {key.split("/")[1] for key in found if "/with_" in key}
        assert others == {f"with_{name}_top1{end}" for end in ("", "_low", "_high")}, "only what this pass masks"


def test_a_component_of_every_row_or_of_none_gives_no_second_number():
    for rows in (np.ones(N, dtype=bool), np.zeros(N, dtype=bool)):
        found = measured("val_mask_SPATIAL", {**METADATA, "SPATIAL": rows})[0]
        assert not [key for key in found if "with_" in key]


def test_a_rank_at_which_only_those_rows_are_labelled_is_undefined():
    tree, scores, batch = case("linear")
    batch["label"][~torch.from_numpy(METADATA["SPATIAL"])[batch["sample"]], -1] = -1
    metrics = TaxonomyMetrics(tree, CPU, training_counts(tree), None, N, metadata=METADATA)
    metrics.begin(PASSES[2], PASSES)
    found = metrics.compute(feed(metrics, scores, batch), metrics.counts)
    assert math.isnan(found[f"{tree.ranks[-1]}/with_SPATIAL_top1"]) and found[f"{tree.ranks[0]}/with_SPATIAL_top1"] >= 0


FINAL = {
    "val/species/top1": 0.885,
    "val/species/with_meta_top1": 0.9,
    "val/species/with_SPATIAL_top1": 0.8,
    "val_mask_meta/species/top1": 0.821,
    "val_mask_meta/species/with_meta_top1": 0.7,
    "val_mask_SPATIAL/species/top1": 0.85,
    "val_mask_SPATIAL/species/with_SPATIAL_top1": 0.775,
}


def test_the_table_of_costs_and_the_headline():
    lines = [" ".join(line.split()) for line in accuracy_table(("species",), ("SPATIAL", "TEMPORAL"), FINAL, {})]
    assert lines[-3:] == [
        "rows rank top-1 masked difference",
        "with any metadata species 90.0 70.0 -20.0",
        "with spatial species 80.0 77.5 -2.5",
    ]
    assert accuracy_headline(("species",), FINAL, {}) == [
        "species 88.5 %; without metadata 82.1",
        "rows with metadata: species 90.0 %; without metadata 70.0",
    ]
    plain = {name: value for name, value in FINAL.items() if "with_" not in name}
    assert "difference" not in str(accuracy_table(("species",), ("SPATIAL",), plain, {})), "every row has the metadata"
    assert accuracy_headline(("species",), plain, {}) == ["species 88.5 %; without metadata 82.1"]
