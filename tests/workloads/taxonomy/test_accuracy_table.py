"""Test the tables at the end of a run."""

import math

from linnaeus.workloads.taxonomy.metrics.accuracy_table import accuracy_headline, accuracy_table

RANKS = ("genus", "species")
FINAL = {
    "val/genus/top1": 0.75,
    "val/genus/top1_low": 0.7,
    "val/genus/top1_high": 0.805,
    "val/species/top1": 0.5,
    "val/species/macro_top1": 0.25,
    "val/species/ece": 0.123,
    "val/chain": 0.5,
    "val/inconsistent": 0.034,
    "val/hd1": 0.8,
    "val/hd5": 1.5,
    "val/hd20": math.nan,
    "val/severity": 1.6,
    "val/crm_hd5": 1.25,
    "val/aurc": 0.3,
    "val_mask_SPATIAL/species/top1": 0.4,
}


def cells(line):
    return line.replace("without ", "without:").split()


def test_table_of_ranks_and_table_of_passes():
    lines = [cells(line) for line in accuracy_table(RANKS, ("SPATIAL",), FINAL, {})]
    assert lines[1] == ["all", "species", "50.0", "25.0", "-"]
    assert lines[2] == ["all", "genus", "75.0", "-", "70.0-80.5"]
    assert lines[3] == ["without:spatial", "species", "40.0", "-", "-"]
    assert lines[6][1:] == ["chain", "incons.", "hd1", "hd5", "hd20", "severity", "crm", "hd5", "ece", "aurc"]
    assert lines[7] == ["all", "50.0", "3.4", "0.80", "1.50", "-", "1.60", "1.25", "12.3", "30.0"]
    assert lines[8] == ["without:spatial", *"-" * 9]


def test_accuracies_with_ceilings():
    lines = [cells(line) for line in accuracy_table(RANKS, (), FINAL, {"with_meta/genus/top1": 0.8, "with_meta/genus/macro": 0.9})]
    assert lines[3] == ["none", "genus", "75.0", "80.0", "94%", "-", "70.0-80.5"]


def test_lines_fit_a_screen_and_columns_align():
    for ceilings in ({}, {"with_meta/genus/top1": 0.8}):
        lines = accuracy_table(RANKS, ("SPATIAL",), FINAL, ceilings)
        assert max(map(len, lines)) <= 110
        assert len({len(line) for line in lines[:3]}) == 1 and len({len(line) for line in lines[-3:]}) == 1
    passes = accuracy_table(RANKS, ("ELEVATION",), FINAL | {"val_mask_ELEVATION/chain": 1.0}, {})[-4:]
    assert max(map(len, passes)) < 80 and passes[0].startswith("metadata")
    assert accuracy_table(RANKS, (), {}, {}) == []


def test_the_headline_is_the_finest_rank_with_its_interval_its_ceiling_and_the_accuracy_without_metadata():
    final = {"species/top1": 0.885, "species/top1_low": 0.87, "species/top1_high": 0.9, "order/top1": 0.99, "genus/top1": 0.934}
    final = {f"val/{name}": value for name, value in final.items()} | {"val_mask_meta/species/top1": 0.821}
    lines = accuracy_headline(("order", *RANKS), final, {"with_meta/species/top1": 0.977})
    assert lines == ["species 88.5 % [87.0, 90.0] of 97.7 possible; without metadata 82.1", "genus 93.4 %  order 99.0 %"]
    averaged = {"val_ema/species/top1": 0.5, "val/species/top1": 0.4}
    assert accuracy_headline(RANKS, averaged, {}) == ["species 50.0 %"] and accuracy_headline(RANKS, {"val/loss": 1.0}, {}) == []
