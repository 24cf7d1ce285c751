"""Test the formats of `linnaeus predict` that other programs read: rules of each, exact names, unreadable files, continued commands."""

from __future__ import annotations

import csv
import json
import os
import shutil
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.manifest.records import column_of
from linnaeus.workloads.taxonomy.sources.camera_traps.camtrap_dp import read_records
from linnaeus.workloads.taxonomy.trained.batches import journal as journal_module
from linnaeus.workloads.taxonomy.trained.batches.journal import Journal
from linnaeus.workloads.taxonomy.trained.predict import predict_cli
from linnaeus.workloads.taxonomy.trained.predict.answered import Answered, answer_of
from linnaeus.workloads.taxonomy.trained.predict.observation_tables import OBSERVATIONS
from linnaeus.workloads.taxonomy.trained.predict.prediction_files import FORMATS, write_file
from linnaeus.workloads.taxonomy.trained.probabilities.answers import Answers, Asked, Scored
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests import runs

NAMES = [  # genus, species; the last species is in two genera
    ("Canis", '<b onclick="x()">Canis</b> & lupus'),
    ("Canis", 'Canis "Wolf", L.; 100 % 1758'),
    ("ذئب", "ذئب رمادي"),
    ("A|b\\c", "=1+1"),
    ("Homo", "twice"),
    ("Pan", "twice"),
]
TYPES = ["human", "vehicle", "blank", "unknown"]  # taxa of a model that was trained with a Camera Trap Data Package
RANKS = ("class", "genus", "species")
HEAD = {"model": "RUN", "sha256": "0123456789abcdef", "taxa": "abc"}


def small_tree() -> tuple[TaxonomyTree, np.ndarray]:
    """Return a tree and the path of each of `NAMES` and `TYPES`, then of a genus without a species, and of nothing."""
    rows = [("Mammalia", *names) for names in NAMES] + [(name,) * 3 for name in TYPES]
    tree, labels = TaxonomyTree.from_lineages(RANKS, np.array(rows))
    return tree, np.concatenate([labels, [[*labels[0, :2], -1], [-1, -1, -1]]])


def written(folder: Path, form: str, photographs: list[str] | None = None) -> Path:
    """Write a row for each path of `small_tree`, then one that could not be read. Return the file."""
    tree, paths = small_tree()
    photographs = photographs or [f"photos/{row}, ;.jpg" for row in range(len(paths) + 1)]
    probabilities = []
    for r, size in enumerate(tree.sizes):
        chosen = np.where(paths[:, r] >= 0, paths[:, r], 0)
        probabilities.append(np.full((len(paths), size), 0.25 / (size - 1), dtype=np.float32))
        probabilities[r][np.arange(len(paths)), chosen] = 0.75
    present = np.ones((len(paths), 1), dtype=bool)
    scored = Scored(tuple(probabilities), paths, np.ones(len(paths)))
    made = Answers(tree).predictions(scored, photographs[:-1], present, ("SPATIAL",), asked=Asked(2))
    journal = Journal(folder / form, HEAD, 4)
    journal.append([*(prediction.plain() for prediction in made), {"photograph": photographs[-1], "error": "not an image"}])
    rows = range(len(photographs))
    columns = {name: column_of([f"{name} {row}" for row in rows]) for name in ("mediaID", "deploymentID", "eventID", "occurrenceID")}
    columns["timestamp"] = column_of([f"2020-05-30T04:57:{row:02d}.5+02:00" for row in rows])
    out = folder / f"{form}{FORMATS[form].suffix}"
    write_file(out, form, journal, Answered(journal.rows(), tree, HEAD, "linnaeus RUN 0123456789ab", journal.started, columns))
    return out


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def is_probability(number: Any) -> bool:
    return isinstance(number, float) and 0 <= number <= 1


def names_of(form: str, path: Path) -> list[str]:
    """Return the name of the answer of each row of `NAMES`."""
    if path.suffix == ".csv":
        return [row["scientificName"] if form != "csv" else row["species"] for row in table(path)][: len(NAMES)]
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pydict()["species"][: len(NAMES)]
    content = json.loads(path.read_text(encoding="utf-8"))
    if form == "json":
        return [row["path"]["species"]["name"] for row in content["predictions"][: len(NAMES)]]
    if form == "speciesnet":
        found = [row["detections"][0]["processed_classification"]["class"] for row in content["predictions"][: len(NAMES)]]
        return [content["taxa"][label]["name"] for label in found]
    found = [image["detections"][0]["classifications"][0][0] for image in content["images"][: len(NAMES)]]
    return [content["classification_categories"][number] for number in found]


@pytest.mark.parametrize("form", FORMATS)
def test_names_come_out_as_they_went_in(tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    assert names_of(form, written(tmp_path, form)) == [species for _, species in NAMES]


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_name_that_is_not_utf8_leaves_a_valid_file(tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    photographs = [os.fsdecode(b"p\xff%d.jpg" % row) for row in range(len(NAMES) + len(TYPES) + 3)]
    path = written(tmp_path, form, photographs)
    assert names_of(form, path) == [species for _, species in NAMES]
    if path.suffix == ".json":
        content = json.loads(path.read_text(encoding="utf-8"))
        assert next(iter(content.get("images", content.get("predictions"))[0].values())) == photographs[0]
    elif form in ("csv", "darwin_core"):
        assert "p\\udcff0.jpg" in table(path)[0].values()


def test_megadetector_keeps_the_rules_of_format_1_6(tmp_path):
    content = json.loads(written(tmp_path, "megadetector").read_text(encoding="utf-8"))
    assert content["info"]["format_version"] == "1.6"
    assert content.keys() == {"info", "images", "detection_categories", "classification_categories", "classification_category_descriptions"}
    for key in ("detection_categories", "classification_categories", "classification_category_descriptions"):
        assert all(number.isdecimal() and name for number, name in content[key].items())
    assert content["detection_categories"]["1"] == "animal" and "0" not in content["detection_categories"]
    assert content["classification_categories"].keys() == content["classification_category_descriptions"].keys()
    assert all(text.count(";") == 5 for text in content["classification_category_descriptions"].values())
    *images, failed = content["images"]
    assert failed == {"file": failed["file"], "failure": "not an image", "detections": None}
    for image in images:
        assert image.keys() == {"file", "detections"} and len(image["detections"]) <= 1
        for box in image["detections"]:
            assert is_probability(box["conf"]) and box["category"] in content["detection_categories"] and box["bbox"] == [0, 0, 1, 1]
            scores = [score for _, score in box.get("classifications", [])]
            assert scores == sorted(scores, reverse=True) and all(map(is_probability, scores))
            assert all(number in content["classification_categories"] for number, _ in box.get("classifications", []))
    human, vehicle, blank, unknown, genus, nothing = (image["detections"] for image in images[len(NAMES) :])
    assert (human[0]["category"], vehicle[0]["category"], unknown[0]["category"], blank) == ("2", "3", "1", [])
    assert content["classification_categories"][genus[0]["classifications"][0][0]] == "Canis"
    assert nothing[0]["conf"] == 0 and "classifications" not in nothing[0]


def test_speciesnet_keeps_the_rules_of_format_20261015(tmp_path):
    content = json.loads(written(tmp_path, "speciesnet").read_text(encoding="utf-8"))
    assert content["info"] == {"format_version": "20261015"}
    *rows, failed = content["predictions"]
    assert failed["failures"] == ["CLASSIFIER"] and failed["error"] == "not an image" and "detections" not in failed
    labels = set()
    for row in rows:
        assert row.keys() == {"filepath", "detections", "model_version"}
        (box,) = row["detections"]
        assert (box["category"], box["label"], box["conf"], box["bbox"]) == ("0", "whole_image_classification", 1.0, [0, 0, 1, 1])
        raw, processed = box["raw_classifications"], box["processed_classification"]
        assert len(raw["classes"]) == len(raw["scores"]) == 2 and raw["scores"] == sorted(raw["scores"], reverse=True)
        assert all(map(is_probability, [*raw["scores"], processed["score"]]))
        labels |= {*raw["classes"], processed["class"]}
    for label in labels:
        identity, *names = label.split(";")
        assert uuid.UUID(identity) and len(names) == 6 and label == label.lower()
    answers = [row["detections"][0]["processed_classification"] for row in rows]
    assert answers[1]["class"].split(";")[1:] == [
        "mammalia",
        "",
        "",
        "canis",
        '"wolf", l.%3b 100 %25 1758',
        'canis "wolf", l.%3b 100 %25 1758',
    ]
    assert answers[4]["class"] != answers[5]["class"]  # two taxa of one name
    assert answers[6]["class"].endswith(";human") and answers[8]["class"].endswith(";blank")
    assert answers[10]["source"] == "classifier+rollup_to_genus" and content["taxa"][answers[10]["class"]] == {
        "rank": "genus",
        "name": "Canis",
    }
    assert answers[11]["class"].endswith(";no cv result") and answers[11]["score"] == 0


def test_camtrap_dp_keeps_the_rules_of_the_schema(tmp_path):
    rows = table(written(tmp_path, "camtrap_dp"))
    assert list(rows[0]) == OBSERVATIONS and len({row["observationID"] for row in rows}) == len(rows)
    for number, row in enumerate(rows):
        assert (row["mediaID"], row["deploymentID"], row["eventID"]) == tuple(
            f"{n} {number}" for n in ("mediaID", "deploymentID", "eventID")
        )
        assert row["eventStart"] == row["eventEnd"] == f"2020-05-30T04:57:{number:02d}+02:00" and row["observationLevel"] == "media"
    *answered, nothing, failed = rows
    for row in answered:
        assert row["classificationMethod"] == "machine" and row["classifiedBy"] == "linnaeus RUN 0123456789ab"
        assert datetime.strptime(row["classificationTimestamp"], "%Y-%m-%dT%H:%M:%S%z")
        assert float(row["classificationProbability"]) == 0.75
    kinds = ["animal"] * len(NAMES) + [*TYPES, "animal"]
    assert [row["observationType"] for row in answered] == kinds
    assert [row["scientificName"] for row in answered[len(NAMES) :]] == ["", "", "", "", "Canis"]
    assert nothing["observationType"] == "unknown" and nothing["scientificName"] == nothing["classificationProbability"] == ""
    assert failed["observationType"] == "unclassified" and failed["observationComments"] == "not read: not an image"


def test_darwin_core_has_the_terms_of_an_identification(tmp_path):
    rows = table(written(tmp_path, "darwin_core"))
    assert len({row["identificationID"] for row in rows}) == len(rows)
    assert [row["occurrenceID"] for row in rows] == [f"occurrenceID {number}" for number in range(len(rows))]
    first, genus, nothing, failed = rows[3], *rows[-3:]
    assert (first["scientificName"], first["taxonRank"], first["class"], first["genus"]) == ("=1+1", "species", "Mammalia", "A|b\\c")
    assert first["higherClassification"] == "Mammalia | A|b\\c" and first["verbatimIdentification"] == "Mammalia|A\\|b\\\\c|=1+1"
    assert first["identifiedBy"] == "linnaeus RUN 0123456789ab" and first["dateIdentified"].endswith("Z")
    assert first["identificationRemarks"] == "machine identification; probability 0.75; used SPATIAL; not calibrated"
    assert (genus["scientificName"], genus["taxonRank"]) == ("Canis", "genus")
    assert nothing["scientificName"] == "" and "no taxon" in nothing["identificationRemarks"]
    assert failed["identificationRemarks"] == "not read: not an image" and failed["identifiedBy"] == failed["dateIdentified"] == ""


@pytest.fixture
def media(finished, tmp_path) -> Path:
    """Write the table of media of a Camera Trap Data Package with two photographs and a broken one. Return its path."""
    shutil.copy(finished.photograph(0), tmp_path / "a.jpg")
    shutil.copy(finished.photograph(1), tmp_path / "b.jpg")
    (tmp_path / "broken.jpg").write_bytes(b"no photograph")
    lines = ["mediaID,deploymentID,timestamp,filePath,filePublic,fileMediatype,occurrenceID"]
    lines += [f"m{n},d1,2020-05-30T04:57:3{n}+02:00,{name},true,image/jpeg,o{n}" for n, name in enumerate(["a.jpg", "b.jpg", "broken.jpg"])]
    (tmp_path / "media.csv").write_text("\n".join([*lines, "m9,too,few", ""]))
    return tmp_path / "media.csv"


def predict(finished, media: Path, out: Path, *more: str) -> int:
    words = [finished.bundle, "--manifest", media, "--out", out, "--batch-size", "1", "--threads", "1", *more]
    return predict_cli.main(list(map(str, words)))


def test_observations_of_a_package_are_read_by_data_camtrap_dp(finished, media, capsys):
    folder = media.parent
    assert predict(finished, media, folder / "observations.csv", "--format", "camtrap_dp") == 0
    printed = capsys.readouterr().out
    assert "1 row left out: a different number of cells" in printed and "1 could not be read" in printed
    rows = table(folder / "observations.csv")
    assert [row["mediaID"] for row in rows] == ["m0", "m1", "m2"] and rows[2]["observationType"] == "unclassified"
    media.write_text("".join(media.read_text().splitlines(keepends=True)[:4]))
    (folder / "deployments.csv").write_text("deploymentID,latitude,longitude\nd1,52,4\n")
    resources = [{"name": name, "path": f"{name}.csv"} for name in ("deployments", "media", "observations")]
    taxonomic = [{"scientificName": row["scientificName"], "taxonRank": "species"} for row in rows[:2]]
    (folder / "datapackage.json").write_text(json.dumps({"resources": resources, "taxonomic": taxonomic}))
    read = read_records(runs.composed(["data=camtrap_dp", f"data.path={folder}"]).data, lambda header, **settings: header).table.columns
    assert read["path"].text().tolist() == ["a.jpg", "b.jpg"]
    assert read["species"].text().tolist() == [row["scientificName"] for row in rows[:2]]


@pytest.mark.parametrize("form", ["camtrap_dp", "darwin_core"])
def test_a_continued_command_has_the_time_of_its_first_start(finished, media, monkeypatch, form):
    monkeypatch.setattr(journal_module, "now", lambda: "2026-05-01T16:10:00Z")
    whole, out = media.parent / "whole.csv", media.parent / "out.csv"
    assert predict(finished, media, whole, "--format", form) == 0
    answer = predict_cli._answer

    def killed(model, batch, asked):
        if batch.first == 1:
            raise SystemError
        return answer(model, batch, asked)

    monkeypatch.setattr(predict_cli, "_answer", killed)
    with pytest.raises(SystemError):
        predict(finished, media, out, "--format", form)
    monkeypatch.setattr(predict_cli, "_answer", answer)
    monkeypatch.setattr(journal_module, "now", lambda: "2027-01-01T00:00:00Z")
    assert predict(finished, media, out, "--format", form) == 0
    assert out.read_bytes() == whole.read_bytes() and b"2026-05-01T16:10:00Z" in whole.read_bytes()


@pytest.mark.parametrize(
    "change, words, line",
    [
        (("m1,", "m0,"), ["--format", "camtrap_dp"], "mediaID 'm0' is in 2 rows; remove the copies"),
        (("m1,", ","), ["--format", "camtrap_dp"], "mediaID is empty in 1 row, such as row 2; fill it in"),
        (("31+02:00", "31"), ["--format", "camtrap_dp"], "timestamp '2020-05-30T04:57:31' must be a time with its zone"),
        (("deploymentID", "place"), ["--format", "camtrap_dp"], "needs the column deploymentID; give media.csv"),
        (("", ""), ["--format", "megadetector"], "out.csv must end in .json for --format megadetector"),
        (("", ""), ["--format", "yaml"], "yaml"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(finished, media, capsys, change, words, line):
    media.write_text(media.read_text().replace(*change, 1))
    before = sorted(media.parent.iterdir())
    with pytest.raises(SystemExit) as exit_:
        predict(finished, media, media.parent / "out.csv", *words)
    printed = capsys.readouterr().err
    assert exit_.value.code == 2 and line in printed and printed.count("\n") == 1
    assert sorted(media.parent.iterdir()) == before


def test_a_format_needs_a_file(finished, capsys):
    with pytest.raises(SystemExit):
        predict_cli.main([str(finished.bundle), str(finished.photograph(0)), "--format", "megadetector"])
    assert "--format megadetector has no effect without --out FILE" in capsys.readouterr().err


def test_the_answer_is_the_rolled_up_one_of_a_calibrated_model():
    taxon = {"name": "Canis", "lineage": "Mammalia|Canis", "probability": 1.0000001}
    path = {"genus": taxon, "species": taxon | {"name": "Canis lupus", "probability": 0.4}}
    assert answer_of({"calibrated": False, "path": path}) == {"rank": "species", **path["species"]}
    rolled_up = {"calibrated": True, "path": path, "answer": {"rank": "genus", **taxon}}
    assert answer_of(rolled_up) == {"rank": "genus", **taxon, "probability": 1.0}
    assert answer_of(rolled_up | {"answer": None}) is answer_of({"calibrated": False, "path": {}}) is None
