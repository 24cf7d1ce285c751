"""Run the commands of docs/data.md that lead from a GBIF download and from a camera-trap export to a trained model, as printed."""

import csv
import re
import shlex
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import linnaeus.__main__
import main
from linnaeus.workloads.taxonomy.manifest.splitting.split import LEFT_OUT
from linnaeus.workloads.taxonomy.store import store_layout
from tests.workloads.taxonomy.sources import darwin_core_writer
from tests.workloads.taxonomy.sources.test_camtrap_dp import biota_package, csv_of
from tests.workloads.taxonomy.sources.test_darwin_core import core_of, media_of

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "data.md").read_text()
SMALL = ["trainer.threads=1", "trainer.device=cpu", "trainer.num_workers=0", "trainer.length=2steps", "lr_scheduler.warmup=0steps"]
SMALL += ["data.image_size=16", "model.backbone=test_vit", "trainer.precision=float32", "trainer.global_batch_size=16"]


def run(section: str, monkeypatch) -> None:
    """Run the commands of a section of the page. Each must end with status 0."""
    text = PAGE[PAGE.index(f"## {section}\n") :]
    for line in re.search(r"```bash\n(.*?)```", text, re.S)[1].splitlines():
        program, *words = shlex.split(line)
        if program == "linnaeus":
            more = ["--processes=1"] if words[0] in ("doctor", "prepare") else []
            assert linnaeus.__main__.main([*words, *more]) == 0, line
        else:
            monkeypatch.setattr("sys.argv", [*words, *SMALL])
            assert main.main() == 0, line


def sides(store: str, column: str) -> dict[str, set[str]]:
    """Return the values of a column of a store that training and test rows have."""
    split = store_layout.read_array(Path(store) / "split.npy")
    groups = store_layout.read_columns(Path(store), store_layout.read_record(Path(store))["columns"])[column]
    values = np.array([groups.values[code] for code in groups.codes.tolist()])
    return {"test": set(values[split == LEFT_OUT].tolist()), "training": set(values[split != LEFT_OUT].tolist())}


@pytest.mark.slow
def test_from_a_gbif_download_to_a_trained_model(records, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    media = media_of(records, f"file://{records.folder}/")
    media = [row | {"identifier": row["identifier"].replace("%20", " ")} for row in media]
    core = [{name: cell for name, cell in row.items() if name != "split"} for row in core_of(records)]
    core = [row | {"occurrenceID": f"o{i // 2}"} for i, row in enumerate(core)]
    core[5] |= {"decimalLatitude": "0", "decimalLongitude": "0"}
    darwin_core_writer.write(tmp_path / "0012345-260101.zip", darwin_core_writer.archive(core, media))
    Path("more").mkdir()
    shutil.copy(records.folder / records.rows[0]["path"], "more/1.png")
    run("From a GBIF download to a trained model", monkeypatch)
    with open("gbif.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(records.rows) and rows[5]["decimalLatitude"] == rows[5]["decimalLongitude"] == ""
    found = sides("gbif-store", "occurrenceID")
    assert found["test"] and not found["test"] & found["training"]
    assert len(list(Path("outputs/photos/gbif/evaluations").glob("test-*/metrics.json"))) == 1
    assert len(Path("answers.csv").read_text().splitlines()) == 2


@pytest.mark.slow
def test_from_a_camera_trap_export_to_a_trained_model(records, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    biota_package(records, tmp_path)
    with open("deployments.csv", newline="") as file:
        deployments = [row | {"locationID": f"place {i // 4}"} for i, row in enumerate(csv.DictReader(file))]
    Path("deployments.csv").write_text(csv_of(deployments))
    with zipfile.ZipFile("package.zip", "w") as package:
        for name in ("datapackage.json", "deployments.csv", "media.csv", "observations.csv"):
            package.write(name)
        for row in records.rows:
            package.write(records.folder / row["path"], row["path"])
    path = records.rows[0]["path"]
    (tmp_path / path).parent.mkdir()
    shutil.copy(records.folder / path, tmp_path / path)
    Path("media.csv").write_text(f"mediaID,deploymentID,timestamp,filePath\nm1,d1,2020-05-30T04:57:37+02:00,{path}\n")
    run("From a camera-trap export to a trained model", monkeypatch)
    found = sides("trap-store", "locationID")
    assert found["test"] and not found["test"] & found["training"]
    assert len(list(Path("outputs/photos/trap/evaluations").glob("test-*/metrics.json"))) == 1
    with open("observations.csv", newline="") as file:
        assert [row["mediaID"] for row in csv.DictReader(file)] == ["m1"]
