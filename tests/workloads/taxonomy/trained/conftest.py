"""Make a finished run on photographs of biota with place and time, its manifest, its bundle and its exported forms."""

from __future__ import annotations

import contextlib
import csv
import io
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from linnaeus.workloads import export_cli
from linnaeus.workloads.taxonomy.biota.__main__ import biota_config, export
from linnaeus.workloads.taxonomy.trained.export.export_forms import ONNX_PACKAGES
from tests import runs

SETTINGS = [
    "data=manifest",
    "data.image_size=16",
    "augment=none",
    "augment.center_crop=0.8",
    "trainer.length=4steps",
    "schedule.checkpoint=[100%]",
]
SETTINGS += ["schedule.validate=[100%]", "schedule.best_monitor=val/loss", "run.experiment=photos", "run.name=run"]
SETTINGS += ["data.validation_batch=16"]  # of a validation and of `linnaeus evaluate`

HAS_ONNX = all(map(find_spec, ONNX_PACKAGES))


class Finished(NamedTuple):
    run: Path
    bundle: Path
    manifest: Path

    def rows(self) -> list[dict[str, str]]:
        with self.manifest.open(newline="") as file:
            return list(csv.DictReader(file))

    def photograph(self, number: int) -> Path:
        return self.manifest.parent / self.rows()[number]["path"]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("trained")
    export(biota_config(train=60, validation=30, size=24), folder / "photographs")
    manifest = folder / "photographs" / "manifest.csv"
    settings = [text for text in runs.TINY if not text.startswith(("schedule.checkpoint", "data.validation_batch"))]
    config = runs.composed([*settings, *SETTINGS, f"data.path={manifest}", f"run.root={folder}"])
    assert runs.start(config) == 0
    run = runs.run_path(config)
    assert export_cli.main([str(run), str(folder / "bundle")]) == 0
    return Finished(run, folder / "bundle", manifest)


class Forms(NamedTuple):
    folder: Path
    onnx: bool  # False if the extra `export` is not installed
    printed: str


@pytest.fixture(scope="session")
def forms(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Forms:
    folder, output = tmp_path_factory.mktemp("forms") / "forms", io.StringIO()
    with contextlib.redirect_stdout(output):
        assert export_cli.main([str(finished.run), str(folder), "--form", "onnx,torch_export" if HAS_ONNX else "torch_export"]) == 0
    return Forms(folder, HAS_ONNX, output.getvalue())
