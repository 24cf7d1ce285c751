"""A metadata component that no training photograph had does not change predictions: its part of the network has random weights."""

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
from tests import runs
from tests.workloads.taxonomy.trained.conftest import SETTINGS, Finished
from tests.workloads.taxonomy.trained.test_exported_forms import classifier


@pytest.fixture(scope="module")
def run(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose validation photographs have an elevation and whose training photographs have none."""
    folder = tmp_path_factory.mktemp("untrained")
    rows = finished.rows()
    with (folder / "manifest.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        for row in rows:
            elevation = "" if row["split"] == "train" else "2500"
            table.writerow(row | {"path": str(finished.manifest.parent / row["path"]), "elevation": elevation})
    given = [*SETTINGS, f"data.path={folder / 'manifest.csv'}", f"run.root={folder}"]
    config = runs.composed([*(text for text in runs.TINY if not text.startswith("data.validation_batch")), *given])
    assert runs.start(config) == 0
    return runs.run_path(config)


def test_predictions_and_validation_do_not_read_it(run: Path, finished: Finished, tmp_path: Path):
    assert export_cli.main([str(run), str(tmp_path / "bundle")]) == 0
    assert 'date="2026-05-01")' in (tmp_path / "bundle" / "README.md").read_text()  # without an elevation
    place, photograph = {"latitude": 52.1, "longitude": 4.3}, finished.photograph(1)
    for model in (linnaeus.load_model(run), linnaeus.load_model(tmp_path / "bundle")):
        assert model.components == ("SPATIAL", "TEMPORAL") and model.description.untrained == ("ELEVATION",)
        alone, high = model.predict(photograph), model.predict(photograph, elevation=4000)
        assert high == alone and high.metadata == ()
        placed = model.predict(photograph, **place, elevation=4000)
        assert placed == model.predict(photograph, **place) != alone and placed.metadata == ("SPATIAL",)
    final = runs.summary(run)["final"]
    assert final["val/loss"] == final["val_mask_ELEVATION/loss"] != final["val_mask_SPATIAL/loss"]


def test_a_run_from_other_weights_reads_all_components(run: Path):
    text = (run / "config.yaml").read_text()
    assert "init_from: null" in text
    (run / "config.yaml").write_text(text.replace("init_from: null", "init_from: elsewhere"))
    try:
        assert linnaeus.load_model(run).components == ("SPATIAL", "TEMPORAL", "ELEVATION")
    finally:
        (run / "config.yaml").write_text(text)


@pytest.mark.parametrize("untrained", [("SPATIAL",), ("TEMPORAL",), ("SPATIAL", "TEMPORAL")])
def test_the_network_and_its_graph_get_the_other_components_in_their_places(untrained):
    made = classifier("conditional")
    found = export_check.examples(made, None)
    inputs, _ = found.batches[-1]
    keep = [name not in untrained for name in made.components]
    expected = made.scored(inputs["image"].transpose(0, 2, 3, 1), inputs["meta"], inputs["present"] & keep)
    made.description = replace(made.description, untrained=untrained)
    made.use_prior(None)
    columns = [kept for kept, width in zip(keep, (5, 7), strict=True) for _ in range(width)]
    own = [torch.from_numpy(values) for values in (inputs["image"], inputs["meta"][:, columns], inputs["present"][:, keep])]
    program = export_program(made, own if any(keep) else own[:1])
    *probabilities, _ = program.module()(*(own if any(keep) else own[:1])).values()
    for one, other in zip(probabilities, expected.probabilities, strict=True):
        assert (one - torch.from_numpy(other)).abs().max() < 1e-6
