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
from benchmarks.guarantee import Population, Truth, draw, joined, raw, synthetic
from linnaeus.errors import ConfigError
from linnaeus.workloads import export_cli
from linnaeus.workloads.taxonomy.manifest import source_options
from linnaeus.workloads.taxonomy.store import prepare_store, store_layout
from linnaeus.workloads.taxonomy.trained.calibrate import calibrate_cli, calibration_fit, guarantee
from linnaeus.workloads.taxonomy.trained.calibrate.calibration_fit import Evidence
from linnaeus.workloads.taxonomy.trained.calibrate.fit import not_judged
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import group_note, matched, of_manifest, read_labels
from linnaeus.workloads.taxonomy.trained.predict import predict_cli, prediction_files
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration, Precision
from linnaeus.workloads.taxonomy.trained.probabilities.class_probabilities import class_log_probs
from linnaeus.workloads.taxonomy.trained.probabilities.rollup import (
    NONE,
    RIGHT,
    UNKNOWN,
    WRONG,
    Paths,
    answer_ranks,
    confident_paths,
    outcomes,
)
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests import runs
from tests.workloads.taxonomy.test_heads import CONFIGS, every, make
from tests.workloads.taxonomy.trained.conftest import SETTINGS

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


@pytest.mark.parametrize(("rate", "level"), [(0.05, 0.05), (0.01, 0.1), (0.7, 0.01)])
def test_the_greatest_number_of_wrong_answers_is_that_of_the_binomial_distribution(rate, level):
    found = guarantee.most_wrong(300, rate, level)
    assert found[0] == -1 and guarantee.most_wrong(59, 0.05, 0.05)[-2:].tolist() == [-1, 0]  # 0.95 ** 59 is 0.0485
    for n in (1, 2, 40, 299, 300):
        below = np.cumsum([math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(n + 1)])
        assert found[n] == int((below <= level).sum()) - 1


def test_answers_are_counted_at_every_threshold_as_they_are_given():
    rng = np.random.default_rng(0)
    path = np.where(rng.random((200, 3)) < 0.15, -1, rng.integers(0, 3, (200, 3)))
    label = np.where(rng.random((200, 3)) < 0.2, -1, rng.integers(0, 3, (200, 3)))
    paths = confident_paths(tuple(rng.dirichlet(np.ones(3) / 3, 200).round(2) for _ in range(3)), path)
    thresholds, judged = np.unique(paths.confidence), outcomes(paths, label)
    answered, wrong = guarantee.AnswerCounts.of(paths, label).at(thresholds)
    for i, threshold in enumerate(thresholds):
        rank = answer_ranks(paths, threshold)
        given = np.flatnonzero(rank != NONE)
        assert answered[i] == (judged[given, rank[given]] != UNKNOWN).sum() and wrong[i] == (judged[given, rank[given]] == WRONG).sum()


def test_labels_of_species_alone_judge_the_answers_of_every_rank():
    """Otherwise a wrong family would be left out where the species is wrong, too: of the coarse answers only right ones would count."""
    rows = np.array([["A", "a", "a s"], ["A", "a", "a t"], ["A", "b", "b s"], ["B", "", "c s"]])
    tree, own = TaxonomyTree.from_lineages(("family", "genus", "species"), rows)
    theirs, labels = TaxonomyTree.from_lineages(("species",), rows[:, 2:])
    found = matched(theirs, labels, tree)
    assert found.labels.tolist() == own.tolist() and not found.unknown.any()
    assert found.notes == [f"the labels have no rank {rank}: it follows from finer ranks" for rank in ("family", "genus")]
    paths = Paths(np.repeat(own[:1], 4, axis=0), np.ones((4, 3)))
    assert outcomes(paths, found.labels)[:, 0].tolist() == [RIGHT, RIGHT, RIGHT, WRONG]

    theirs, labels = TaxonomyTree.from_lineages(("family", "species"), np.array([["Z", "a s"], ["A", ""], ["", "b s"]]))
    found = matched(theirs, labels, tree)
    assert found.labels[:, 0].tolist() == [-1, 0, 0] and found.unknown[:, 0].tolist() == [True, False, False]  # Z stays unknown
    assert found.labels[1].tolist() == [0, -1, -1]


def test_the_order_statistics_are_those_of_conformal_prediction():
    scores = np.arange(1, 20) / 20.0  # 19 photographs: the 18th of 19 for 0.9
    paths = Paths(np.zeros((19, 1), dtype=int), scores[:, None])
    wrong = np.ones((19, 1), dtype=int)
    assert guarantee.on_average(paths, wrong, 0.9) == np.nextafter(scores[17], 1)
    assert guarantee.on_average(paths, wrong, 0.96) == guarantee.NEVER
    assert guarantee.set_threshold(scores, 0.9) == scores[1] and guarantee.set_threshold(scores, 0.96) == 0.0


def test_stated_precision_and_coverage_hold_in_a_simulation_and_the_interpolated_quantile_misses():
    population, precisions, draws = synthetic(4000, 0), (0.9, 0.95), 60
    with torch.inference_mode():
        found = [draw(population, population.sample(1000, seed), precisions) for seed in range(draws)]
        truth = Truth(population, [1.0, 1.0])
    for i, precision in enumerate(precisions):
        missed, answered = np.mean([d.missed[i] for d in found]), np.mean([d.answered[i] for d in found])
        assert missed <= 0.05 + 3 * (0.05 * 0.95 / draws) ** 0.5
        assert answered > (0.7, 0.5)[i] * truth.best(precision)
        average, interpolated = np.mean([d.average[i] for d in found]), np.mean([d.interpolated[i] for d in found])
        error = np.std([d.average[i] for d in found]) / draws**0.5
        assert precision - 3 * error <= average <= precision + 1 / 400 + 3 * error
        assert interpolated < average  # by 1 / 400 at most, in every draw
        assert np.mean([d.interpolated[i] < precision for d in found]) > 0.3  # it is stated as if it were 0.05
    for coverage, covered in zip(calibration_fit.COVERAGES, np.mean([d.covered for d in found], axis=0), strict=True):
        assert (covered > coverage - 0.01).all() and (covered < coverage + 0.02).all()


def test_most_of_the_answers_that_are_possible_are_given():
    """A test of the threshold that is best for a test, if that were known before, would give `possible` answers."""
    population = synthetic(4000, 0)
    with torch.inference_mode():
        answered = np.mean([draw(population, population.sample(5000, seed), (0.95,)).answered[0] for seed in range(20)])
        truth = Truth(population, [1.0, 1.0])
    assert answered >= 0.97 * truth.possible(0.95, 5000)


def test_thresholds_without_a_test_would_miss(monkeypatch):
    """Negative control: the least candidate that looks right on the calibration misses in half of the draws."""
    monkeypatch.setattr(guarantee, "most_wrong", lambda count, rate, level: np.floor(rate * np.arange(count + 1)))
    population = synthetic(4000, 0)
    with torch.inference_mode():
        missed = [draw(population, population.sample(500, seed), (0.9,)).missed[0] for seed in range(30)]
    assert np.mean(missed) > 0.2


@every(CONFIGS)
@torch.no_grad()
def test_temperatures_of_the_simulation_are_those_of_predictions(name, kind, null):
    tree, labels, head, features = make(name, kind, null)
    head, rows, temperature = head.eval(), np.random.default_rng(0).permutation(len(features)), (0.7, 1.4, 2.0, 0.9)
    scores = joined([raw(head(features[:7])), raw(head(features[7:]))])
    label = labels.masked_fill(labels >= torch.tensor(tree.sizes), -1)  # the simulation has no null labels
    population = Population(tree, scores, head(features).path().numpy(), label.numpy())
    expected = head(features[rows])
    found = population.probabilities(rows, temperature)
    for own, log_p, size in zip(found, expected.tempered(temperature).log_probs(), tree.sizes, strict=True):
        assert np.allclose(own, class_log_probs(log_p, size).exp(), rtol=1e-9, atol=1e-300)
    fitted = [calibration_fit.fit_temperature(*expected.choices(r, label[rows])) for r in range(len(tree.ranks))]
    assert population.temperatures(rows) == pytest.approx(fitted, rel=1e-6)


@pytest.mark.parametrize(("count", "share"), [(100, 0.2), (2000, 0.2), (3000, 400 / 3000), (100_000, 0.1)])
def test_few_photographs_choose_the_temperatures(count, share):
    assert calibration_fit.is_tuning(count).mean() == pytest.approx(share, abs=3 * (share / count) ** 0.5)


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


@pytest.fixture(scope="module")
def calibrated_once(finished, tmp_path_factory):
    """A copy of the run, calibrated on the 30 photographs that it was not trained on; 12 observations are enough here."""
    run = tmp_path_factory.mktemp("calibrated") / "run"
    shutil.copytree(finished.run, run)
    words = ["--manifest", str(finished.manifest), "--precision", "0.1", "0.5", "--confidence", "0.6"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration_fit, "FEWEST", 12)
        assert calibrate_cli.main([str(run), *words]) == 0
    return run


@pytest.fixture
def calibrated(calibrated_once, tmp_path):
    """A copy of the calibrated run, which a test may change."""
    shutil.copytree(calibrated_once, tmp_path / "run")
    return tmp_path / "run"


def test_a_calibrated_run_rolls_up_its_answers_everywhere(finished, calibrated, tmp_path, capsys):
    content = json.loads((calibrated / "calibration.json").read_text())
    assert 12 <= content["photographs"] <= 30 and [one["precision"] for one in content["precisions"]] == [0.1, 0.5]
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
    words = [str(calibrated), str(photographs[0]), "--coverage", "0.9", "--out", str(tmp_path / "sets.json"), "--threads", "1"]
    assert predict_cli.main(words) == 0
    (one,) = json.loads((tmp_path / "sets.json").read_text())["predictions"]
    assert {rank: [taxon["name"] for taxon in taxa] for rank, taxa in one["ranks"].items()} == {
        rank: [taxon.name for taxon in taxa] for rank, taxa in sets.items()
    }

    assert export_cli.main([str(calibrated), str(tmp_path / "bundle")]) == 0
    assert linnaeus.load_model(tmp_path / "bundle").predict(photographs, precision=0.1) == model.predict(photographs, precision=0.1)
    words = [str(tmp_path / "bundle"), str(photographs[0]), "--precision", "0.1", "--threads", "1"]
    assert predict_cli.main([*words, "--out", str(tmp_path / "out.csv")]) == 0 and predict_cli.main(words) == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    answer = model.predict(photographs[0], precision=0.1).answer
    assert row["answer"] == ("" if answer is None else answer.name) and "answer with a precision of 0.1" in capsys.readouterr().out


@pytest.mark.parametrize(("head", "consistent"), [("conditional", True), ("marginal", True), ("linear", False)])
def test_calibrated_probabilities_are_one_distribution_on_the_tree(finished, head, consistent, tmp_path, monkeypatch):
    """A parent has the sum of the probabilities of its children, with another temperature at each rank; not so with independent ranks."""
    monkeypatch.setattr(calibration_fit, "FEWEST", 12)
    settings = [text for text in runs.TINY if not text.startswith("schedule.checkpoint")]
    loss = [] if head == "linear" else [f"loss={head}"]
    short = ["trainer.length=2steps", "schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]"]
    config = runs.composed([*settings, *SETTINGS, *short, f"head={head}", *loss, f"data.path={finished.manifest}", f"run.root={tmp_path}"])
    assert runs.start(config) == 0
    run = runs.run_path(config)
    assert calibrate_cli.main([str(run), "--manifest", str(finished.manifest), "--precision", "0.1", "--confidence", "0.6"]) == 0
    path = run / "calibration.json"
    content = json.loads(path.read_text())
    fitted = content["temperature"]
    path.write_text(json.dumps(content | {"temperature": [t * (0.7, 1.6)[r % 2] for r, t in enumerate(fitted)]}))
    model = linnaeus.load_model(run)
    assert model.calibration is not None and len(fitted) == len(model.tree.ranks)
    found = model.predict(finished.photograph(0), top=model.tree.sizes[-1])
    probability = [{taxon.name: taxon.probability for taxon in found.ranks[rank]} for rank in model.tree.ranks]
    equal = True
    for r, names in enumerate(model.tree.names[:-1]):
        below = model.tree.paths[model.tree.offsets[r + 1] : model.tree.offsets[r + 1] + model.tree.sizes[r + 1], r]
        for c, name in enumerate(names):
            children = sum(probability[r + 1][model.tree.names[r + 1][child]] for child in np.flatnonzero(below == c))
            equal &= children == pytest.approx(probability[r][name], rel=1e-5)
    assert equal == consistent


def copied_photographs(finished, folder):
    """Copy the photographs to a folder, under other names. Write all.csv, and train.csv with those that the run was trained on."""
    rows = finished.rows()
    for i, row in enumerate(rows):
        shutil.copyfile(finished.photograph(i), folder / f"copy-{i}.jpg")
        row["path"] = f"copy-{i}.jpg"
    for name, kept in (("all", rows), ("train", [row for row in rows if row["split"] == "train"])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(kept)


def test_training_photographs_are_counted_and_left_out(finished, tmp_path, monkeypatch, capsys):
    """They are known by their bytes: here under other names, in another folder."""
    monkeypatch.setattr(calibration_fit, "FEWEST", 12)
    shutil.copytree(finished.run, tmp_path / "run")
    copied_photographs(finished, tmp_path)
    words = [str(tmp_path / "run"), "--precision", "0.1", "--confidence", "0.6", "--manifest"]
    assert calibrate_cli.main([*words, str(tmp_path / "all.csv")]) == 0
    assert "the run was trained on 60 of 90 photographs of the manifest, which are left out" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "calibration.json").read_text())["photographs"] <= 30
    with pytest.raises(SystemExit) as exit_:
        calibrate_cli.main([*words, str(tmp_path / "train.csv")])
    printed = capsys.readouterr().err
    assert exit_.value.code == 2 and "the run was trained on all of its photographs" in printed and printed.count("\n") == 1


def test_an_observation_with_a_training_photograph_is_left_out(finished, tmp_path):
    """Its other photographs show the same organism, so the answers for them are more often right than for a new one."""
    copied_photographs(finished, tmp_path)
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    other = [row["path"] for row in rows if row["split"] != "train"]
    shared = dict(zip(other[:5], (row["path"] for row in rows if row["split"] == "train"), strict=False))
    with (tmp_path / "observed.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, [*rows[0], "observation"])
        table.writeheader()
        table.writerows(row | {"observation": shared.get(row["path"], row["path"])} for row in rows)
    tree = linnaeus.load_model(finished.run).tree
    words = str(tmp_path / "observed.csv"), ["data.group_column=observation"], tree, (), None, finished.run
    data = of_manifest(*words)
    assert sorted(data.names) == sorted(other[5:])
    note = (
        "the run was trained on 60 of 90 photographs of the manifest, which are left out with 5 other photographs of the same observations"
    )
    assert note in data.notes


def test_rows_with_the_same_photograph_are_one_observation(finished):
    """A photograph that counted twice would make the calibration too certain, and intervals too narrow."""
    rows = finished.rows()[:6]
    manifest = finished.manifest.parent / "repeated.csv"
    for chosen, expected in ((rows, None), ([*rows, *rows[:2]], [0, 1, 2, 3, 4, 5, 0, 1])):
        with manifest.open("w", newline="") as file:
            table = csv.DictWriter(file, ["observation_id", *rows[0]])
            table.writeheader()
            table.writerows(chosen)
        read = read_labels(str(manifest), [], ())
        group = None if read.group is None else np.unique(read.group, return_inverse=True)[1]
        first = None if group is None else [group.tolist().index(number) for number in group]
        assert first == expected and group_note(read)


@pytest.mark.slow
def test_training_photographs_are_found_through_a_store_that_encoded_them_again(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(calibration_fit, "FEWEST", 12)
    monkeypatch.setattr(source_options, "compose", runs.composed)
    store = tmp_path / "store"
    options = [f"data.path={finished.manifest}", "--short-side=16", "--processes=1"]
    assert prepare_store.main(["manifest", str(store), *options]) == 0
    small = [text for text in runs.TINY if not text.startswith("schedule.checkpoint")]
    config = runs.composed([*small, *SETTINGS, "data=store", f"data.path={store}", f"run.root={tmp_path}"])
    assert runs.start(config) == 0
    run = runs.run_path(config)
    copied_photographs(finished, tmp_path)
    words = [str(run), "--precision", "0.1", "--confidence", "0.6", "--manifest"]
    capsys.readouterr()
    assert calibrate_cli.main([*words, str(tmp_path / "all.csv")]) == 0
    assert "the run was trained on 60 of 90 photographs of the manifest, which are left out" in capsys.readouterr().out
    assert json.loads((run / "calibration.json").read_text())["photographs"] <= 30
    with pytest.raises(SystemExit):
        calibrate_cli.main([*words, str(tmp_path / "train.csv")])
    assert "the run was trained on all of its photographs" in capsys.readouterr().err

    (store / "originals.npy").unlink()  # as in a store of an earlier program
    store_layout.write_record(store, store_layout.read_record(store))
    assert calibrate_cli.main([*words, str(tmp_path / "all.csv")]) == 0
    printed = capsys.readouterr().out
    assert "not compared with the training photographs: 90 of 90 photographs of the manifest" in printed
    assert "encoded again" in printed and "the run was trained on" not in printed


def test_the_precision_of_the_answers_is_printed(finished, calibrated, tmp_path, capsys):
    path = calibrated / "calibration.json"
    content = json.loads(path.read_text())
    content["precisions"][0]["threshold"], content["precisions"][1]["threshold"] = 0.01, 2.0  # whatever the network has learned
    path.write_text(json.dumps(content))
    words = [str(calibrated), str(finished.photograph(0)), "--threads", "1", "--out", str(tmp_path / "out.csv")]
    assert predict_cli.main(words) == 0
    assert "precision of the answers: 0.1 (calibrated for 0.1, 0.5)" in capsys.readouterr().out
    assert predict_cli.main([*words, "--precision", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert "no answers: no threshold reaches the precision 0.5 (calibrated for 0.1, 0.5); use --precision 0.1" in printed
    assert "1 of 1 photograph answered" in printed and "0 of them have a taxon with the stated precision" in printed


def test_a_command_is_not_continued_with_another_calibration(finished, calibrated, tmp_path, monkeypatch, capsys):
    """If no threshold reaches the precision, the thresholds of two calibrations are equal, but not their temperatures."""
    words = [str(calibrated), str(finished.photograph(0)), str(finished.photograph(1)), "--threads", "1", "--batch-size", "1"]
    words += ["--out", str(tmp_path / "out.csv")]
    with monkeypatch.context() as patch:
        patch.setattr(prediction_files, "write_file", lambda *arguments: None)  # as if the command were killed before this
        assert predict_cli.main(words) == 0
    path = calibrated / "calibration.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"temperature": [2 * t for t in content["temperature"]]}))
    with pytest.raises(SystemExit):
        predict_cli.main(words)
    assert "out.csv.journal is of another model or other photographs" in capsys.readouterr().err


def test_a_calibration_of_other_weights_is_not_used_and_the_commands_say_so(finished, calibrated, tmp_path, capsys):
    path, note = calibrated / "calibration.json", "calibration.json was fitted for other weights and is not used; calibrate again"
    predict = [str(calibrated), str(finished.photograph(0)), "--threads", "1"]
    assert predict_cli.main(predict) == 0
    assert note not in capsys.readouterr().out
    path.write_text(json.dumps(json.loads(path.read_text()) | {"weights": "0" * 64}))
    assert linnaeus.load_model(calibrated).calibration is None
    assert predict_cli.main(predict) == 0
    assert note in capsys.readouterr().out
    assert export_cli.main([str(calibrated), str(tmp_path / "bundle")]) == 0
    assert note in capsys.readouterr().out and not (tmp_path / "bundle" / "calibration.json").exists()


def test_a_calibration_that_is_not_json_is_one_line(calibrated):
    path = calibrated / "calibration.json"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(ConfigError, match=r"calibration.json: the calibration is damaged \(not a JSON object\); calibrate again"):
        linnaeus.load_model(calibrated)


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
        ([str(finished.run), "--split", "test"], "the split of the data has no test rows"),
        ([str(finished.run)], "too few for a calibration"),
    ):
        with pytest.raises(SystemExit) as exit_:
            calibrate_cli.main(words)
        printed = capsys.readouterr().err
        assert exit_.value.code == 2 and line in printed and printed.count("\n") == 1


def test_a_refusal_for_too_few_photographs_says_which_are_not_used(finished, capsys):
    with pytest.raises(SystemExit) as ended:
        calibrate_cli.main([str(finished.run), "--manifest", str(finished.manifest)])
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and printed.count("\n") == 1
    assert re.search(
        r"too few for a calibration; .*; the run was trained on \d+ of \d+ photographs of the manifest, which are left out", printed
    )


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


def test_answers_at_a_rank_without_labels_are_not_promised(finished, tmp_path, capsys):
    """No such answer could be wrong, so that any threshold would seem to be precise enough."""
    shutil.copytree(finished.run, tmp_path / "run")
    rows = [row | {"path": str(finished.photograph(i)), "species": ""} for i, row in enumerate(finished.rows())]
    with (tmp_path / "coarse.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    with pytest.raises(SystemExit) as ended:
        calibrate_cli.main([str(tmp_path / "run"), "--manifest", str(tmp_path / "coarse.csv")])
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and "no photograph has a label of rank species, so answers at this rank cannot be judged" in printed


def test_answers_that_are_finer_than_the_labels_are_counted():
    label = np.array([[0, -1]] * 4 + [[0, 0]] * 6)
    evidence = Evidence(Paths(np.zeros((10, 2), dtype=int), np.full((10, 2), 0.9)), np.ones((10, 2)), label, np.ones(10))
    found = Calibration("", 10, (1.0, 1.0), 0.95, tuple(Precision(0.9, t, t, 1.0) for t in (0.5, 0.95)), {})
    assert not_judged(evidence, found) == ["40.0 % of the answers are finer than the labels, and count neither as right nor as wrong"]
    assert not_judged(evidence.take(np.arange(4, 10)), found) == []


def test_equal_names_of_unknown_taxa_are_printed_once():
    tree, _ = TaxonomyTree.from_lineages(("family", "genus"), np.array([["A", "a"], ["B", "b"], ["C", "c"]]))
    theirs, labels = TaxonomyTree.from_lineages(("family", "genus"), np.array([["A", "Nova"], ["B", "Nova"], ["C", "Nova"]]))
    assert matched(theirs, labels, tree).notes == ["unknown to the model: 3 genus taxa (3 photographs): Nova"]


def test_photographs_are_not_called_observations(finished, tmp_path, monkeypatch, capsys):
    """Without a group column the photographs of an observation count as independent, and the command says so."""
    monkeypatch.setattr(calibration_fit, "FEWEST", 6)
    shutil.copytree(finished.run, tmp_path / "run")
    manifest = finished.manifest.parent / "observed.csv"
    rows = [row | {"observation_id": f"o{i // 2}"} for i, row in enumerate(finished.rows())]
    with manifest.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    words = [str(tmp_path / "run"), "--manifest", str(manifest)]
    note = "every photograph counts as an observation; --setting data.group_column=observation_id uses observation_id"
    assert calibrate_cli.main(words) == 0
    printed = capsys.readouterr().out
    assert note in printed and re.search(r"\d+ photographs; each precision is reached", printed)
    assert calibrate_cli.main([*words, "--setting", "data.group_column=observation_id"]) == 0
    printed = capsys.readouterr().out
    assert note not in printed and re.search(r"\d+ observations; each precision is reached", printed)
