"""Thresholds, temperatures and the shares answered at each rank: from a calibration to its file and the model card."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest

import linnaeus
from linnaeus.errors import ConfigError
from linnaeus.workloads import export_cli
from linnaeus.workloads.taxonomy.trained.calibrate import calibrate_cli
from linnaeus.workloads.taxonomy.trained.export import weak_clades
from linnaeus.workloads.taxonomy.trained.export.model_card import model_card
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration
from linnaeus.workloads.taxonomy.trained.probabilities.rollup import Paths, answered_at
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.trained_models import validation_folder
from tests.workloads.taxonomy.trained.test_guarantee import calibrated, calibrated_once

__all__ = ["calibrated", "calibrated_once"]  # fixtures

CONFIDENCE = np.array([[0.9, 0.8, 0.7], [0.9, 0.8, 0.8], [0.6, 0.5, 0.1], [0.3, 0.2, 0.1]])
PATHS = Paths(np.array([[0, 1, 2], [0, 1, -1], [0, 1, 2], [1, 2, 3]]), CONFIDENCE)


def test_shares_are_counted_at_the_rank_of_the_answer():
    assert answered_at(PATHS, 0.65) == (0.0, 0.25, 0.25)  # the third and the fourth have no answer
    assert answered_at(PATHS, 0.55) == (0.25, 0.25, 0.25)
    assert answered_at(PATHS, 2.0) == (0.0, 0.0, 0.0) == answered_at(Paths(*(values[:0] for values in PATHS)), 0.5)


def test_the_card_has_the_thresholds_and_the_shares_of_the_calibration(finished, calibrated, tmp_path):
    assert export_cli.main([str(calibrated), str(tmp_path / "bundle")]) == 0
    card, model = (tmp_path / "bundle" / "README.md").read_text(), linnaeus.load_model(tmp_path / "bundle")
    found, ranks = model.calibration, model.tree.ranks
    assert (
        f"| precision | threshold | threshold on average | answered, % | {' | '.join(f'{rank}, %' for rank in reversed(ranks))} |" in card
    )
    for one in found.precisions:
        assert len(one.answered_at) == len(ranks) and sum(one.answered_at) == pytest.approx(one.answered)
        shares = " | ".join(f"{100 * share:.1f}" for share in (one.answered, *reversed(one.answered_at)))
        lines = [line for line in card.splitlines() if line.startswith(f"| {one.precision:g} |") and line.endswith(f" {shares} |")]
        assert len(lines) == 1 and (f"{one.threshold:.4f}" if one.threshold <= 1 else "none") in lines[0]
    assert all(f"| {rank} | {temperature:.3f} |" in card for rank, temperature in zip(ranks, found.temperature, strict=True))
    assert f"Calibrated on {found.photographs} photographs of the manifest manifest.csv. An answer" in card
    assert all("gets one of them. Other known weaknesses" in text for text in (card, (finished.bundle / "README.md").read_text()))
    notes = {"notes": ["store of 9 photographs, from data=manifest data.path=https://user:SECRET@host/a.csv?sig=SECRET"]}  # of an old run
    notes["notes"].append("species: 1 label set to null (<b>x</b>)")
    gated = model_card(model.description, model.tree, notes, {}, [], replace(found, kept=0.95, familiar=0.25))
    assert "- species: 1 label set to null (&lt;b&gt;x&lt;/b&gt;)\n" in gated and "## Weak taxa" not in gated
    assert "data.path=https://host/a.csv" in gated and "SECRET" not in gated
    assert '"none of these" if its familiarity is below 0.2500. 95 % of the photographs' in gated
    head, first, *_ = calibrate_cli.table(model, found, True)
    assert head.split()[-len(ranks) :] == [*reversed(ranks)] and len(first) == len(head)
    assert "The model is not calibrated" in (finished.bundle / "README.md").read_text()


def test_a_calibration_without_shares_is_read(calibrated):
    content = json.loads((calibrated / "calibration.json").read_text())
    again = Calibration.from_plain(content, len(content["temperature"]))
    assert Calibration.from_plain(again.plain(), len(again.temperature)) == again
    with pytest.raises(ConfigError, match="of a model with other ranks"):
        wrong = [one | {"answered_at": [0.5]} for one in content["precisions"]]
        Calibration.from_plain(content | {"precisions": wrong}, len(content["temperature"]))
    for one in content["precisions"]:
        del one["answered_at"]
    assert again.data == "the manifest manifest.csv"
    del content["data"]
    old = Calibration.from_plain(content, len(content["temperature"]))
    assert [one.answered_at for one in old.precisions] == [(), ()] and old.threshold(0.1) == again.threshold(0.1)
    assert calibrate_cli.table(linnaeus.load_model(calibrated), old, True)


def test_weak_clades_are_those_below_the_share_of_all_photographs():
    lineages = np.array([["F", "<i>|*", "a"], ["F", "<i>|*", "b"], ["F", "G", "c"], ["F", "H", "d"], ["E", "I", "e"]])
    tree, _ = TaxonomyTree.from_lineages(("family", "genus", "species"), lineages)
    counts = {"a": (8, 1), "b": (2, 2), "c": (20, 10), "d": (10, 10), "e": (9, 0)}  # species -> validation photographs, right ones
    rows = [{"rank": "species", "count": str(counts[name][0]), "right": str(counts[name][1])} for name in tree.names[2]]
    assert weak_clades.weak_clades(tree, [{"rank": "genus", "count": "9", "right": "9"}, *rows]).splitlines()[2:] == [
        "Lowest shares of right species on the validation photographs of the run, for each genus with 10 or more of them.",
        "",
        "| genus | photographs | species right, % |",
        "|---|---:|---:|",
        "| &lt;i&gt;\\|\\* | 10 | 30.0 |",  # 23 of 49 are right; e has too few
    ]
    few = [{**row, "count": "6", "right": str(int(name < "c"))} for name, row in zip(tree.names[2], rows, strict=True)]
    assert weak_clades.weak_clades(tree, few) == "", "most are in genera of fewer than 10, and one family has 10"
    assert weak_clades.weak_clades(tree, [{**row, "right": row["count"]} for row in rows]) == weak_clades.weak_clades(tree, []) == ""
    flat, _ = TaxonomyTree.from_lineages(("species",), np.array([["a"], ["b"]]))
    own = [{"rank": "species", "count": "10", "right": right} for right in ("3", "9")]
    assert weak_clades.weak_clades(flat, own).endswith("| a | 10 | 30.0 |")


def test_the_card_of_a_bundle_has_the_weak_clades_of_its_validation(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(weak_clades, "FEWEST", 2)
    assert export_cli.main([str(finished.run), str(tmp_path / "bundle")]) == 0
    card = (tmp_path / "bundle" / "README.md").read_text()
    table = card.partition("## Weak taxa")[2].partition("\n##")[0]
    name, count, share = re.search(r"\| \w+ \| photographs .*\n.*\n\| (\w+) \| (\d+) \| ([\d.]+) \|", table).groups()
    samples = finished.run / "validation" / "step-00000004" / "val-samples.csv"
    with samples.open(newline="") as file:
        own = [row for row in csv.DictReader(file) if f"|{name}|" in f"|{row['label']}|" and row["species/top1"]]
    assert len(own) == int(count) and f"{100 * np.mean([float(row['species/top1']) for row in own]):.1f}" == share


def test_a_step_in_the_name_of_a_run_is_not_that_of_the_checkpoint(tmp_path):
    run = tmp_path / "step-1"
    assert validation_folder(run, str(run / "checkpoints" / "step-00000020")) == run / "validation" / "step-00000020"
    assert validation_folder(run, "model.safetensors") is None
