"""Metadata that no training photograph had do not change predictions: the weights that would read them are random."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import linnaeus
from linnaeus.workloads import export_cli
from linnaeus.workloads.taxonomy.trained.export import export_check
from linnaeus.workloads.taxonomy.trained.export.exported_network import export_program
from linnaeus.workloads.taxonomy.trained.predict import predict_cli
from tests import runs
from tests.workloads.taxonomy.trained.conftest import SETTINGS, Finished
from tests.workloads.taxonomy.trained.test_exported_forms import classifier


@pytest.fixture(autouse=True)
def threads_of_the_tests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)


@pytest.fixture(scope="module")
def run(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose validation photographs have elevation, time and uncertainty, and whose training photographs have none of them."""
    folder = tmp_path_factory.mktemp("untrained")
    rows = finished.rows()
    with (folder / "manifest.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        for row in rows:
            more = {"elevation": "2500", "time": "16:10" if row["date"] else "", "uncertainty": "30" if row["latitude"] else ""}
            more = dict.fromkeys(more, "") if row["split"] == "train" else more
            table.writerow(row | {"path": str(finished.manifest.parent / row["path"])} | more)
    given = [*SETTINGS, f"data.path={folder / 'manifest.csv'}", f"run.root={folder}"]
    config = runs.composed([*(text for text in runs.TINY if not text.startswith("data.validation_batch")), *given])
    assert runs.start(config) == 0
    return runs.run_path(config)


def test_predictions_and_validation_do_not_read_it(run: Path, finished: Finished, tmp_path: Path):
    assert export_cli.main([str(run), str(tmp_path / "bundle")]) == 0
    assert 'date="2026-05-01")' in (tmp_path / "bundle" / "README.md").read_text()  # without an elevation
    place, photograph = {"latitude": 52.1, "longitude": 4.3}, finished.photograph(1)
    for model in (linnaeus.load_model(run), linnaeus.load_model(tmp_path / "bundle")):
        assert model.components == ("SPATIAL", "TEMPORAL") and model.description.untrained == ("ELEVATION", "uncertainty", "hour")
        alone, high = model.predict(photograph), model.predict(photograph, elevation=4000)
        assert high == alone and high.metadata == ()
        placed = model.predict(photograph, **place, date="2026-05-01", elevation=4000, uncertainty=30_000, time="04:00")
        assert placed == model.predict(photograph, **place, date="2026-05-01") != alone and placed.metadata == ("SPATIAL", "TEMPORAL")
    final = runs.summary(run)["final"]
    assert final["val/loss"] == final["val_mask_ELEVATION/loss"] != final["val_mask_SPATIAL/loss"]
    rows = [row for row in finished.rows() if row["split"] == "val"]
    given = {name: [row[name] or None for row in rows] for name in ("latitude", "longitude", "date")}
    predictions = linnaeus.load_model(run).predict([finished.manifest.parent / row["path"] for row in rows], **given)
    order = [one.path[0].name == row["order"] for one, row in zip(predictions, rows, strict=True)]
    assert sum(order) / len(order) == final["val/order/top1"]


def test_a_line_names_what_has_no_effect(run: Path, finished: Finished, capsys: pytest.CaptureFixture):
    no_effect = "no effect: {} of {}; the model was trained without it"
    given = ["--latitude", "52.1", "--longitude", "4.3", "--uncertainty", "30", "--elevation", "5", "--date", "2026-05-01"]
    assert predict_cli.main([str(run), str(finished.photograph(1)), *given]) == 0
    printed = capsys.readouterr().out
    assert no_effect.format("uncertainty", "1 photograph") in printed and "hour" not in printed
    assert "no effect: --elevation; the model does not read ELEVATION" in printed
    assert predict_cli.main([str(run), "--manifest", str(run.parents[1] / "manifest.csv")]) == 0
    dated, placed = ((sum(bool(row[name]) for row in finished.rows() if row["split"] == "val")) for name in ("date", "latitude"))
    printed = capsys.readouterr().out
    assert no_effect.format("hour", f"{dated} photographs") in printed
    assert no_effect.format("uncertainty", f"{placed} photographs") in printed


def test_a_run_from_other_weights_reads_all_components(run: Path):
    text = (run / "config.yaml").read_text()
    assert "init_from: null" in text
    (run / "config.yaml").write_text(text.replace("init_from: null", "init_from: elsewhere"))
    try:
        assert linnaeus.load_model(run).components == ("SPATIAL", "TEMPORAL", "ELEVATION")
    finally:
        (run / "config.yaml").write_text(text)


@pytest.mark.parametrize("untrained", [("SPATIAL", "hour"), ("TEMPORAL", "uncertainty", "hour"), ("SPATIAL", "TEMPORAL")])
def test_the_network_and_its_graph_get_the_other_components_in_their_places(untrained):
    made = classifier("conditional")
    found = export_check.examples(made, None)
    inputs, _ = found.batches[-1]
    keep = [name not in untrained for name in made.components]
    meta = inputs["meta"].copy()
    meta[:, 3:5] *= "uncertainty" not in untrained
    meta[:, 9:12] *= "hour" not in untrained
    expected = made.scored(inputs["image"].transpose(0, 2, 3, 1), meta, inputs["present"] & keep)
    made.description = replace(made.description, untrained=untrained)
    made.use_prior(None)
    columns = [kept for kept, width in zip(keep, (5, 7), strict=True) for _ in range(width)]
    own = [torch.from_numpy(values) for values in (inputs["image"], inputs["meta"][:, columns], inputs["present"][:, keep])]
    program = export_program(made, own if any(keep) else own[:1])
    *probabilities, _ = program.module()(*(own if any(keep) else own[:1])).values()
    for one, other in zip(probabilities, expected.probabilities, strict=True):
        assert (one - torch.from_numpy(other)).abs().max() < 1e-6
