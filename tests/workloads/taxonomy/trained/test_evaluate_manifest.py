"""`linnaeus evaluate --manifest`: the numbers of the run to the last digit, parts of the photographs, and comparisons of models."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import linnaeus
import linnaeus.__main__
from linnaeus.config.typed_config import typed_config
from linnaeus.metrics.bootstrap import RESAMPLES, difference_intervals, times_drawn
from linnaeus.rundir.saved_config import parse_config
from linnaeus.workloads.taxonomy.config import HeadConfig
from linnaeus.workloads.taxonomy.data_source import build_data_source
from linnaeus.workloads.taxonomy.heads import build_head
from linnaeus.workloads.taxonomy.observations import VALIDATION
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import read_labels
from linnaeus.workloads.taxonomy.trained.evaluate import manifest_evaluation, paired_bins, photograph_groups
from linnaeus.workloads.taxonomy.trained.evaluate.measured import Settings, measure
from linnaeus.workloads.taxonomy.trained.evaluate.stated_precision import of_model
from linnaeus.workloads.taxonomy.trained.evaluate.tempered import calibration_error
from linnaeus.workloads.taxonomy.trained.evaluate.training_counts import training_counts
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration, Precision
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests import runs


@pytest.fixture(autouse=True)
def threads_of_the_tests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)


@pytest.fixture(scope="module")
def validated(finished) -> list[dict[str, str]]:
    """Return the validation rows of the run in their order, with an observation of two photographs and a station."""
    source = build_data_source(typed_config(parse_config((finished.run / "config.yaml").read_bytes())))[0]
    by_path = {row["path"]: row for row in finished.rows()}
    rows = [by_path[str(source.ids[i])] for i in np.flatnonzero(source.split == VALIDATION)]
    return [row | {"observation": f"o{i // 2}", "station": "ab"[i % 2]} for i, row in enumerate(rows)]


def written(finished, name: str, rows: list[dict]) -> Path:
    path = finished.manifest.parent / name
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def evaluated(capsys, *words: str | Path) -> str:
    assert linnaeus.__main__.main(["evaluate", *map(str, words)]) == 0
    return capsys.readouterr().out


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_json(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize("kind", ["run", "bundle"])
def test_the_validation_rows_have_the_metrics_of_the_run_to_the_last_digit(finished, validated, tmp_path, capsys, kind):
    rows = [{key: value for key, value in row.items() if key not in ("observation", "station")} for row in validated]
    manifest = written(finished, f"plain_{kind}.csv", rows)
    size = [] if kind == "run" else ["--batch-size", "16"]  # that of the run, which a bundle does not record
    evaluated(capsys, getattr(finished, kind), "--manifest", manifest, "--output", tmp_path, *size)
    found, final = read_json(tmp_path / "metrics.json")["metrics"], runs.summary(finished.run)["final"]
    own = {key: value for key, value in final.items() if key.split("/")[0] in ("val", "val_mask_meta")}
    assert len(own) > 100 and found == own


def test_training_photographs_of_the_run_are_counted(finished, validated, capsys):
    line = "the run was trained on 60 of 90 photographs, so these scores are too high; leave those photographs out of the manifest\n"
    assert line in evaluated(capsys, finished.run, "--manifest", finished.manifest)
    assert "was trained on" not in evaluated(capsys, finished.bundle, "--manifest", finished.manifest)  # it does not have the data
    assert "trained on" not in evaluated(capsys, finished.run, "--manifest", written(finished, "new_rows.csv", validated))


def test_the_mirror_image_changes_metrics_as_in_the_validation(finished, validated, tmp_path, capsys):
    manifest = written(
        finished, "mirrored.csv", [{key: row[key] for key in row if key not in ("observation", "station")} for row in validated]
    )
    printed = evaluated(capsys, finished.run, "--manifest", manifest, "--tta", "flip", "--output", tmp_path / "manifest")
    evaluated(capsys, finished.run, "--tta", "flip", "--output", tmp_path / "run")
    content = read_json(tmp_path / "manifest" / "metrics.json")
    (results,) = [read_json(path)["metrics"] for path in (tmp_path / "run").rglob("metrics.json")]
    own = {key: value for key, value in results.items() if key.split("/")[0] in ("val", "val_mask_meta")}
    plain = runs.summary(finished.run)["final"]
    assert content["tta"] == "flip" and "test-time augmentation flip, in place of none of the run" in printed
    assert len(own) > 100 and content["metrics"] == own and own["val/loss"] != plain["val/loss"]


@pytest.fixture(scope="module")
def scored(finished, validated, tmp_path_factory) -> SimpleNamespace:
    """Return the results on the validation rows, one of which is missing and another damaged."""
    rows = [dict(row) for row in validated]
    rows[3]["path"], rows[5]["path"] = "missing.jpg", "damaged.jpg"
    (finished.manifest.parent / "damaged.jpg").write_bytes(finished.photograph(0).read_bytes()[:200])
    manifest, folder = written(finished, "scored.csv", rows), tmp_path_factory.mktemp("scored")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        words = ["--manifest", manifest, "--by", "station", "--output", folder, "--setting", "data.group_column=observation"]
        words += ["--setting", "data.max_bad_fraction=0.1", "--clade", "family"]
        assert linnaeus.__main__.main(["evaluate", *map(str, [finished.bundle, *words])]) == 0
    return SimpleNamespace(folder=folder, text=output.getvalue(), photographs=read_csv(folder / "photographs.csv"))


def test_each_part_has_the_accuracy_of_its_photographs(scored, finished):
    parts = read_csv(scored.folder / "groups.csv")
    counts = {row["lineage"]: int(row["training"]) for row in read_csv(finished.bundle / "class_counts.csv") if row["rank"] == "species"}
    by_name = {lineage.split("|")[-1]: count for lineage, count in counts.items()}
    read = [row for row in scored.photographs if not row["error"]]

    def belongs(row: dict[str, str], kind: str, name: str) -> bool:
        if kind == "metadata":
            return (name.split()[1] in row["metadata"].split()) == name.startswith("with ")
        if kind == "training photos":
            return name == "fewer than 20" and row["species_known"] == "1" and 0 <= by_name.get(row["species"], -1) < 20
        return kind == "all" or row[kind] == name

    assert {part["kind"] for part in parts} == {"all", "family", "metadata", "training photos", "station"}
    for part in parts:
        own = [row for row in read if belongs(row, part["kind"], part["name"])]
        assert int(part["photographs"]) == len(own) and int(part["observations"]) == len({row["observation"] for row in own}), part
        for rank in ("order", "species"):
            for metric, column in (("top1", "right"), ("top5", "top5"), ("loss", "loss")):
                values = [float(row[f"{rank}_{column}"]) for row in own if row[f"{rank}_{column}"]]
                assert part[f"{rank}/{metric}"] == "" if not values else float(part[f"{rank}/{metric}"]) == pytest.approx(np.mean(values))
    everything, metrics = parts[0], read_json(scored.folder / "metrics.json")["metrics"]
    for name in ("order/top1", "order/top1_low", "species/top1_high", "hd1", "hd1_low", "severity_high", "chain", "genus/ece", "aurc"):
        assert float(everything[name]) == metrics[f"val/{name}"], name


def test_the_training_photographs_of_each_class_are_those_of_the_manifest(finished):
    tree = linnaeus.load_model(finished.bundle).tree
    counts = training_counts(finished.bundle, tree)
    train = [row for row in finished.rows() if row["split"] == "train"]
    for rank, names, found in zip(tree.ranks, tree.names, counts, strict=True):
        assert found.sum() == sum(bool(row[rank]) for row in train)
        for name in set(names):
            assert sum(found[c] for c, own in enumerate(names) if own == name) == sum(row[rank] == name for row in train)


def test_unknown_taxa_and_unreadable_photographs_are_counted(scored, finished):
    record, rows = read_json(scored.folder / "metrics.json"), scored.photographs
    assert len(rows) == 30 and record["rows"] == 29 and record["scored"] == 28
    assert [one["photograph"] for one in record["unreadable"]] == ["missing.jpg", "damaged.jpg"]
    assert [row["photograph"] for row in rows if row["error"]] == ["damaged.jpg", "missing.jpg"]
    assert "2 photographs could not be read: missing.jpg (image file missing), damaged.jpg (" in scored.text
    names = linnaeus.load_model(finished.bundle).tree.names
    unknown = read_csv(scored.folder / "unknown_taxa.csv")
    for rank, own in zip(("order", "family", "genus", "species"), names, strict=True):
        strange = [row for row in rows if row[rank] and row[rank] not in own]
        assert record["unknown_taxa"][rank]["photographs"] == len(strange) == sum(row[f"{rank}_known"] == "0" for row in rows)
        assert sum(int(row["photographs"]) for row in unknown if row["rank"] == rank) == len(strange)
        assert all(row[f"{rank}_right"] == "" for row in strange) and any(row["order_right"] for row in strange or rows)
    assert record["unknown_taxa"]["species"]["photographs"] > 5
    tables = scored.text[scored.text.index("metadata  ") : scored.text.index(str(scored.folder))]
    assert max(map(len, tables.splitlines())) <= 80


def test_tables_of_an_earlier_evaluation_are_not_left_in_the_folder(finished, validated, tmp_path, capsys):
    known = linnaeus.load_model(finished.bundle).tree.names[-1]
    for only, there in ((False, True), (True, False)):
        rows = [row for row in validated if not only or row["species"] in known]
        printed = evaluated(capsys, finished.bundle, "--manifest", written(finished, "again.csv", rows), "--output", tmp_path)
        assert (tmp_path / "unknown_taxa.csv").exists() == (tmp_path / "outside.csv").exists() == there
        assert ("unknown_taxa.csv" in printed) == ("outside.csv" in printed) == there


@pytest.mark.slow
def test_the_difference_of_two_models(finished, validated, tmp_path, capsys, monkeypatch):
    load = manifest_evaluation.load_model

    def changed(path: Path, **options: Any) -> Any:
        model = load(path, **options)
        if path == finished.run:
            torch.manual_seed(0)
            with torch.no_grad():
                for parameter in model.model.parameters():
                    parameter += 0.1 * torch.randn_like(parameter)
        return model

    monkeypatch.setattr(manifest_evaluation, "load_model", changed)
    manifest = written(finished, "compared.csv", validated)
    words = ["--manifest", manifest, "--compare", finished.run, "--batch-size", "4", "--output", tmp_path]
    text = evaluated(capsys, finished.bundle, *words)
    first, other = (read_json(tmp_path / f"model-{number}" / "metrics.json")["metrics"] for number in (1, 2))
    found = {row["metric"]: row for row in read_csv(tmp_path / "differences.csv")}
    assert {"order/top1", "species/top5", "genus/loss", "chain", "hd1", "severity"} <= found.keys()
    for name, row in found.items():
        difference = other[f"val/{name}"] - first[f"val/{name}"]
        assert float(row["difference"]) == pytest.approx(difference, abs=1e-6), name
        assert float(row["low"]) <= float(row["difference"]) <= float(row["high"])
    assert any(float(row["low"]) < float(row["high"]) for row in found.values())
    pairs = list(zip(*(read_csv(tmp_path / f"model-{number}" / "photographs.csv") for number in (1, 2)), strict=True))
    ranks = ("order", "family", "genus", "species")
    differ = {a["photograph"]: next((r for r in ranks if a[f"{r}_predicted"] != b[f"{r}_predicted"]), None) for a, b in pairs}
    listed = {row["photograph"]: row["rank"] for row in read_csv(tmp_path / "disagreements.csv")}
    assert listed == {name: rank for name, rank in differ.items() if rank} and listed
    assert f"30 photographs; the predicted taxa differ on {len(listed)}" in text
    assert "from an earlier evaluation" not in text
    (tmp_path / "model-2").rename(tmp_path / "model-3")
    text = evaluated(capsys, finished.bundle, *words)
    assert "from an earlier evaluation, not replaced: model-3/metrics.json\n" in text


def test_the_interval_of_a_difference_uses_the_same_draws_for_both():
    rng = np.random.default_rng(0)
    denominator = rng.integers(1, 4, (40, 1)).astype(float)
    shared = rng.random((40, 1)) * denominator
    first, second = (shared, denominator), (shared + 0.1 * denominator, denominator)
    value, low, high = difference_intervals(first, second)
    assert value == pytest.approx(0.1) and low == pytest.approx(0.1) and high == pytest.approx(0.1), "a constant gain has no spread"
    second = (rng.random((40, 1)) * denominator, denominator)
    drawn = times_drawn(40, 0, RESAMPLES)
    differences = (drawn @ second[0] - drawn @ shared) / (drawn @ denominator)
    found = difference_intervals(first, second)
    assert [float(found[1][0]), float(found[2][0])] == pytest.approx(np.quantile(differences, [0.025, 0.975]).tolist())


def test_differences_of_means_over_classes_and_of_calibration_errors():
    rng, group = np.random.default_rng(0), np.arange(90) // 3
    label, right = rng.integers(0, 5, 90), [rng.random(90) < share for share in (0.5, 0.7)]
    pair = [paired_bins.macro(label, one) for one in right]
    first, other, difference, low, high = paired_bins.paired(pair[0], pair[1], group)
    means = [np.mean([one[label == c].mean() for c in range(5)]) for one in right]
    assert (first, other, difference) == pytest.approx((*means, means[1] - means[0])) and low < difference < high
    same = paired_bins.paired(pair[0], pair[0], group)
    assert same[2:] == (0, 0, 0)  # the same draws for both
    assert np.isnan(paired_bins.paired(pair[0], pair[1], np.zeros(90, int))[3:]).all()

    log_p = np.log(rng.uniform(0.2, 1, 90).astype(np.float32))
    tree = TaxonomyTree.from_lineages(("species",), np.array([["a"], ["b"]]))[0]
    columns = np.ones((90, 1), bool), right[0][:, None], log_p[:, None]
    error = paired_bins.expected_calibration_error(right[0], log_p)
    assert paired_bins.paired(error, error, None)[0] == pytest.approx(calibration_error(tree, *columns)["species/ece"], abs=1e-6)


@pytest.mark.parametrize("restricted", [False, True])
def test_a_calibration_is_measured_with_the_probabilities_of_predictions(finished, restricted):
    """The temperatures are far from 1, so that some taxa are the most probable ones only with them."""
    model = linnaeus.load_model(finished.run)
    config = HeadConfig("conditional", "ignore")
    model.model.head, model.description = build_head(config, model.width, model.tree), replace(model.description, head=config)
    for parameter in model.model.head.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    model.calibration = Calibration("", 1, (9.0, 0.1, 9.0, 0.1), 0.95, (Precision(0.5, 0.5, 0.5, 0.5),), {})
    model = model.restricted(model.tree.names[-1][::2]) if restricted else model
    rows = read_labels(str(finished.manifest), [], model.components)
    measured = measure("model", model, rows, None, Settings(8, 1))
    images = [model.read(finished.manifest.parent / name) for name in rows.records.files.names]
    expected = model.scored(images, *encode(rows.records.metadata, model.components)).probabilities
    best, largest = np.stack([p.argmax(1) for p in expected], 1), np.stack([p.max(1) for p in expected], 1)
    assert (measured.tempered.best == best).all() and np.allclose(np.exp(measured.tempered.best_log_p), largest, atol=1e-5)
    labels = measured.labels._replace(labels=best, unknown=np.zeros(best.shape, bool))  # so that each most probable class is right
    found, (row, *_) = of_model(replace(measured, labels=labels), None)
    right = np.ones(best.shape, bool)
    assert found == pytest.approx(calibration_error(model.tree, right, right, np.log(largest)), abs=1e-5) and row["stated"] == 0.5


def test_rows_without_an_observation_are_observations_of_their_own(finished, validated):
    rows = [row | {"observation": row["observation"] if i < 4 else ""} for i, row in enumerate(validated)]
    found = read_labels(str(written(finished, "few_groups.csv", rows)), ["data.group_column=observation"], ["SPATIAL"])
    assert len(set(found.group.tolist())) == 2 + len(rows) - 4
    assert any("'observation' is missing in" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["{bundle}"], "is not a run directory: it has no config.yaml; give one, such as outputs/biota/1a2b3c, or --manifest"),
        (["{run}", "--by", "station"], "--by has no effect without --manifest"),
        (["{run}", "--compare", "{bundle}"], "--compare has no effect without --manifest"),
        (["{bundle}", "--manifest", "{manifest}", "--split", "test"], "--split has no effect with --manifest"),
        (["{bundle}", "--manifest", "{manifest}", "--tta", "none,flip"], "--tta is none,flip; with --manifest give one of them"),
        (["{bundle}", "--manifest", "{manifest}", "--tta", "both"], "tta is 'both'; it must be none or flip"),
        (["{bundle}", "trainer.device=cpu", "--manifest", "{manifest}"], "trainer.device=cpu has no effect with --manifest"),
        (["{bundle}", "--manifest", "no.csv"], "--manifest: 'no.csv' does not exist"),
        (["{bundle}", "--manifest", "{manifest}", "--by", "nothing"], "the manifest does not have a column 'nothing'"),
        (["{bundle}", "--manifest", "{manifest}", "--clade", "tribe"], "--clade is 'tribe', which is not a rank of the model"),
        (["{bundle}", "--manifest", "{manifest}", "--batch-size", "0"], "--batch-size is 0; it must be from 1"),
        (["{bundle}", "--manifest", "{manifest}", "--setting", "seed=1"], "--setting: seed=1 has no effect here"),
        (["{bundle}", "--manifest", "{manifest}", "--setting", "data.image_size=64"], "data.image_size=64 has no effect here; give"),
        (["{bundle}", "--manifest", "{manifest}", "--checkpoint", "newest"], "is a bundle, which has one set of weights"),
        (["{bundle}", "--manifest", "{manifest}", "--output", "{manifest}"], "is not a folder; choose another one"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(finished, tmp_path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    given = [word.format(run=finished.run, bundle=finished.bundle, manifest=finished.manifest) for word in words]
    with pytest.raises(SystemExit) as ended:
        linnaeus.__main__.main(["evaluate", *given, *([] if "--output" in given else ["--output", "out"])])
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and line in printed and printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_classes_at_the_limits_of_many_and_few_are_between_them():
    counts, labels = [np.array([101, 100, 20, 19])], np.array([[0], [1], [2], [3], [-1]])
    measured = SimpleNamespace(training_counts=counts, labels=SimpleNamespace(labels=labels))
    assert [np.flatnonzero(group.rows).tolist() for group in photograph_groups._shots(measured)] == [[0], [1, 2], [3]]
