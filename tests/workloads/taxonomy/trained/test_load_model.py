"""`load_model` and `predict`: the same answers as the validation of the run, from the run and from the bundle, for every kind of input."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import linnaeus
from linnaeus.config.typed_config import typed_config
from linnaeus.errors import ConfigError
from linnaeus.rundir.saved_config import parse_config
from linnaeus.workloads.taxonomy.data_source import build_data_source
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.observations import VALIDATION
from linnaeus.workloads.taxonomy.serving import serve_cli
from linnaeus.workloads.taxonomy.trained import Prediction
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import metadata_of
from tests import runs


def place(row: dict[str, str]) -> dict[str, str]:
    names = ("latitude", "longitude", "uncertainty", "date", "time", "elevation")
    return {name: row[name] for name in names if row.get(name)}


def test_predictions_have_the_accuracy_of_the_validation_to_the_last_digit(finished):
    source = build_data_source(typed_config(parse_config((finished.run / "config.yaml").read_bytes())))[0]
    validation = np.flatnonzero(source.split == VALIDATION)
    by_path = {row["path"]: row for row in finished.rows()}
    rows = [by_path[str(source.ids[i])] for i in validation]
    model, final = linnaeus.load_model(finished.run), runs.summary(finished.run)["final"]
    photographs = [finished.manifest.parent / row["path"] for row in rows]
    known = {name: [row.get(name) for row in rows] for name in ("latitude", "longitude", "uncertainty", "date", "time", "elevation")}
    for prefix, given in (("val", known), ("val_mask_meta", {})):
        predictions = model.predict(photographs, **given)
        for r, rank in enumerate(source.tree.ranks):
            named = [next((taxon.name for taxon in one.path if taxon.rank == rank), None) for one in predictions]
            truth = [source.tree.names[r][c] if c >= 0 else None for c in source.labels[validation, r].tolist()]
            right = [name == true for name, true in zip(named, truth, strict=True) if true is not None]
            assert np.mean(right) == final[f"{prefix}/{rank}/top1"], (prefix, rank)


def test_a_photograph_has_one_answer_from_every_kind_of_input(finished):
    rows = finished.rows()
    complete = next(i for i, row in enumerate(rows) if len(place(row)) == 6)
    model, path, given = linnaeus.load_model(finished.bundle), finished.photograph(complete), place(rows[complete])
    alone = model.predict(str(path), **given)
    assert isinstance(alone, Prediction) and alone.photograph == str(path)
    pixels = np.asarray(Image.open(path).convert("RGB"))
    for other in (path, path.read_bytes(), bytearray(path.read_bytes()), memoryview(path.read_bytes()), pixels, Image.open(path)):
        assert model.predict(other, **given).ranks == alone.ranks
    together = model.predict([finished.photograph(1), path, finished.photograph(2)], **{name: [None, v, None] for name, v in given.items()})
    assert together[0].metadata == () and together[1].metadata == ("SPATIAL", "TEMPORAL", "ELEVATION")
    for own, other in zip(alone.path, together[1].path, strict=True):
        assert own.name == other.name and abs(own.probability - other.probability) < 1e-6
    assert model.predict([]) == []


def test_run_and_bundle_answer_alike(finished):
    run, bundle = linnaeus.load_model(finished.run), linnaeus.load_model(finished.bundle)
    photographs = [finished.photograph(i) for i in range(5)]
    assert run.predict(photographs) == bundle.predict(photographs)
    assert (bundle.tree.names, bundle.components) == (run.tree.names, run.components)


def test_the_taxa_of_a_rank_are_the_most_probable_ones(finished):
    model = linnaeus.load_model(finished.bundle)
    prediction = model.predict(finished.photograph(0), top=3)
    everything = model.predict(finished.photograph(0), top=10_000)
    for rank, size in zip(model.tree.ranks, model.tree.sizes, strict=True):
        probabilities = [taxon.probability for taxon in everything.ranks[rank]]
        assert len(probabilities) == size and probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert prediction.ranks[rank] == everything.ranks[rank][:3]
    with pytest.raises(
        ConfigError, match="top is '-1'; it must be a whole number of at least 0"
    ):  # as a slice it would leave out one taxon
        model.predict(finished.photograph(0), top=-1)
    for wrong, line in (({"top": 2.5}, "top is '2.5'"), ({"precision": "0.9"}, "precision is '0.9'; it must be a number")):
        with pytest.raises(ConfigError, match=line):
            model.predict(finished.photograph(0), **wrong)


@pytest.mark.parametrize(
    "given, line",
    [
        ({"latitude": 95, "longitude": 3}, "latitude is 95; it must be from -90 to 90 degrees north"),
        ({"latitude": 5}, "latitude has no effect without longitude"),
        ({"latitude": "5,2", "longitude": 3}, "latitude is '5,2'; it must be a number"),
        ({"latitude": 0, "longitude": 0.0}, "both 0"),
        ({"uncertainty": 5}, "uncertainty has no effect without latitude"),
        ({"date": "31.12.2020"}, "date is '31.12.2020' (not a date); write it as 2026-05-01"),
        ({"time": "16:10"}, "time has no effect without date"),
        ({"date": "2020-01-01", "time": "16:10Z"}, "in UTC"),
        ({"elevation": 20_000}, "elevation is 20000; it must be from -11000 to 9000 metres"),
        ({"latitude": True, "longitude": 3}, "latitude is 'True'; it must be a number"),
        ({"elevation": [1.0, 2.0]}, "elevation has 2 values for 1 photograph"),
    ],
)
def test_an_impossible_place_or_time_is_one_line(given, line):
    with pytest.raises(ConfigError) as error:
        metadata_of(1, given)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_dates_and_times_are_texts_or_objects():
    texts = metadata_of(1, {"date": "2021-05-01", "time": "16:30", "latitude": 1, "longitude": 2})
    objects = metadata_of(
        1, {"date": datetime.date(2021, 5, 1), "time": datetime.time(16, 30), "latitude": [1.0], "longitude": np.array([2])}
    )
    for name, values in vars(texts).items():
        np.testing.assert_array_equal(values, vars(objects)[name])
    assert texts.hour[0] == 16.5 and np.isnan(texts.elevation[0])


def test_nan_of_numpy_is_unknown():
    values = np.array([5, np.nan], np.float32)
    found = metadata_of(2, {"elevation": values, "latitude": [np.float64("nan"), 5], "longitude": [np.float32("nan"), 6]})
    np.testing.assert_array_equal(found.elevation, values)
    np.testing.assert_array_equal(found.latitude, np.array([np.nan, 5], np.float32))


def test_one_time_applies_to_the_photographs_with_a_date():
    found = metadata_of(3, {"date": ["2021-05-01", None, "2021-06-01"], "time": "16:30"})
    np.testing.assert_array_equal(found.hour, np.array([16.5, np.nan, 16.5], np.float32))
    found = metadata_of(2, {"latitude": [1, None], "longitude": [2, None], "uncertainty": 5})
    np.testing.assert_array_equal(found.uncertainty, np.array([5, np.nan], np.float32))
    with pytest.raises(ConfigError, match="time has no effect without date"):
        metadata_of(2, {"date": ["2021-05-01", None], "time": ["16:30", "16:30"]})


def test_what_cannot_be_read_is_named(finished, tmp_path):
    model = linnaeus.load_model(finished.bundle)
    (tmp_path / "text.jpg").write_text("not a photograph")
    with pytest.raises(NotAnImage, match=r"text\.jpg: not an image of a format that is read"):
        model.predict(tmp_path / "text.jpg")
    with pytest.raises(OSError, match="No such file"):
        model.predict(tmp_path / "missing.jpg")
    with pytest.raises(ConfigError, match=r"the array is float64 \(4, 4\)"):
        model.predict(np.zeros((4, 4)))
    with pytest.raises(ConfigError, match="photograph: 5 is not a path"):
        model.predict(5)


def damaged(bundle: Path, target: Path, change) -> Path:
    """Return a copy of a bundle whose config.json has been changed by `change(content)`."""
    shutil.copytree(bundle, target)
    content = json.loads((target / "config.json").read_text())
    change(content)
    (target / "config.json").write_text(json.dumps(content))
    return target


CHANGES = {
    "version": (lambda c: c.update(version=5), "version 5; this program reads versions 1 to 4"),
    "workload": (lambda c: c.update(workload="os"), "workload='os', which this program does not have"),
    "plugin": (lambda c: c["description"].update(plugins=["antigravity"]), "needs the package antigravity"),
    "missing key": (lambda c: c["description"].pop("tta"), "damaged"),
    "size": (lambda c: c["description"].update(image_sizes=[10**9]), "image_sizes"),
    "crop": (lambda c: c["description"].update(center_crop=1.5), "center_crop is 1.5"),
    "server": (lambda c: c["description"].update(model=MODEL_ON_SERVER), "not downloaded"),
    "other network": (lambda c: c["description"]["model"].update(size="nano"), ""),
    "head": (lambda c: c["description"].update(head={"name": "none"}), "head.name is 'none'"),
    "components": (lambda c: c["description"].update(components=["COLOUR"]), "COLOUR"),
    "files": (lambda c: c.update(files=[]), "damaged"),
}
MODEL_ON_SERVER = {"name": "timm", "backbone": "hf-hub:a/b", "dropout": 0.0, "drop_path": 0.0, "meta_width": 8}
MODEL_ON_SERVER |= {"pretrained": True, "pretrained_file": "/etc/hostname"}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_bundle_is_refused_in_one_line(finished, tmp_path, name):
    change, words = CHANGES[name]
    with pytest.raises(ConfigError) as error:
        linnaeus.load_model(damaged(finished.bundle, tmp_path / "bundle", change))
    assert words in str(error.value) and "\n" not in str(error.value)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("file", ["model.safetensors", "taxonomy.json"])
def test_a_damaged_file_of_a_bundle_is_found_by_its_checksum(finished, tmp_path, file):
    folder = damaged(finished.bundle, tmp_path / "bundle", lambda content: None)
    content = bytearray((folder / file).read_bytes())
    content[-2] ^= 1
    (folder / file).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{file} is not the file that was written"):
        linnaeus.load_model(folder)
    (folder / file).unlink()
    with pytest.raises(ConfigError, match=f"{file} cannot be read"):
        linnaeus.load_model(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "taxonomy.json", "README.md"])
def test_a_link_out_of_a_bundle_and_a_pipe_are_not_read(finished, tmp_path, name):
    folder = damaged(finished.bundle, tmp_path / "bundle", lambda content: None)
    read = (lambda: serve_cli._card(folder, None)) if name == "README.md" else (lambda: linnaeus.load_model(folder))
    (folder / name).unlink()
    (folder / name).symlink_to(finished.bundle / name)
    with pytest.raises(ConfigError, match=f"{name} leads to a file outside of the folder"):
        read()
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ConfigError, match=f"{name} is not a file"):
        read()


def test_a_bundle_in_the_cache_of_a_hub_is_read(finished, tmp_path):
    """Its snapshots have links to its blobs."""
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "1a2b"
    shutil.copytree(finished.bundle, blobs)
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", file.name))
    assert linnaeus.load_model(snapshot).predict(finished.photograph(0)) == linnaeus.load_model(blobs).predict(finished.photograph(0))


@pytest.mark.parametrize("text", ["null", "[]", '"Rosales"', "[" * 100_000, '{"version": 1}', "{"], ids=lambda text: text[:14])
def test_damaged_taxa_of_a_run_are_one_line(finished, tmp_path, text):
    run = tmp_path / "run"
    shutil.copytree(finished.run, run)
    (run / "taxonomy.json").write_text(text)
    with pytest.raises(ConfigError, match=r"taxonomy.json cannot be read \(.*\); continue the run to write it again"):
        linnaeus.load_model(run)


TREES = {
    "rank": lambda tree: tree["ranks"].append(tree["ranks"][0]),
    "name": lambda tree: tree["names"][0].append(5),
    "anchor": lambda tree: tree["anchor"][1].__setitem__(0, 10**6),
    "loop": lambda tree: tree["anchor"][0].__setitem__(0, 0),
    "fraction": lambda tree: tree["anchor"][1].__setitem__(0, 0.5),
    "length": lambda tree: tree["anchor"][1].pop(),
}


@pytest.mark.parametrize("change", TREES)
def test_a_tree_that_is_none_is_one_line(finished, tmp_path, change):
    tree = json.loads((finished.bundle / "taxonomy.json").read_text())
    TREES[change](tree)
    text = json.dumps(tree)
    folder = damaged(
        finished.bundle,
        tmp_path / "bundle",
        lambda content: content["files"].update({"taxonomy.json": hashlib.sha256(text.encode()).hexdigest()}),
    )
    (folder / "taxonomy.json").write_text(text)
    with pytest.raises(ConfigError, match="the bundle is damaged") as error:
        linnaeus.load_model(folder)
    assert "\n" not in str(error.value)


def test_a_path_without_a_model_is_one_line(finished, tmp_path):
    with pytest.raises(ConfigError, match="neither a run directory"):
        linnaeus.load_model(tmp_path)
    with pytest.raises(ConfigError, match="has no checkpoint of step 3"):
        linnaeus.load_model(finished.run, checkpoint="3")
    with pytest.raises(ConfigError, match="one set of weights"):
        linnaeus.load_model(finished.bundle, checkpoint="best")
    with pytest.raises(ConfigError, match="which this machine does not have"):
        linnaeus.load_model(finished.bundle, device="cuda:77")


def test_the_mirror_image_is_averaged_on_request_only(finished):
    """The photographs are cropped to the size that the network reads, so that mirroring them is exact."""

    def answers(model, images):
        metadata = metadata_of(8, {"latitude": 52.1, "longitude": 4.3})
        return model.predict_pixels(np.stack(images), metadata, [None] * 8, model.asked(1000))

    plain, flip = linnaeus.load_model(finished.bundle), linnaeus.load_model(finished.bundle, tta="flip")
    squares = [plain.crop(plain.read(finished.photograph(i))) for i in range(8)]
    mirrored = [np.ascontiguousarray(square[:, ::-1]) for square in squares]
    found = (answers(*one) for one in ((plain, squares), (plain, mirrored), (flip, squares)))
    for one, other, both in zip(*found, strict=True):
        for rank, taxa in both.ranks.items():
            first, second = ({taxon.lineage: taxon.probability for taxon in p.ranks[rank]} for p in (one, other))
            means = {key: (first[key] + second[key]) / 2 for key in first}
            assert {taxon.lineage: taxon.probability for taxon in taxa} == pytest.approx(means, rel=1e-5)
            assert first != second, "the network is not symmetric"
    assert [note for note in flip.weights.notes if note not in plain.weights.notes] == [
        "test-time augmentation flip, in place of none of the run"
    ]
    assert linnaeus.load_model(finished.bundle, tta="none").predict(squares) == plain.predict(squares)
    with pytest.raises(ConfigError, match="tta is 'both'; it must be none or flip"):
        linnaeus.load_model(finished.bundle, tta="both")
