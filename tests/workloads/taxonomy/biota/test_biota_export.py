"""`python -m linnaeus.workloads.taxonomy.biota`: the export, the sheet, the ceilings, and errors of one line."""

import csv
import datetime
import sys

import numpy as np
import pytest
from PIL import Image

from linnaeus.workloads.taxonomy.biota import build_source
from linnaeus.workloads.taxonomy.biota.__main__ import export, main
from linnaeus.workloads.taxonomy.biota.oracle import CONDITIONS
from tests import fork_server


@pytest.fixture(scope="module")
def exported(biota, tmp_path_factory):
    directory = tmp_path_factory.mktemp("biota") / "out"
    config = biota(120, 40, 32)
    assert export(config, directory) == 160
    with (directory / "manifest.csv").open(newline="", encoding="utf-8") as file:
        return build_source(config), directory, list(csv.DictReader(file))


def test_the_manifest_has_the_values_of_the_source(exported):
    source, _, rows = exported
    header = ["path", "order", "family", "genus", "species", "latitude", "longitude", "uncertainty", "date", "time", "elevation", "split"]
    assert list(rows[0]) == header
    assert [r["split"] for r in rows] == ["train"] * 120 + ["val"] * 40
    metadata = source.metadata
    for i, row in enumerate(rows):
        taxa = zip(source.tree.names, source.labels[i], strict=True)
        assert [row[rank] for rank in source.tree.ranks] == [names[c] if c >= 0 else "" for names, c in taxa]
        for name in ("latitude", "longitude", "uncertainty", "elevation"):
            assert float(row[name] or "nan") == pytest.approx(getattr(metadata, name)[i], abs=0.051, nan_ok=True)
        assert (row["date"] == row["time"] == "") == bool(np.isnan(metadata.day[i]))
        if row["date"]:
            assert datetime.date.fromisoformat(row["date"]).timetuple().tm_yday - 1 == int(float(metadata.day[i]) * 365)
            time = datetime.time.fromisoformat(row["time"])
            assert time.hour + time.minute / 60 + time.second / 3600 == pytest.approx(metadata.hour[i], abs=1 / 3600 + 1e-4)
    assert all(any(row[name] == "" for row in rows) for name in ("species", "latitude", "date", "elevation"))


def test_the_photographs_are_those_of_the_source(exported):
    source, directory, rows = exported
    drawn = source.images.read(np.arange(160))
    for i in range(0, 160, 7):
        with Image.open(directory / rows[i]["path"]) as image:
            assert image.format == "JPEG"
            written = np.asarray(image.convert("RGB")).astype(int)
        assert np.abs(written - drawn[i]).mean() < 12
    assert {p.name for p in directory.iterdir()} == {"images", "manifest.csv"}
    assert len(list((directory / "images").iterdir())) == 160


def test_the_sheet_shows_every_species(tmp_path, capsys):
    assert main(["sheet", str(tmp_path / "sheet.png"), "--size", "48"]) == 0
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.size == (3 * (190 + 6 * 48), 40 * 48)
    assert "sheet.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["export"], "DIR"),
        (["export", "{full}"], "not empty"),
        (["export", "{file}"], "is.txt"),
        (["export", "x", "--train", "0"], "at least 2"),
        (["export", "x", "--train", "many"], "invalid int value"),
        (["export", "x", "--size", "4"], "at least 8"),
        (["sheet", "x.jpg"], ".png"),
        (["sheet", "{full}/none/x.png"], "x.png"),
        (["ceilings", "--world", "-1"], "at least 0"),
        (["fly"], "fly"),
        ([], "required"),
    ],
)
def test_a_mistake_gets_one_line_and_status_2(argv, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "is.txt").write_text("")
    argv = [a.format(full=tmp_path, file=tmp_path / "is.txt") for a in argv]
    try:
        status = main(argv)
    except SystemExit as exit_:
        status = exit_.code
    error = capsys.readouterr().err
    assert status == 2 and message in error and error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["is.txt"]


def test_it_runs_as_a_module_and_prints_the_ceilings():
    command = [sys.executable, "-m", "linnaeus.workloads.taxonomy.biota", "ceilings", "--train", "500", "--validation", "200"]
    result = fork_server.run(command, cwd=fork_server.ROOT)
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()[2:]] == list(CONDITIONS)
