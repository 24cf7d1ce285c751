"""Calibrated answers: the stated precision and coverage by simulation, with negative controls, and the command on a finished run."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch

import linnaeus
from benchmarks.guarantee import draw, synthetic
from linnaeus.errors import ConfigError
from linnaeus.workloads import export_cli
from linnaeus.workloads.taxonomy.trained.calibrate import calibrate_cli, calibration_fit, guarantee
from linnaeus.workloads.taxonomy.trained.predict import predict_cli
from linnaeus.workloads.taxonomy.trained.rollup import NONE, RIGHT, UNKNOWN, WRONG, Paths, answer_ranks, confident_paths, outcomes

PATHS = Paths(np.array([[0, 3, 7]]), np.array([[0.9, 0.6, 0.2]]))


@pytest.mark.parametrize(("threshold", "rank"), [(0.1, 2), (0.2, 2), (0.21, 1), (0.6, 1), (0.9, 0), (0.91, NONE)])
def test_the_answer_is_the_finest_taxon_that_reaches_the_threshold(threshold, rank):
    assert answer_ranks(PATHS, threshold).tolist() == [rank]
    hole = Paths(np.array([[0, -1, 7]]), np.array([[0.9, 0.9, 0.2]]))
    assert answer_ranks(hole, 0.5).tolist() == [0]


def test_confidence_never_grows_with_depth():
    probabilities = (np.array([[0.5, 0.5]]), np.array([[0.1, 0.9]]), np.array([[0.3, 0.7]]))
    paths = confident_paths(probabilities, np.array([[1, 1, -1]]))
    assert paths.confidence.tolist() == [[0.5, 0.5, 0.5]]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ([0, 3, 7], [RIGHT, RIGHT, RIGHT]),
        ([0, 3, 8], [RIGHT, RIGHT, WRONG]),
        ([0, 4, 9], [RIGHT, WRONG, WRONG]),
        ([0, 3, -1], [RIGHT, RIGHT, UNKNOWN]),
        ([0, 4, -1], [RIGHT, WRONG, WRONG]),
        ([0, -1, 7], [RIGHT, RIGHT, RIGHT]),
        ([0, -1, 8], [RIGHT, UNKNOWN, WRONG]),
        ([-1, -1, -1], [UNKNOWN, UNKNOWN, UNKNOWN]),
    ],
)
def test_an_answer_is_right_wrong_or_unknown(label, expected):
    assert outcomes(PATHS, np.array([label])).tolist() == [expected]


def test_the_binomial_distribution():
    assert guarantee.binomial_cdf(0, 59, 0.05) == pytest.approx(0.95**59)
    whole = sum(math.comb(40, k) * 0.1**k * 0.9 ** (40 - k) for k in range(6))
    assert guarantee.binomial_cdf(5, 40, 0.1) == pytest.approx(whole) and guarantee.binomial_cdf(40, 40, 0.1) == pytest.approx(1)


def test_the_order_statistics_are_those_of_conformal_prediction():
    scores = np.arange(1, 20) / 20.0  # 19 photographs: the 18th of 19 for 0.9
    paths = Paths(np.zeros((19, 1), dtype=int), scores[:, None])
    wrong = np.ones((19, 1), dtype=int)
    assert guarantee.on_average(paths, wrong, 0.9) == np.nextafter(scores[17], 1)
    assert guarantee.on_average(paths, wrong, 0.96) == guarantee.NEVER
    assert guarantee.set_threshold(scores, 0.9) == scores[1] and guarantee.set_threshold(scores, 0.96) == 0.0


def test_stated_precision_and_coverage_hold_in_a_simulation_and_the_interpolated_quantile_misses():
    population, precisions, draws = synthetic(3000, 0), (0.9, 0.95), 60
    with torch.inference_mode():
        found = [draw(population, 500, seed, precisions) for seed in range(draws)]
    for i, precision in enumerate(precisions):
        missed, answered = np.mean([d.missed[i] for d in found]), np.mean([d.answered[i] for d in found])
        assert missed <= 0.05 + 3 * (0.05 * 0.95 / draws) ** 0.5 and answered > 0.1
        average, interpolated = np.mean([d.average[i] for d in found]), np.mean([d.interpolated[i] for d in found])
        error = np.std([d.average[i] for d in found]) / draws**0.5
        assert precision - 3 * error <= average <= precision + 1 / 400 + 3 * error
        assert interpolated < average  # by 1 / 400 at most, in every draw
    for coverage, covered in zip(calibration_fit.COVERAGES, np.mean([d.covered for d in found], axis=0), strict=True):
        assert (covered > coverage - 0.01).all() and (covered < coverage + 0.02).all()


def test_thresholds_of_other_photographs_than_the_tests_would_miss(monkeypatch):
    """Negative control: the largest candidate that looks right on the calibration, without a test, misses in half of the draws."""
    monkeypatch.setattr(
        guarantee, "p_value", lambda found, precision: 0.0 if found.answered and 1 - found.wrong / found.answered >= precision else 1.0
    )
    population = synthetic(3000, 0)
    with torch.inference_mode():
        missed = [draw(population, 500, seed, (0.9,)).missed[0] for seed in range(30)]
    assert np.mean(missed) > 0.2


def test_the_temperature_is_the_most_likely_one():
    rng = np.random.default_rng(0)
    true = torch.from_numpy(rng.normal(0, 2, (4000, 6))).log_softmax(1)
    label = torch.from_numpy((true.exp().numpy().cumsum(1) > rng.random((4000, 1))).argmax(1))
    assert calibration_fit.fit_temperature((true * 2.5).log_softmax(1), label) == pytest.approx(2.5, rel=0.1)
    assert calibration_fit.fit_temperature(true[:0], label[:0]) == 1.0


def test_one_photograph_of_each_observation_is_used():
    group = np.array([3, 3, 3, 1, 2, 2])
    rows = calibration_fit.one_of_each(group, 6)
    assert sorted(group[rows].tolist()) == [1, 2, 3] and calibration_fit.one_of_each(None, 3).tolist() == [0, 1, 2]


@pytest.fixture
def calibrated(finished, tmp_path, monkeypatch):
    """A copy of the run, calibrated on its 90 photographs; 12 observations are enough here."""
    monkeypatch.setattr(calibration_fit, "FEWEST", 12)
    shutil.copytree(finished.run, tmp_path / "run")
    words = ["--manifest", str(finished.manifest), "--precision", "0.1", "0.5", "--confidence", "0.6"]
    assert calibrate_cli.main([str(tmp_path / "run"), *words]) == 0
    return tmp_path / "run"


def test_a_calibrated_run_rolls_up_its_answers_everywhere(finished, calibrated, tmp_path, capsys):
    content = json.loads((calibrated / "calibration.json").read_text())
    assert content["photographs"] > 60 and [one["precision"] for one in content["precisions"]] == [0.1, 0.5]
    plain, model = linnaeus.load_model(finished.run), linnaeus.load_model(calibrated)
    photographs = [finished.photograph(i) for i in range(20)]
    threshold = model.calibration.threshold(0.1)
    for before, one in zip(plain.predict(photographs), model.predict(photographs, precision=0.1), strict=True):
        assert before.answer is None and before.precision is None and one.precision == 0.1
        reached = [taxon for taxon in one.path if min(t.probability for t in one.path[: one.path.index(taxon) + 1]) >= threshold]
        assert (one.answer.rank, one.answer.name) == (reached[-1].rank, reached[-1].name) if reached else one.answer is None
    sets = model.predict(photographs[0], coverage=0.9).ranks
    for rank, least in zip(model.tree.ranks, model.calibration.set_thresholds(0.9), strict=True):
        assert len(sets[rank]) == 1 or all(taxon.probability >= least for taxon in sets[rank])

    assert export_cli.main([str(calibrated), str(tmp_path / "bundle")]) == 0
    assert linnaeus.load_model(tmp_path / "bundle").predict(photographs, precision=0.1) == model.predict(photographs, precision=0.1)
    words = [str(tmp_path / "bundle"), str(photographs[0]), "--precision", "0.1", "--threads", "1"]
    assert predict_cli.main([*words, "--out", str(tmp_path / "out.csv")]) == 0 and predict_cli.main(words) == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    answer = model.predict(photographs[0], precision=0.1).answer
    assert row["answer"] == ("" if answer is None else answer.name) and "answer with a precision of 0.1" in capsys.readouterr().out


def test_the_precision_of_the_answers_is_printed(finished, calibrated, tmp_path, capsys):
    path = calibrated / "calibration.json"
    content = json.loads(path.read_text())
    content["precisions"][1]["threshold"] = 2.0
    path.write_text(json.dumps(content))
    words = [str(calibrated), str(finished.photograph(0)), "--threads", "1", "--out", str(tmp_path / "out.csv")]
    assert predict_cli.main(words) == 0
    assert "precision of the answers: 0.1 (calibrated for 0.1, 0.5)" in capsys.readouterr().out
    assert predict_cli.main([*words, "--precision", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert "no answers: no threshold reaches the precision 0.5 (calibrated for 0.1, 0.5)" in printed
    assert "1 of 1 photograph answered" in printed and "0 of them have a taxon with the stated precision" in printed


def test_a_calibration_of_other_weights_is_not_used(calibrated):
    path = calibrated / "calibration.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"weights": "0" * 64}))
    assert linnaeus.load_model(calibrated).calibration is None


def test_what_was_not_fitted_is_one_line(finished, calibrated, monkeypatch, capsys):
    monkeypatch.setattr(calibration_fit, "FEWEST", 60)
    with pytest.raises(ConfigError, match="precision needs a calibrated model"):
        linnaeus.load_model(finished.run).predict(finished.photograph(0), precision=0.9)
    with pytest.raises(ConfigError, match=r"precision is 0\.9; the model is calibrated for 0\.1, 0\.5"):
        linnaeus.load_model(calibrated).predict(finished.photograph(0), precision=0.9)
    with pytest.raises(ConfigError, match=r"coverage is 0\.5; the model is calibrated for 0\.9, 0\.95"):
        linnaeus.load_model(calibrated).predict(finished.photograph(0), coverage=0.5)
    for words, line in (
        ([str(finished.bundle)], "is a bundle; calibrate the run"),
        ([str(finished.run), "--precision", "1"], "--precision is 1; it must be above 0 and below 1"),
        ([str(finished.run), "--split", "test"], "calls no row test"),
        ([str(finished.run)], "too few for a calibration"),
    ):
        with pytest.raises(SystemExit) as exit_:
            calibrate_cli.main(words)
        printed = capsys.readouterr().err
        assert exit_.value.code == 2 and line in printed and printed.count("\n") == 1


def test_taxa_that_the_model_does_not_know_are_named_and_not_used(finished, tmp_path, capsys):
    rows = finished.rows()
    for row in rows[:10]:
        row |= {"genus": "Nova", "species": "Nova planta"}
    with (finished.manifest.parent / "other.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    shutil.copytree(finished.run, tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration_fit, "FEWEST", 12)
        assert calibrate_cli.main([str(tmp_path / "run"), "--manifest", str(finished.manifest.parent / "other.csv")]) == 0
    found = re.search(r"unknown to the model: \d+ species tax(?:on|a) \((\d+) photographs\)", capsys.readouterr().out)
    unknown = int(found[1])  # some species have validation photographs only
    assert 10 <= unknown <= 30
    assert json.loads((tmp_path / "run" / "calibration.json").read_text())["photographs"] <= 90 - unknown
