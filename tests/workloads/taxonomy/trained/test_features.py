"""`linnaeus embed`, `linnaeus nearest` and `embed` of a model: features, their files, and searches among them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import linnaeus
from linnaeus.workloads.taxonomy.trained.embed import cosine_search, embed_cli, nearest_cli
from linnaeus.workloads.taxonomy.trained.embed.feature_files import Head, feature_file
from linnaeus.workloads.taxonomy.trained.embed.feature_index import read_index
from tests.workloads.taxonomy.trained.test_load_model import place
from tests.workloads.taxonomy.trained.test_predict_command import answers

GIVEN = ("latitude", "longitude", "uncertainty", "date", "time", "elevation")


def embed(model: Path, *words: object) -> int:
    return embed_cli.main([str(model), "--threads", "1", *map(str, words)])


def nearest(index: Path, *words: object) -> int:
    return nearest_cli.main([str(index), "--threads", "1", *map(str, words)])


def write(out: Path, vectors: list[list[float]], fingerprint: str = "none") -> None:
    """Write vectors as the features of photographs 0.jpg, 1.jpg and so on."""
    features = np.array(vectors, np.float32)
    errors = ["not an image" if np.isnan(row).any() else None for row in features]
    with feature_file(out, Head("MODEL", fingerprint, *features.shape, normalized=False, metadata=True)) as append:
        append([f"{i}.jpg" for i in range(len(features))], features, errors)


def test_features_are_the_input_of_the_head_whatever_the_batch(finished):
    model = linnaeus.load_model(finished.run)
    photographs, rows = [finished.photograph(i) for i in range(35)], finished.rows()[:35]
    given = {name: [place(row).get(name) for row in rows] for name in ("latitude", "longitude", "uncertainty", "date", "time", "elevation")}
    read: list[torch.Tensor] = []
    hook = model.model.head.register_forward_pre_hook(lambda head, inputs: read.append(inputs[0]))
    together = model.embed(photographs, **given)
    hook.remove()
    assert together.dtype == np.float32 and together.shape == (35, model.width)
    np.testing.assert_array_equal(together, torch.cat(read)[:, -1].numpy())
    for i in (0, 20, 34):
        alone = model.embed(photographs[i], **place(rows[i]))
        assert alone.shape == (model.width,)
        np.testing.assert_allclose(alone, together[i], atol=1e-5)
    assert np.abs(together - model.embed(photographs)).max() > 1e-3, "place and time have an effect"
    unit = model.embed(photographs, **given, normalize=True)
    np.testing.assert_allclose(unit, together / np.linalg.norm(together, axis=1, keepdims=True), atol=1e-6)
    assert model.embed([]).shape == (0, model.width)


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_a_file_has_the_features_of_the_model_in_order(finished, tmp_path, suffix, capsys):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    rows, model = finished.rows(), linnaeus.load_model(finished.bundle)
    photographs = [finished.manifest.parent / row["path"] for row in rows]
    given = {name: [place(row).get(name) for row in rows] for name in ("latitude", "longitude", "uncertainty", "date", "time", "elevation")}
    for more, expected in (
        ([], model.embed(photographs, **given)),
        (["--normalize", "--without-metadata"], model.embed(photographs, normalize=True)),
    ):
        out = tmp_path / f"features.{suffix}"
        assert embed(finished.run, "--manifest", finished.manifest, "--out", out, "--batch-size", 7, *more) == 0
        assert f"90 of 90 photographs, {model.width} features of each" in capsys.readouterr().out
        index = read_index(out)
        np.testing.assert_allclose(index.features[index.rows], expected, atol=1e-5)
        assert index.names == [row["path"] for row in rows] and index.head.fingerprint == model.fingerprint()


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_photographs_that_cannot_be_read_are_named_and_have_no_features(finished, tmp_path, suffix, capsys):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    folder, out = tmp_path / "photos", tmp_path / f"features.{suffix}"
    folder.mkdir()
    for name in ("a, b.jpg", "c.jpg"):
        shutil.copy(finished.photograph(0), folder / name)
    (folder / "bad.jpg").write_bytes(b"no photograph")
    assert embed(finished.bundle, folder, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "2 of 3 photographs" in printed and "bad.jpg  not read: not an image" in printed and "1 could not be read" in printed
    index = read_index(out)
    assert [Path(name).name for name in index.names] == ["a, b.jpg", "c.jpg"] and np.isfinite(index.block(0, 2)).all()
    if suffix == "npy":
        assert np.isnan(np.load(out)).all(axis=1).tolist() == [False, True, False]
        assert [bool(row["error"]) for row in answers(tmp_path / "features.npy.csv")] == [False, True, False]
    matches = tmp_path / "matches.csv"
    assert nearest(out, finished.bundle, folder, "--out", matches) == 0
    assert " was written: 1 photograph" in capsys.readouterr().out
    found = [(Path(row["photograph"]).name, row["number"], Path(row["nearest"]).name, bool(row["error"])) for row in answers(matches)]
    assert [one for one in found if one[1] in ("1", "")] == [
        ("a, b.jpg", "1", "a, b.jpg", False),
        ("bad.jpg", "", "", True),
        ("c.jpg", "1", "a, b.jpg", False),
    ]


def test_a_split_chooses_rows_of_the_run_or_of_a_manifest(finished, tmp_path, capsys):
    """Use a manifest of 60 training and 30 validation rows, and those with test rows in a column of another name, with and without
    training rows."""
    rows, model = finished.rows(), linnaeus.load_model(finished.bundle)
    lines = finished.manifest.read_text().splitlines()
    other = finished.manifest.with_name("other.csv")
    other.write_text("\n".join([lines[0].removesuffix("split") + "side", *(line.replace(",val", ",test") for line in lines[1:])]))
    only_test = finished.manifest.with_name("only_test.csv")
    only_test.write_text("\n".join(line for line in other.read_text().splitlines() if not line.endswith(",train")))
    of_manifest = [finished.bundle, "--manifest", finished.manifest]
    for words, word in (
        ([finished.run, "--split", "validation"], "val"),
        ([*of_manifest, "--split", "validation"], "val"),
        ([finished.bundle, "--manifest", other, "--setting", "data.split_column=side", "--split", "test"], "val"),
        ([finished.bundle, "--manifest", only_test, "--setting", "data.split_column=side", "--split", "test"], "val"),
        ([*of_manifest, "--split", "training"], "train"),
        ([finished.run, "--split", "training", "--without-metadata"], "train"),
    ):
        out, chosen = tmp_path / "features.npy", [row for row in rows if row["split"] == word]
        assert embed(*words, "--out", out) == 0
        printed = capsys.readouterr().out
        column = "side" if "--setting" in words else "split"
        assert f"the {words[2]} rows of {finished.run}" in printed or f"rows by '{column}': " in printed
        given = {} if "--without-metadata" in words else {name: [place(row).get(name) for row in chosen] for name in GIVEN}
        index = read_index(out)
        assert index.names == [row["path"] for row in chosen] and len(chosen) == (30 if word == "val" else 60)
        expected = model.embed([finished.manifest.parent / name for name in index.names], **given)
        np.testing.assert_allclose(index.features[index.rows], expected, atol=1e-5)
    found = tmp_path / "found.csv"
    assert nearest(out, finished.run, "--split", "validation", "--count", 1, "--out", found) == 0
    assert [row["photograph"] for row in answers(found)] == [row["path"] for row in rows if row["split"] == "val"]
    assert {row["nearest"] for row in answers(found)} <= set(index.names), "the nearest training photographs"


def test_searches_in_blocks_are_exact(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    vectors = generator.integers(-3, 4, (50, 6)) + generator.normal(0, 0.01, (50, 6))
    vectors[7] = vectors[40]
    write(tmp_path / "index.npy", vectors.tolist())
    index, cpu = read_index(tmp_path / "index.npy"), torch.device("cpu")
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = unit @ unit.T
    products, whole = [], cosine_search._cosines
    monkeypatch.setattr(cosine_search, "_cosines", lambda *a: products.append(whole(*a)) or products[-1])
    monkeypatch.setattr(cosine_search, "QUERIES", 8)
    monkeypatch.setattr(cosine_search, "BLOCK", 12)
    for count in (1, 5, 13, 99):
        found = cosine_search.nearest(index.block(0, 8), index, count)
        order = np.argsort(-cosine[:8].round(6), axis=1, kind="stable")[:, :count]
        np.testing.assert_array_equal(found.row, order)
        others = torch.cat([one.row for one in cosine_search.neighbours(index, count, cpu, lambda done: None)])
        without = np.where(np.eye(50, dtype=bool), -np.inf, cosine)
        np.testing.assert_array_equal(others, np.argsort(-without.round(6), axis=1, kind="stable")[:, : min(count, 49)])
    found = cosine_search.pairs(index, 0.8, cpu, lambda done: None)
    expected = {(i, j) for i in range(50) for j in range(i + 1, 50) if cosine[i, j] >= 0.8}
    assert {*zip(found.row.tolist(), found.other.tolist(), strict=True)} == expected and (7, 40) in expected
    assert (found.row[0], found.other[0]) == (7, 40) and found.cosine.diff().max() <= 0
    assert max(product.numel() for product in products) == 8 * 12, "memory is bounded"
    monkeypatch.setattr(cosine_search, "MOST_PAIRS", len(expected) - 1)
    with pytest.raises(ValueError, match="--above: more than"):
        cosine_search.pairs(index, 0.8, cpu, lambda done: None)


def test_duplicates_and_odd_ones(tmp_path, capsys):
    index, out = tmp_path / "index.npy", tmp_path / "out.csv"
    write(index, [[1, 0], [0, 2], [5, 0.01], [float("nan")] * 2, [-1, 0.3], [0, 1]])
    assert nearest(index, "--duplicates", "--out", out) == 0
    assert [(row["photograph"], row["other"]) for row in answers(out)] == [("1.jpg", "5.jpg"), ("0.jpg", "2.jpg")]
    assert [float(row["cosine"]) for row in answers(out)] == pytest.approx([1, 1 / np.hypot(1, 0.002)])
    assert nearest(index, "--duplicates", "--above", "1", "--out", tmp_path / "out.json") == 0
    assert json.loads((tmp_path / "out.json").read_text()) == [{"photograph": "1.jpg", "other": "5.jpg", "cosine": 1.0}]
    assert nearest(index, "--odd", "--count", "1", "--out", out) == 0
    assert answers(out)[0]["photograph"] == "4.jpg" and answers(out)[0]["nearest"] == "1.jpg" and len(answers(out)) == 5
    assert float(answers(out)[0]["mean_cosine"]) == pytest.approx(0.3 / np.hypot(1, 0.3))
    capsys.readouterr()
    assert nearest(index, "--odd", "--count", "1") == 0 and capsys.readouterr().out.splitlines()[1] == "4.jpg  0.2873  1.jpg"
    assert nearest(index, "--odd", "--count", "2", "--out", out) == 0
    means = {row["photograph"]: float(row["mean_cosine"]) for row in answers(out)}
    assert means["0.jpg"] == pytest.approx((1 / np.hypot(1, 0.002) + 0) / 2), "of the two nearest others"
    write(index, [[1, 0], [0, 1]])
    assert nearest(index, "--duplicates", "--out", tmp_path / "out.json") == 0 and (tmp_path / "out.json").read_text() == "[]\n"


def test_the_fingerprint_is_that_of_the_weights(finished):
    run, bundle = linnaeus.load_model(finished.run), linnaeus.load_model(finished.bundle)
    assert run.fingerprint() == bundle.fingerprint() != run.weights.digest
    changed = {name: tensor.clone() for name, tensor in run.weights.state.items()}
    next(iter(changed.values())).flatten()[0] += 1
    run.weights = dataclasses.replace(run.weights, state=changed)
    assert run.fingerprint() != bundle.fingerprint()


def test_a_stopped_command_leaves_the_files_of_an_earlier_one(finished, tmp_path, monkeypatch, capsys):
    for name in ("features.npy", "features.parquet"):
        write(tmp_path / name, [[1, 0]])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    model = type(linnaeus.load_model(finished.bundle))

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "features", stopped)
    for name in ("features.npy", "features.parquet"):
        assert embed(finished.bundle, finished.photograph(0), "--out", tmp_path / name) == 130
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".journal"} == before
    assert "interrupted; give the same command again to continue" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, line",
    [
        (["{index}"], "give MODEL and PHOTOS, or --duplicates, or --odd"),
        (["{index}", "{bundle}"], "give PHOTOS (files, folders or patterns) or --manifest FILE"),
        (["{index}", "{bundle}", "{photo}"], "has features of another model, MODEL (none, not "),
        (["{index}", "--duplicates", "--odd"], "--duplicates and --odd exclude each other"),
        (["{index}", "{bundle}", "--odd"], "MODEL has no effect with --odd"),
        (["{index}", "--odd", "--date", "2021-01-01"], "--date has no effect with --odd"),
        (["{index}", "--odd", "--split", "test"], "--split has no effect with --odd"),
        (["{index}", "--odd", "--above", "0.5"], "--above 0.5 has no effect without --duplicates"),
        (["{index}", "--duplicates", "--count", "3"], "--count 3 has no effect with --duplicates"),
        (["{index}", "--duplicates", "--above", "2"], "--above is 2; it must be from -1 to 1"),
        (["{index}", "--odd", "--count", "0"], "--count is 0; it must be from 1 to 1000"),
        (["{index}", "--odd", "--out", "x.txt"], "--out: x.txt must end in .csv, .json"),
        (["{index}", "--odd", "--out", "no/x.csv"], "is not a folder"),
        (["{photo}", "--odd"], "its name must end in .npy or .parquet"),
        (["missing.npy", "--odd"], "missing.npy cannot be read (No such file or directory)"),
        (["bare.npy", "--odd"], "bare.npy.json cannot be read (No such file or directory)"),
        (["text.npy", "--odd"], "text.npy is damaged"),
        (["typed.npy", "{bundle}", "{photo}"], "typed.npy is damaged (fingerprint is 3)"),
        (["other.npy", "--odd"], "it is not a file of `linnaeus embed`"),
        (["short.npy", "--odd"], "it does not belong to short.npy.csv and short.npy.json"),
        (["one.npy", "--odd"], "has the features of 1 photograph; it must have 2 or more"),
    ],
)
def test_a_mistake_is_one_line(finished, tmp_path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    for name in ("index.npy", "bare.npy", "other.npy", "short.npy", "typed.npy"):
        write(Path(name), [[1, 0], [0, 1]])
    write(Path("one.npy"), [[1, 0], [float("nan")] * 2])
    Path("text.npy").write_text("no features")
    Path("bare.npy.json").unlink()
    Path("other.npy.json").write_text("{}")
    Path("typed.npy.json").write_text(Path("typed.npy.json").read_text().replace('"none"', "3"))
    np.save("short.npy", np.ones((1, 2), np.float32))
    before = sorted(tmp_path.iterdir())
    filled = [word.format(index="index.npy", bundle=finished.bundle, photo=finished.photograph(0)) for word in words]
    with pytest.raises(SystemExit) as exit_:
        nearest(Path(filled[0]), *filled[1:])
    printed = capsys.readouterr()
    assert exit_.value.code == 2 and line in printed.err and printed.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "words, line",
    [
        (["{photo}"], "the following arguments are required: --out"),
        (["{photo}", "--out", "features.csv"], "--out: features.csv must end in .npy, .parquet"),
        (["{photo}", "--out", "x.npy", "--without-metadata", "--date", "2021-01-01"], "--date has no effect with --without-metadata"),
        (["{photo}", "--out", "x.npy", "--batch-size", "0"], "--batch-size is 0; it must be from 1 to 65536"),
        (["--out", "x.npy"], "give PHOTOS (files, folders or patterns) or --manifest FILE"),
        (["{photo}", "--out", "x.npy", "--split", "test"], "--split test has no effect with PHOTOS; leave it out"),
        (["--out", "x.npy", "--split", "test", "--date", "2021-01-01"], "--date has no effect with --split, whose rows have their own"),
        (["--out", "x.npy", "--split", "test"], "is a bundle, which has no data; give its run, or --manifest FILE"),
        (["--out", "x.npy", "--split", "all"], "argument --split: invalid choice: 'all'"),
        (["--out", "x.npy", "--split", "test", "--manifest", "{manifest}"], "--split=test: 'split' has no test rows; use another split"),
        (
            ["--out", "x.npy", "--split", "test", "--manifest", "{manifest}", "--setting", "data.split_column=null"],
            "--split=test: the manifest has no column split; name it with --setting data.split_column=NAME",
        ),
    ],
)
def test_a_mistake_of_embed_is_one_line(finished, tmp_path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        embed(finished.bundle, *(word.format(photo=finished.photograph(0), manifest=finished.manifest) for word in words))
    printed = capsys.readouterr()
    assert exit_.value.code == 2 and line in printed.err and printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_index_without_metadata_is_searched_without(finished, tmp_path, capsys):
    rows = finished.rows()
    complete = next(i for i, row in enumerate(rows) if place(row).get("date"))
    index, photo = tmp_path / "index.npy", finished.photograph(complete)
    assert embed(finished.bundle, finished.manifest.parent, "--out", index, "--without-metadata") == 0
    out = tmp_path / "out.csv"
    assert nearest(index, finished.bundle, "--manifest", finished.manifest, "--count", "1", "--out", out) == 0
    assert min(float(row["cosine"]) for row in answers(out)) > 0.99999
    capsys.readouterr()
    with pytest.raises(SystemExit):
        nearest(index, finished.bundle, photo, "--date", "2021-01-01")
    assert "--date has no effect with an INDEX that was written --without-metadata" in capsys.readouterr().err
