"""Tests of the answer "none of these": familiarity, its threshold, its AUROC, and the precision of a calibration on other photographs."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import linnaeus
import linnaeus.__main__
from linnaeus.workloads.taxonomy.trained.calibrate import calibrate_cli, calibration_fit
from linnaeus.workloads.taxonomy.trained.calibrate.calibration_fit import Evidence, fit_thresholds, is_tuning
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import Matched
from linnaeus.workloads.taxonomy.trained.evaluate.stated_precision import Answered, precision_rows
from linnaeus.workloads.taxonomy.trained.predict import predict_cli
from linnaeus.workloads.taxonomy.trained.predict.prediction_files import FORMATS
from linnaeus.workloads.taxonomy.trained.probabilities.familiarity import auroc, familiarity
from linnaeus.workloads.taxonomy.trained.probabilities.rollup import Paths


def test_familiarity_is_one_over_the_number_of_taxa_that_remain():
    two, certain, only = torch.tensor([[0.5, 0.5, 0.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.ones(1, 1)
    assert familiarity([only, two]).item() == pytest.approx(1 / 2)
    assert familiarity([two, torch.full((1, 8), 1 / 8)]).item() == pytest.approx(1 / 4)
    assert familiarity([certain, two]).item() == pytest.approx(2**-0.5) and familiarity([only]).item() == 1.0


def test_the_auroc_is_the_share_of_pairs_in_order():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(0.7, 1, 60).round(1), rng.normal(0, 1, 40).round(1)
    pairs = inside[:, None] - outside
    found = auroc(inside, outside, (np.arange(60), np.arange(40)))
    assert found.value == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())
    doubled = auroc(inside.repeat(2), outside.repeat(2), (np.arange(60).repeat(2), np.arange(40).repeat(2)))
    assert doubled == pytest.approx(found)  # copies in an observation add no information
    assert np.isnan(auroc(inside, outside[:0], (np.arange(60), np.arange(0))).value)


def test_the_interval_of_an_auroc_has_the_truth_in_most_draws():
    rng, truth, held = np.random.default_rng(1), 0.7602, 0  # of two normal distributions that are 1 apart
    for _ in range(200):
        groups = (np.arange(60).repeat(3), np.arange(40).repeat(2))
        inside, outside = rng.normal(1, 1, 60).repeat(3), rng.normal(0, 1, 40).repeat(2)
        found = auroc(inside, outside, groups)
        held += found.low <= truth <= found.high
    assert 180 <= held <= 199


def evidence(count: int) -> Evidence:
    """Half of the photographs are unfamiliar and wrong, the others are right, all with the same confidence at the only rank."""
    known = np.arange(count) % 2
    paths = Paths(np.zeros((count, 1), int), np.linspace(0.5, 0.9, count)[:, None])
    return Evidence(paths, np.full((count, 1), 0.9), 1 - known[:, None], known * 0.5 + np.linspace(0.1, 0.2, count))


def test_unfamiliar_photographs_get_no_answer_and_the_precision_is_calibrated_with_this_rule():
    count = 2000
    without = fit_thresholds(evidence(count), is_tuning(count), "", [1.0], [0.9], 0.95, 0.999)
    gated = fit_thresholds(evidence(count), is_tuning(count), "", [1.0], [0.9], 0.95, 0.45)
    assert without.precisions[0].threshold > 1 and gated.precisions[0].threshold < 0.52
    assert gated.familiar > 0.5 and gated.precisions[0].answered == pytest.approx(0.45, abs=0.05)


def test_the_stated_share_of_photographs_is_kept_on_average():
    rng, kept = np.random.default_rng(2), []
    for _ in range(300):
        values = rng.random(500)
        drawn = Evidence(Paths(np.zeros((500, 1), int), np.ones((500, 1))), np.ones((500, 1)), np.zeros((500, 1), int), values)
        kept.append(1 - fit_thresholds(drawn, is_tuning(500), "", [1.0], [0.9], 0.95, 0.9).familiar)
    assert 0.9 - 0.006 < np.mean(kept) < 0.9 + 0.012  # 1 / 101 at most above, and errors


def test_precision_is_that_of_the_answers_and_unknown_taxa_are_right_above_their_rank():
    paths = Paths(np.array([[0, 1], [0, 1], [0, 1], [0, 2], [1, 3]]), np.array([[0.9, 0.8]] * 3 + [[0.9, 0.2], [0.1, 0.1]]))
    labels = Matched(
        np.array([[0, 1], [0, 2], [0, -1], [0, -1], [1, 3]]),
        np.array([[0, 0]] * 2 + [[0, 1]] * 2 + [[0, 0]], bool),
        np.zeros((5, 2), bool),
        [],
    )
    ours, others = precision_rows(Answered(paths, labels, np.ones(5, bool), None), {0.9: 0.5}, ("genus", "species"))
    assert (ours["photographs"], ours["precision"], ours["answered"]) == (3, 0.5, pytest.approx(2 / 3))
    assert (others["photographs"], others["precision"], others["answered"]) == (2, 0.5, 1.0)  # the species is wrong, the genus is right
    assert (others["answered/genus"], others["answered/species"]) == (0.5, 0.5)


@pytest.fixture(scope="module")
def calibrated(finished, tmp_path_factory):
    """A copy of the run, calibrated so that a third of the photographs are none of these. No test changes it."""
    run = tmp_path_factory.mktemp("calibrated") / "run"
    shutil.copytree(finished.run, run)
    words = ["--manifest", str(finished.manifest), "--precision", "0.1", "--confidence", "0.6", "--keep", "0.66"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration_fit, "FEWEST", 12)
        patch.setattr("torch.set_num_threads", lambda threads: None)
        assert calibrate_cli.main([str(run), *words]) == 0
    return run


@pytest.fixture(autouse=True)
def threads_of_the_tests(monkeypatch):
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)


def test_none_of_these_in_python_and_in_files(finished, calibrated, tmp_path):
    model, plain = linnaeus.load_model(calibrated), linnaeus.load_model(finished.run)
    photographs = [finished.photograph(i) for i in range(30)]
    found = model.predict(photographs)
    assert {one.outside for one in found} == {True, False} and all(one.answer is None for one in found if one.outside)
    assert all(one.outside == (one.familiarity < model.calibration.familiar) for one in found)
    assert plain.predict(photographs[0]).outside is None and plain.predict(photographs[0]).familiarity > 0
    here = model.restricted([model.tree.names[-1][0], model.tree.names[-1][1]])
    assert [one.familiarity for one in here.predict(photographs)] == [one.familiarity for one in found]

    out = tmp_path / "out.csv"
    assert predict_cli.main([str(calibrated), *map(str, photographs), "--threads", "1", "--out", str(out)]) == 0
    with out.open(newline="") as file:
        assert [row["outside"] for row in csv.DictReader(file)] == [str(int(one.outside)) for one in found]
    out = tmp_path / "out2.csv"
    assert predict_cli.main([str(calibrated), *map(str, photographs), "--threads", "1", "--out", str(out), "--format", "darwin_core"]) == 0
    assert out.read_text().count("none of the taxa of the model") == sum(one.outside for one in found)


def test_evaluate_measures_the_calibration_and_photographs_of_other_things(finished, calibrated, tmp_path, capsys):
    rows = finished.rows()
    for row in rows[:12]:
        row["species"] += " nova"
    for row in rows[12:24]:
        row |= {"genus": "Nova", "species": "Nova planta"}
    manifest = Path(finished.manifest.parent / "outside.csv")
    with manifest.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    folder = tmp_path / "things"
    folder.mkdir()
    for i in range(5):
        shutil.copy(finished.photograph(i), folder / f"{i}.jpg")
    (folder / "bad.jpg").write_bytes(b"no photograph")
    (folder / "notes.txt").touch()
    words = ["evaluate", str(calibrated), "--manifest", str(manifest), "--output", str(tmp_path / "scores"), "--outside", str(folder)]
    assert linnaeus.__main__.main(words) == 0
    printed, content = capsys.readouterr().out, json.loads((tmp_path / "scores" / "metrics.json").read_text())
    assert "1 photograph of --outside could not be read: bad.jpg (not an image" in printed
    assert "--outside: left out: 1 file without the suffix of a photograph" in printed
    kinds = {row["photographs of"]: row for row in content["outside"]}
    assert {"taxa of the model", "unseen species", "unseen genus", "no organism"} <= kinds.keys() and "unseen genus" in printed
    unseen = kinds["unseen genus"]  # some genera have validation photographs only
    assert unseen["photographs"] >= 12 and 0 <= unseen["auroc"] <= 1 and kinds["no organism"]["photographs"] == 5

    model = linnaeus.load_model(calibrated)
    with (tmp_path / "scores" / "photographs.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    own = [row for row in written if row["species_known"] == row["genus_known"] == "1"]
    strange = np.array([float(row["familiarity"]) for row in own]) < np.float32(model.calibration.familiar)
    assert kinds["taxa of the model"]["none of these"] == pytest.approx(strange.mean())
    (precision, *_) = content["precisions"]
    assert precision["photographs"] == len(own) and precision["answered"] <= 1 - strange.mean() + 1e-9
    assert content["calibrated"]["species/ece"] != content["metrics"]["val/species/ece"] and "ece/T" in printed


def test_taxa_that_a_list_excludes_are_taxa_of_the_model(finished, calibrated, tmp_path):
    """Familiarity is that among all taxa, so a list changes neither the photographs of the model's taxa nor the AUROC of the others."""
    tree = linnaeus.load_model(calibrated).tree
    (tmp_path / "list.txt").write_text("\n".join(tree.names[-1][::2]))
    results = {}
    for name, more in {"all": [], "some": ["--checklist", str(tmp_path / "list.txt")]}.items():
        words = ["evaluate", str(calibrated), "--manifest", str(finished.manifest), "--output", str(tmp_path / name), *more]
        assert linnaeus.__main__.main(words) == 0
        results[name] = json.loads((tmp_path / name / "metrics.json").read_text())
    assert results["some"]["outside"] == results["all"]["outside"] and len(results["all"]["outside"]) > 1
    assert results["some"]["unknown_taxa"] == results["all"]["unknown_taxa"]
    excluded = results["some"]["excluded_taxa"]["species"]["photographs"]
    assert results["all"]["excluded_taxa"]["species"]["photographs"] == 0 < excluded

    def read(folder: str, file: str) -> list[dict[str, str]]:
        with (tmp_path / folder / file).open(newline="") as opened:
            return list(csv.DictReader(opened))

    assert (tmp_path / "some" / "unknown_taxa.csv").read_text() == (tmp_path / "all" / "unknown_taxa.csv").read_text()
    assert not {row["taxon"] for row in read("some", "unknown_taxa.csv")} & {*tree.names[-1]}
    own = [row for row in read("some", "excluded_taxa.csv") if row["rank"] == "species"]
    assert {row["taxon"] for row in own} <= {*tree.names[-1][1::2]} and sum(int(row["photographs"]) for row in own) == excluded
    rows = read("some", "photographs.csv")
    assert sum(row["species_excluded"] == "1" for row in rows) == excluded
    assert all(row["species_known"] == "1" and row["species_right"] == "" for row in rows if row["species_excluded"] == "1")
    kinds = {row["photographs of"]: row["photographs"] for row in results["some"]["precisions"]}
    whole = {row["photographs of"]: row["photographs"] for row in results["all"]["precisions"]}
    assert kinds["excluded taxa"] >= excluded and kinds["other taxa"] == whole["other taxa"]
    assert kinds["taxa of the model"] + kinds["excluded taxa"] == whole["taxa of the model"]


UNCALIBRATED = {"camtrap_dp": "observationComments", "darwin_core": "identificationRemarks", "csv": "calibrated", "parquet": "calibrated"}


@pytest.mark.parametrize("form", [*UNCALIBRATED, "speciesnet", "megadetector"])
def test_each_format_says_whether_the_model_is_calibrated(finished, calibrated, tmp_path, form):
    rows = [
        row | {"mediaID": f"m{i}", "deploymentID": "d", "timestamp": "2021-05-30T04:57:00Z"} for i, row in enumerate(finished.rows()[:9])
    ]
    manifest = finished.manifest.parent / "said.csv"
    with manifest.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    for model, said in ((finished.run, True), (calibrated, False)):
        out = tmp_path / f"{said}{FORMATS[form].suffix}"
        words = [str(model), "--manifest", str(manifest), "--threads", "1", "--out", str(out), "--format", form]
        assert predict_cli.main(words) == 0
        if form == "parquet":
            cells = pytest.importorskip("pyarrow.parquet").read_table(out).to_pydict()[UNCALIBRATED[form]]
        elif form in UNCALIBRATED:
            with out.open(newline="") as file:
                cells = [row[UNCALIBRATED[form]] for row in csv.DictReader(file)]
        else:
            content = json.loads(out.read_text())
            cells = [content["info"]["classifier"]] if form == "megadetector" else [row["model_version"] for row in content["predictions"]]
        found = [int(cell) == 0 if UNCALIBRATED.get(form) == "calibrated" else "not calibrated" in cell for cell in cells]
        assert cells and found == [said] * len(cells)
