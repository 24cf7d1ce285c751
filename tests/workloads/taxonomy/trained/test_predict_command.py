"""`linnaeus predict` and `linnaeus export`: files of answers, continued commands, and mistakes of the user."""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import json
import os
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import linnaeus
from linnaeus.errors import ConfigError
from linnaeus.reporting.formatting import format_size
from linnaeus.workloads import export_cli
from linnaeus.workloads.taxonomy.images import image_files
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.trained.batches.journal import Journal
from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import from_manifest, from_paths
from linnaeus.workloads.taxonomy.trained.photographs.photograph_options import add_photographs, photographs_of
from linnaeus.workloads.taxonomy.trained.predict import forward_time, predict_cli
from tests import runs


def answers(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def predict(finished, out, *more: str) -> int:
    return predict_cli.main(
        [str(finished.bundle), "--manifest", str(finished.manifest), "--out", str(out), "--batch-size", "8", "--threads", "1", *more]
    )


def test_json_csv_and_parquet_have_the_answers_of_load_model(finished, tmp_path, capsys):
    pq = pytest.importorskip("pyarrow.parquet")
    for suffix in ("json", "csv", "parquet"):
        assert predict(finished, tmp_path / f"out.{suffix}") == 0
    assert "90 of 90 photographs answered" in capsys.readouterr().out
    content = json.loads((tmp_path / "out.json").read_text())
    table, rows = answers(tmp_path / "out.csv"), finished.rows()
    assert [row["photograph"] for row in table] == [row["path"] for row in rows] == [p["photograph"] for p in content["predictions"]]
    names = ("latitude", "longitude", "uncertainty", "date", "time", "elevation")
    given = {name: [row.get(name) for row in rows] for name in names}
    made = linnaeus.load_model(finished.run).predict([finished.manifest.parent / row["path"] for row in rows], **given)
    finest = content["predictions"][0]["path"].keys()
    for prediction, row, one in zip(made, table, content["predictions"], strict=True):
        assert {taxon.rank: taxon.name for taxon in prediction.path} == {rank: row[rank] for rank in finest}
        assert row["metadata"].split() == list(prediction.metadata) == one["metadata"]
        best = prediction.path[-1]
        assert float(row[f"{best.rank}_probability"]) == pytest.approx(best.probability, abs=1e-5)
        assert float(row["familiarity"]) == pytest.approx(prediction.familiarity, abs=1e-5) and row["outside"] == ""
    parquet = pq.read_table(tmp_path / "out.parquet").to_pylist()
    texts = [name for name in table[0] if not name.endswith("_probability") and name not in ("familiarity", "outside", "calibrated")]
    assert [{name: row[name] or "" for name in texts} for row in parquet] == [{name: row[name] for name in texts} for row in table]


def test_a_killed_command_goes_on_and_ends_with_the_same_bytes(finished, tmp_path, monkeypatch, capsys):
    whole, out = tmp_path / "whole.json", tmp_path / "out.json"
    predict(finished, whole)
    made, answer = [], predict_cli._answer

    def killed(model, batch, asked):
        if len(made) == 4:
            raise SystemError
        made.append(batch.first)
        return answer(model, batch, asked)

    monkeypatch.setattr(predict_cli, "_answer", killed)
    with pytest.raises(SystemError):
        predict(finished, out)
    assert not out.exists()
    journal = tmp_path / "out.json.journal"
    with journal.open("ab") as file:  # a batch that was written in part
        file.write(b'{"photograph": "x"}\n{"photogr')
    made.clear()
    monkeypatch.setattr(predict_cli, "_answer", lambda *a: made.append(a[1].first) or answer(*a))
    capsys.readouterr()
    assert predict(finished, out) == 0
    assert made == list(range(32, 90, 8))
    assert out.read_bytes() == whole.read_bytes() and not journal.exists()
    assert "32 of them were done before" in capsys.readouterr().out


def test_as_many_taxa_are_printed_as_top_asks_for(finished, capsys):
    (_, *ranks), given = linnaeus.load_model(finished.bundle).tree.sizes, [str(finished.bundle), str(finished.photograph(0))]
    for words, number in (([], 3), (["--top", "1"], 1), (["--top", "7"], 7)):
        assert predict_cli.main([*given, "--threads", "1", *words]) == 0
        shown = [line.count(",") + 1 for line in capsys.readouterr().out.splitlines()[-len(ranks) :]]
        assert shown == [min(number, size) for size in ranks]


def test_the_files_name_the_test_time_augmentation(finished, tmp_path, capsys):
    for words, name in (([], "none"), (["--tta", "flip"], "flip")):
        assert predict(finished, tmp_path / f"{name}.json", *words) == 0
        assert predict(finished, tmp_path / f"{name}-boxes.json", "--format", "megadetector", *words) == 0
        printed, content = capsys.readouterr().out, json.loads((tmp_path / f"{name}.json").read_text())
        assert content["tta"] == name and ("test-time augmentation flip" in printed) == bool(words)
        classifier = json.loads((tmp_path / f"{name}-boxes.json").read_text())["info"]["classifier"]
        assert ("tta=flip" in classifier) == bool(words)
        model = linnaeus.load_model(finished.bundle, tta=words[-1] if words else None)
        row = finished.rows()[0]
        given = {key: row.get(key) for key in ("latitude", "longitude", "uncertainty", "date", "time", "elevation")}
        (one,) = model.predict([finished.photograph(0)], **{key: [value] for key, value in given.items()})
        found = {rank: taxa[0]["probability"] for rank, taxa in content["predictions"][0]["ranks"].items()}
        assert found == pytest.approx({rank: taxa[0].probability for rank, taxa in one.ranks.items()}, abs=1e-5)
    assert (tmp_path / "none.json").read_text().replace('"none"', '"flip"') != (tmp_path / "flip.json").read_text()


def test_photographs_of_another_folder_with_the_same_names_are_not_continued(tmp_path, monkeypatch):
    """Cameras name their photographs alike: the answers of one station would be those of another."""
    tables = [tmp_path / station / "media.csv" for station in ("a", "b")]
    for table in tables:
        table.parent.mkdir()
        table.write_text("path\nIMG_0001.jpg\nIMG_0002.jpg\n")
        (table.parent / "IMG_0001.jpg").touch()
    a, b, again = (from_manifest(str(table), [], ()).identity() for table in (*tables, tables[0]))
    assert a == again != b
    found = []
    for table in (*tables, tables[0]):
        monkeypatch.chdir(table.parent)
        found.append(from_paths(["IMG_0001.jpg"], {}).identity())
    assert found[0] == found[2] != found[1]
    monkeypatch.chdir(tmp_path)
    absolute = from_paths([str(tables[0].parent)], {}).identity()
    monkeypatch.chdir(tables[0].parent)
    assert from_paths([str(tables[0].parent)], {}).identity() == absolute  # from any folder


def test_the_journal_of_another_command_is_not_continued(finished, tmp_path, capsys):
    out = tmp_path / "out.csv"
    journal = Journal(out, {"photographs": 3}, 8)
    journal.append([{"photograph": "a"}])
    before = journal.path.read_bytes()
    with pytest.raises(SystemExit):
        predict(finished, out)
    assert f"another command writes {journal.path} at present" in capsys.readouterr().err
    journal.file.close()
    with pytest.raises(SystemExit) as exit_:
        predict(finished, out)
    assert exit_.value.code == 2 and "of another model or other photographs, or was begun with other options" in capsys.readouterr().err
    assert journal.path.read_bytes() == before


def test_links_to_folders_are_followed_and_hidden_files_are_not_read(finished, tmp_path):
    site, photos = tmp_path / "site", tmp_path / "photos"
    for folder in (site, photos):
        folder.mkdir()
        shutil.copy(finished.photograph(0), folder / "1.jpg")
    (photos / "._1.jpg").write_bytes(b"of a Mac")
    (photos / "linked").symlink_to(site)
    (site / "above").symlink_to(photos)
    assert from_paths([str(photos)], {}).names == [f"{photos}/1.jpg", f"{photos}/linked/1.jpg"]


def test_folders_and_patterns_without_photographs_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "1.jpg").touch()
    found = from_paths([f"{tmp_path}/*.jpg", f"{tmp_path}/*.png", f"{tmp_path}/empty"], {})
    assert found.names == [f"{tmp_path}/1.jpg"]
    assert found.notes == (f"no photograph in '{tmp_path}/*.png'", f"no photograph in '{tmp_path}/empty'")


def test_a_pipe_in_a_folder_or_of_a_pattern_is_left_out(tmp_path):
    """A read of it would wait for a writer. A link to nothing is kept, and named as a photograph that cannot be read."""
    (tmp_path / "1.jpg").touch()
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nothing.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    for path in (tmp_path, tmp_path / "*.jpg"):
        found = from_paths([str(path)], {})
        assert found.names == [f"{tmp_path}/1.jpg", f"{tmp_path}/gone.jpg"]
        assert found.notes == ("left out: 1 pipe",)


@pytest.mark.parametrize("more", ["", "https://a.org/1.jpg\n"])
def test_a_pipe_in_a_manifest_is_not_waited_for(tmp_path, more):
    """Beside a URL all rows are read by fsspec."""
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "photos.csv").write_text(f"path\npipe.jpg\ngone.jpg\n{more}")
    files = from_manifest(str(tmp_path / "photos.csv"), [], ()).files
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(files.read, 0)
        while concurrent.futures.wait([reading], timeout=10).not_done:
            os.close(os.open(tmp_path / "pipe.jpg", os.O_RDWR))  # ends a wait of a failing test, which may be one of several
        with pytest.raises(NotAnImage, match="image path is not a file"):
            reading.result()
    with pytest.raises(FileNotFoundError):
        files.read(1)


def test_files_that_cannot_be_read_are_named_and_counted(finished, tmp_path, capsys):
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    shutil.copy(finished.photograph(0), folder / "deep" / "good, name.jpg")
    (folder / "bad.jpg").write_bytes(b"no photograph")
    (folder / "empty.png").touch()
    (folder / "notes.txt").touch()
    out = tmp_path / "out.csv"
    assert predict_cli.main([str(finished.bundle), "--threads", "1", str(folder), "--out", str(out)]) == 0
    rows = answers(out)
    assert [row["photograph"].rpartition("/")[2] for row in rows] == ["bad.jpg", "empty.png", "good, name.jpg"]
    assert [bool(row["error"]) for row in rows] == [True, True, False]
    printed = capsys.readouterr().out
    assert "left out: 1 file without the suffix of a photograph in the folders" in printed and "2 could not be read" in printed
    assert predict_cli.main([str(finished.bundle), str(folder / "*.jpg"), str(folder / "deep" / "good, name.jpg")]) == 0
    printed = capsys.readouterr().out
    assert "bad.jpg  not read: not an image" in printed and "good, name.jpg" in printed


@pytest.mark.parametrize(
    "words, line",
    [
        ([], "give PHOTOS (files, folders or patterns) or --manifest FILE"),
        (["missing.jpg"], "PHOTOS: 'missing.jpg' does not exist"),
        (["*.nothing"], "no photograph was found"),
        (["--manifest", "missing.csv"], "--manifest: 'missing.csv' does not exist"),
        (["--manifest", "."], "--manifest: '.' is a folder; give a CSV or Parquet file"),
        (["--manifest", "{manifest}", "--date", "2020-01-01"], "--date has no effect with --manifest"),
        (["--manifest", "{manifest}", "--setting", "seed=1"], "--setting: seed=1 has no effect here"),
        (["--manifest", "{manifest}", "--setting", "data.components=[SPATIAL]"], "data.components=[SPATIAL] has no effect here; give"),
        (["--manifest", "{manifest}", "--setting", "data.path=x.csv"], "--setting: data.path=x.csv has no effect here"),
        (["--manifest", "{manifest}", "--setting", "data.split_column=x"], "--setting: data.split_column=x has no effect here"),
        (["{photo}", "--setting", "data.date_column=x"], "has no effect without --manifest"),
        (["{photo}", "--latitude", "91", "--longitude", "0"], "latitude is 91"),
        (["{photo}", "--out", "x.txt"], "must end in .json, .csv, .parquet"),
        (["{photo}", "--out", "no/folder/x.csv"], "is not a folder"),
        (["--manifest", "{manifest}", "--together", "product"], "--together product has no effect without --sequence COLUMN"),
        (["{photo}", "--tta", "both"], "argument --tta: invalid choice: 'both'"),
        (["{photo}", "--top", "3", "--coverage", "0.9"], "--top 3 has no effect with --coverage"),
        (["{photo}", "--top", "0"], "--top is 0; it must be from 1 to 1000"),
        (["{photo}", "--out", "x.csv", "--top", "3"], "--top 3 has no effect in the format csv, which has one taxon of each rank"),
        (["{photo}", "--out", "x.parquet", "--coverage", "0.9"], "--coverage 0.9 has no effect in the format parquet"),
    ],
)
def test_a_mistake_is_one_line(finished, tmp_path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    filled = [word.format(manifest=finished.manifest, photo=finished.photograph(0)) for word in words]
    with pytest.raises(SystemExit) as exit_:
        predict_cli.main([str(finished.bundle), "--threads", "1", *filled])
    printed = capsys.readouterr()
    assert exit_.value.code == 2 and line in printed.err and printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_the_model_does_not_read_is_named(finished):
    parser = argparse.ArgumentParser()
    add_photographs(parser)
    words = [str(finished.photograph(0)), "--latitude", "5", "--longitude", "6", "--elevation", "7", "--date", "2026-05-01"]
    options = parser.parse_args(words)
    assert photographs_of(options, ["TEMPORAL"]).notes == (
        "no effect: --latitude, --longitude, --elevation; the model does not read SPATIAL, ELEVATION",
    )
    assert photographs_of(options, ["SPATIAL", "TEMPORAL", "ELEVATION"]).notes == ()


def test_a_run_that_was_not_validated_needs_another_checkpoint(tmp_path):
    run = runs.run("biota", tmp_path, "trainer.length=1steps", "schedule.validate=[]", "schedule.validate_at_end=false")
    with pytest.raises(ConfigError, match="none is the best; use --checkpoint newest"):
        linnaeus.load_model(run)


def test_a_bundle_is_complete_and_never_overwrites(finished, capsys):
    assert {path.name for path in finished.bundle.iterdir()} == {
        "config.json",
        "model.safetensors",
        "taxonomy.json",
        "metrics.json",
        "class_counts.csv",
        "README.md",
    }
    card = (finished.bundle / "README.md").read_text()
    metrics = json.loads((finished.bundle / "metrics.json").read_text())
    assert f"| as they are | species | {100 * metrics['val/species/top1']:.1f} [" in card and "60 photographs for training" in card
    before = {path.name: path.read_bytes() for path in finished.bundle.iterdir()}
    for run, words in ((finished.run, "exists; choose another folder"), (finished.bundle, "is a bundle already")):
        with pytest.raises(SystemExit) as exit_:
            export_cli.main([str(run), str(finished.bundle)])
        assert exit_.value.code == 2 and words in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in finished.bundle.iterdir()}


def test_an_export_leaves_other_folders_alone_and_prints_the_size_of_its_own(finished, tmp_path, capsys):
    """Give the other folder the name that a replaced directory has for a moment."""
    other = tmp_path / "bundle.replaced" / "notes.txt"
    other.parent.mkdir()
    other.write_text("a folder of the user")
    assert export_cli.main([str(finished.run), str(tmp_path / "bundle")]) == 0
    size = sum(path.stat().st_size for path in (tmp_path / "bundle").iterdir())
    assert other.read_text() == "a folder of the user"
    assert f"{tmp_path / 'bundle'}: {format_size(size)}; README.md" in capsys.readouterr().out


def test_names_of_files_are_read_as_the_file_system_has_them(finished, tmp_path):
    """A backslash is a letter of a name here, and `latin\\xe9.png` is not UTF-8."""
    folder = tmp_path / "photos"
    (folder / "x").mkdir(parents=True)
    names = [b"latin\xe9.png", b"x\\y.png", b"x/y.png"]
    for number, name in enumerate(names):
        shutil.copyfile(finished.photograph(number), os.fsencode(folder) + b"/" + name)
    out = tmp_path / "answers.json"
    assert predict_cli.main([str(finished.bundle), str(folder), "--out", str(out), "--threads", "1"]) == 0
    rows = {row["photograph"].removeprefix(f"{folder}/"): row for row in json.loads(out.read_text())["predictions"]}
    model = linnaeus.load_model(finished.bundle)
    for number, name in enumerate(("latin\udce9.png", "x\\y.png", "x/y.png")):
        own = model.predict(finished.photograph(number)).familiarity
        assert rows[name]["familiarity"] == pytest.approx(own, abs=1e-6), name


def test_a_missing_photograph_of_a_manifest_is_not_waited_for(finished, tmp_path, monkeypatch):
    def slept(seconds):
        raise AssertionError(f"waited for {seconds} s")

    (tmp_path / "m.csv").write_text(f"path\n{finished.photograph(0)}\nabsent.png\n")
    monkeypatch.setattr(image_files.time, "sleep", slept)
    out = tmp_path / "answers.json"
    assert predict_cli.main([str(finished.bundle), "--manifest", str(tmp_path / "m.csv"), "--out", str(out), "--threads", "1"]) == 0
    assert [row.get("error") for row in json.loads(out.read_text())["predictions"]] == [None, "No such file or directory"]


def test_the_time_of_the_network_is_that_of_its_forward_passes(monkeypatch):
    """The clock moves by a second at each reading, and by ten between the passes."""
    clock, network = iter([0.0, 1.0, 11.0, 12.0]), torch.nn.Linear(2, 2)
    monkeypatch.setattr(forward_time.time, "monotonic", lambda: next(clock))
    with forward_time.ForwardTime(network) as forward:
        network(network(torch.zeros(1, 2)))
    network(torch.zeros(1, 2))
    assert forward.seconds == 2.0
    lines = predict_cli._account(Path("out.csv"), "photograph", 30, 10, 0, None, 8.0, forward.seconds)
    assert lines[0] == "30 of 30 photographs answered, 2.5 photographs/s (25 % of the time in the network): out.csv"


def test_the_command_that_export_prints_allows_the_plugins_of_the_run(finished, tmp_path, monkeypatch, capsys):
    (tmp_path / "parts_of_mine.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    run = shutil.copytree(finished.run, tmp_path / "run")
    saved = run / "config.yaml"
    saved.write_text(saved.read_text().replace("plugins: []", "plugins: [parts_of_mine]"))
    assert export_cli.main([str(run), str(tmp_path / "bundle")]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    words = [str(finished.photograph(0)) if word == "photo.jpg" else word for word in command[2:]]
    assert command[:2] == ["linnaeus", "predict"] and predict_cli.main(words) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit):
        predict_cli.main(words[:2])
    assert "allow it with --plugins parts_of_mine, in Python plugins=['parts_of_mine']" in capsys.readouterr().err
