"""Tests of one answer for the photographs of a sequence: the product of their evidence, in every format, also after a restart."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import linnaeus
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.images.image_files import FolderFiles
from linnaeus.workloads.taxonomy.manifest.records import column_of
from linnaeus.workloads.taxonomy.trained.batches import reading_ahead
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import metadata_of
from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import Inputs, from_manifest
from linnaeus.workloads.taxonomy.trained.predict import predict_cli
from linnaeus.workloads.taxonomy.trained.predict.sequences import SequenceBatch, answer_together, in_sequences

FILES = ("json", "csv", "speciesnet", "megadetector", "camtrap_dp", "darwin_core")


def inputs(cells: list[str]) -> Inputs:
    names = [f"{i}.jpg" for i in range(len(cells))]
    return Inputs(names, FolderFiles("", names), metadata_of(len(names), {}), columns={"burst": column_of(cells)})


def test_photographs_are_put_in_the_order_of_their_sequences():
    found, sequences = in_sequences(inputs(["b", "", "a", "b", "", "a", "a"]), "burst")
    assert found.names == ["0.jpg", "3.jpg", "1.jpg", "2.jpg", "5.jpg", "6.jpg", "4.jpg"]
    assert sequences.names == ["b", "", "a", ""] and sequences.starts.tolist() == [0, 2, 3, 6, 7]
    assert sequences.number.tolist() == [0, 0, 1, 2, 2, 2, 3] and found.columns["burst"].text().tolist() == [
        "b",
        "b",
        "",
        "a",
        "a",
        "a",
        "",
    ]
    assert sequences.ends(1) == [1, 2, 3, 4] and sequences.ends(3) == [2, 3, 4] and sequences.ends(100) == [4]


def test_a_missing_value_is_not_the_name_of_a_sequence():
    found, sequences = in_sequences(inputs(["NA", "b", "null", "b", "NA", ""]), "burst")
    assert sequences.names == ["", "b", "", "", ""] and [len(sequences.photographs(s)) for s in range(5)] == [1, 2, 1, 1, 1]
    assert found.names == ["0.jpg", "1.jpg", "3.jpg", "2.jpg", "4.jpg", "5.jpg"]


@pytest.fixture
def manifest(finished) -> Path:
    """A table of 30 photographs in 12 bursts, in a mixed order. One file is missing, and one burst has no file that can be read."""
    rows = [row | {"burst": f"b{i % 11}", "mediaID": f"m{i}"} for i, row in enumerate(finished.rows()[:29])]
    rows = [row | {"deploymentID": "d", "timestamp": f"2021-05-30T04:57:{i:02d}+02:00"} for i, row in enumerate(rows)]
    bad = finished.manifest.parent / "bad.jpg"
    bad.write_bytes(b"no photograph")
    rows[3]["path"] = "bad.jpg"
    rows.append(rows[0] | {"path": "bad.jpg", "burst": "lost", "mediaID": "m29"})
    path = finished.manifest.parent / "bursts.csv"
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def predict(finished, manifest: Path, out: Path, *more: str) -> int:
    words = [str(finished.bundle), "--manifest", str(manifest), "--threads", "1", "--batch-size", "7"]
    words += [] if "--sequence" in more else ["--sequence", "burst"]
    return predict_cli.main([*words, "--out", str(out), *more])


@pytest.fixture(autouse=True)
def threads_of_the_tests(monkeypatch):
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)


@pytest.mark.parametrize(("words", "power"), [([], np.mean), (["--together", "product"], np.sum)], ids=["mean", "product"])
def test_the_answer_is_the_normalised_mean_or_product(finished, manifest, tmp_path, capsys, words, power):
    assert predict(finished, manifest, tmp_path / "out.json", "--top", "1000", *words) == 0
    printed = capsys.readouterr().out
    assert "11 of 12 sequences answered" in printed and "1 photograph of these sequences could not be read" in printed
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["together"] == (words[-1] if words else "mean")
    rows = {row["sequence"]: row for row in content["predictions"]}
    assert len(rows) == 12 and rows["lost"]["error"] and [*rows["b3"]["unreadable"]] == [rows["b3"]["photographs"][0]]
    singles = tmp_path / "single.json"
    words = ["--manifest", str(manifest), "--out", str(singles), "--top", "1000"]
    assert predict_cli.main([str(finished.bundle), *words]) == 0
    alone = [row for row in json.loads(singles.read_text())["predictions"]]
    for name, row in rows.items():
        own = [one for one in alone if one["photograph"] in row["photographs"] and "error" not in one]
        if not own:
            assert name == "lost"
            continue
        for rank in row["ranks"]:
            found = {taxon["lineage"]: taxon["probability"] for taxon in row["ranks"][rank]}
            logs = [{taxon["lineage"]: np.log(taxon["probability"]) for taxon in one["ranks"][rank]} for one in own]
            product = {key: np.exp(power([one[key] for one in logs])) for key in found}
            total = sum(product.values())
            assert found == pytest.approx({key: value / total for key, value in product.items()}, rel=1e-4)


def probabilities(prediction) -> dict[str, float]:
    return {taxon.lineage: taxon.probability for taxa in prediction.ranks.values() for taxon in taxa}


def test_python_gives_one_answer_for_photographs_of_the_same_organism(finished, monkeypatch):
    monkeypatch.setattr("linnaeus.workloads.taxonomy.trained.classifier.trained_classifier.BATCH", 2)
    model, photographs = linnaeus.load_model(finished.bundle), [finished.photograph(i) for i in range(5)]
    places = {"latitude": [52.1, None, 40.0, None, 3.0], "longitude": [4.3, None, 5.0, None, 9.0]}
    backwards = {name: values[::-1] for name, values in places.items()}
    alone = [probabilities(one) for one in model.predict(photographs, **places, top=1000)]
    rank_of = {taxon.lineage: taxon.rank for taxa in model.predict(photographs[0], top=1000).ranks.values() for taxon in taxa}
    for together, power in (("mean", np.mean), ("product", np.sum)):
        found = model.predict(photographs, **places, top=1000, together=together)
        assert found.photograph == str(photographs[0]) and found.metadata == ("SPATIAL",)
        values = {key: np.exp(power([np.log(one[key]) for one in alone])) for key in rank_of}
        totals = {rank: sum(values[key] for key in rank_of if rank_of[key] == rank) for rank in model.tree.ranks}
        assert probabilities(found) == pytest.approx({key: values[key] / totals[rank_of[key]] for key in values}, rel=1e-4)
        again = model.predict(photographs[::-1], **backwards, top=1000, together=together)
        assert probabilities(again) == pytest.approx(probabilities(found), rel=1e-5), "the order does not matter"
        single = model.predict(photographs[0], latitude=52.1, longitude=4.3, top=1000, together=together)
        assert probabilities(single) == pytest.approx(alone[0], rel=1e-5), "one photograph is itself"
    with pytest.raises(ConfigError, match="together is 'sum'; it must be mean or product"):
        model.predict(photographs, together="sum")
    with pytest.raises(ConfigError, match="together needs at least one photograph"):
        model.predict([], together="mean")


def test_a_sequence_may_be_a_column_that_the_format_copies(finished, manifest, tmp_path):
    rows = [row | {"occurrence_id": row["burst"]} for row in csv.DictReader(manifest.open(newline=""))]
    other = manifest.with_name("occurrences.csv")
    with other.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    assert predict(finished, other, tmp_path / "out.csv", "--format", "darwin_core", "--sequence", "occurrence_id") == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["occurrenceID"] for row in csv.DictReader(file)] == list(dict.fromkeys(row["burst"] for row in rows))


def test_every_occurrence_of_a_sequence_has_an_identification(finished, manifest, tmp_path):
    """A row with the first occurrence alone would leave the others of an individual without one."""
    rows = list(csv.DictReader(manifest.open(newline="")))
    for i, row in enumerate(rows):
        row["occurrenceID"] = "" if i == 11 else f"o{i // 2}"
    other = manifest.with_name("several_occurrences.csv")
    with other.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    assert predict(finished, other, tmp_path / "out.csv", "--format", "darwin_core") == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert sorted((row["occurrenceID"], row["associatedMedia"].count(" | ")) for row in found) == sorted(
        (occurrence, sum(row["burst"] == burst for row in rows) - 1)
        for burst, occurrence in {(row["burst"], row["occurrenceID"]) for row in rows}
        if occurrence
    )
    assert len({row["identificationID"] for row in found}) == len(found) > 12


def test_a_column_with_exactly_the_name_is_used(tmp_path):
    (tmp_path / "m.csv").write_text("path,burst (day),burst (night)\na.jpg,d,n\n")
    found = from_manifest(str(tmp_path / "m.csv"), [], (), ["burst (night)"])
    assert found.columns["burst (night)"].text().tolist() == ["n"]


def test_a_killed_command_goes_on_with_the_same_bytes(finished, manifest, tmp_path, monkeypatch):
    assert predict(finished, manifest, tmp_path / "whole.csv") == 0
    answer, made = SequenceBatch.answer, []

    def killed(*a):
        if len(made) == 2:
            raise SystemError
        made.append(a)
        return answer(*a)

    monkeypatch.setattr(SequenceBatch, "answer", killed)
    with pytest.raises(SystemError):
        predict(finished, manifest, tmp_path / "out.csv")
    monkeypatch.setattr(SequenceBatch, "answer", lambda *a: made.append(a) or answer(*a))
    assert predict(finished, manifest, tmp_path / "out.csv") == 0
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes() and len(made) == 4  # none twice


@pytest.mark.parametrize("size", [4, 7])
def test_few_photographs_of_a_long_sequence_are_in_memory(finished, tmp_path, monkeypatch, size):
    """Compare with the answer from all photographs in one batch, to the rounding of float32."""
    model = linnaeus.load_model(finished.bundle)
    cells = ["a"] * 3 + ["long"] * 20 + ["b"] * 2
    names = [str(finished.photograph(i)) for i in range(24)] + [str(tmp_path / "missing.jpg")]
    given = {"latitude": [5.0] * 4 + [None] * 21, "longitude": [6.0] * 4 + [None] * 21}
    columns = {"burst": column_of(cells)}
    found = in_sequences(Inputs(names, FolderFiles("", names), metadata_of(25, given), columns=columns), "burst")
    read, add, begun, scored, most = reading_ahead._read, SequenceBatch.add, [], [], []

    def counted_read(model, inputs, row):
        begun.append(row)
        return read(model, inputs, row)

    def counted_add(self, model, part):
        most.append(len(begun) - len(scored))
        add(self, model, part)
        scored.extend(part.found)

    monkeypatch.setattr(reading_ahead, "_read", counted_read)
    monkeypatch.setattr(SequenceBatch, "add", counted_add)
    rows = [row for batch in answer_together(model, *found, 0, size, 1, model.asked(1000)) for row in batch]
    assert max(most) <= size * (reading_ahead.AHEAD + 1) and len(scored) == 25
    assert [row["sequence"] for row in rows] == ["a", "long", "b"] and [*rows[2]["unreadable"]] == names[-1:]
    assert [row["metadata"] for row in rows] == [["SPATIAL"], ["SPATIAL"], []]
    (whole,) = answer_together(model, *found, 0, 100, 1, model.asked(1000))
    for row, expected in zip(rows, whole, strict=True):
        for rank, taxa in row["ranks"].items():
            probabilities = {taxon["lineage"]: taxon["probability"] for taxon in expected["ranks"][rank]}
            assert {taxon["lineage"]: taxon["probability"] for taxon in taxa} == pytest.approx(probabilities, abs=1e-6)
    again = [row for batch in answer_together(model, *found, 2, size, 1, model.asked(1000)) for row in batch]
    assert again == rows[2:], "a continued command has the same bytes"


def test_each_format_has_the_answer_of_the_sequence(finished, manifest, tmp_path):
    found = {}
    for form in FILES:
        out = tmp_path / f"{form}.{'csv' if form in ('csv', 'camtrap_dp', 'darwin_core') else 'json'}"
        assert predict(finished, manifest, out, "--format", form) == 0
        found[form] = json.loads(out.read_text()) if out.suffix == ".json" else list(csv.DictReader(out.open(newline="")))
    rows = {row["sequence"]: row for row in found["json"]["predictions"]}
    assert [(row["sequence"], row["photographs"]) for row in found["csv"]] == [
        (key, str(len(row["photographs"]))) for key, row in rows.items()
    ]
    for form, items in (("speciesnet", found["speciesnet"]["predictions"]), ("megadetector", found["megadetector"]["images"])):
        name = "filepath" if form == "speciesnet" else "file"
        assert len(items) == 30 and sum("failure" in item or "failures" in item for item in items) == 2
        own = [item for item in items if item[name] in rows["b0"]["photographs"]]
        assert len(own) == 3 and all(item["detections"] == own[0]["detections"] for item in own)
    events = {row["eventID"]: row for row in found["camtrap_dp"]}
    assert {row["observationLevel"] for row in found["camtrap_dp"]} == {"event"} and events.keys() == rows.keys()
    assert (events["b0"]["eventStart"][17:19], events["b0"]["eventEnd"][17:19], events["b0"]["mediaID"]) == ("00", "22", "")
    media = {row["associatedMedia"] for row in found["darwin_core"]}
    assert media == {" | ".join(row["photographs"]) for row in rows.values()}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--sequence", ""], "--sequence is empty"),
        (["--sequence", "nothing"], "--sequence: the manifest has no column 'nothing'"),
        (["--sequence", "burst", "--together", "sum"], "argument --together: invalid choice: 'sum'"),
        (["--format", "camtrap_dp", "--sequence", "station"], "has photographs of several deployments"),
    ],
)
def test_a_mistake_is_one_line(finished, manifest, tmp_path, capsys, words, line):
    rows = list(csv.DictReader(manifest.open(newline="")))
    other = manifest.with_name("stations.csv")
    with other.open("w", newline="") as file:
        table = csv.DictWriter(file, [*rows[0], "station"])
        table.writeheader()
        table.writerows(row | {"station": "s", "deploymentID": f"d{i % 2}"} for i, row in enumerate(rows))
    with pytest.raises(SystemExit) as exit_:
        predict(finished, other, tmp_path / "out.csv", *words)
    printed = capsys.readouterr().err
    assert exit_.value.code == 2 and line in printed and printed.count("\n") == 1 and not [*tmp_path.iterdir()]
