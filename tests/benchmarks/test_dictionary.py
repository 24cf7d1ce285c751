"""Dictionaries beside SAELens on activations of models: the verdicts, the choice of settings, the finished trials, and the evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.dictionary.__main__ import SEEDS, judged, table, with_speed
from benchmarks.dictionary.one_pass import ALONE, TOGETHER, with_mean
from benchmarks.dictionary.reading import MEASURES, Reading
from benchmarks.dictionary.study import OURS, THEIRS, Size, Study, Trial
from benchmarks.saelens.child import read_folder
from benchmarks.saelens.trials import TrialFile
from linnaeus.workloads.dictionary.model.variants import build_dictionary
from linnaeus.workloads.dictionary.trained.export_dictionary import write_folder
from linnaeus.workloads.dictionary.trained.load_dictionary import load_model
from linnaeus.workloads.dictionary.trained.trained_dictionary import TrainedDictionary
from tests import runs
from tests.workloads.dictionary.test_variants import CONFIGS, WIDTH, activations

GOOD = {"l0": 16.0, "explained_variance": 0.9, "loss_recovered": 0.95, "dead": 0.1, "cpu_seconds": 1.0, "wall_seconds": 2.0}


def rows(theirs: float = 3.0, seeds: int = SEEDS, **changes: float) -> dict[tuple[str, int], list[dict[str, float]]]:
    """Return equal measures of all seeds for k = 16. theirs: CPU seconds of SAELens. changes: measures of linnaeus."""
    other = GOOD | {"cpu_seconds": theirs}
    return {(who, 16): [with_speed(row, 1000)] * seeds for who, row in ((OURS, GOOD | changes), (THEIRS, other))}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, 0),
        ({"explained_variance": 0.89}, 1),
        ({"loss_recovered": 0.94}, 1),
        ({"l0": 16.9}, 1),
        ({"l0": 15.1}, 1),
        ({"cpu_seconds": 1.01}, 1),  # less than three times as fast
        ({"theirs": 2.9}, 1),
    ],
)
def test_a_bar_is_missed_by_measures_beyond_it(changes: dict[str, float], missed: int):
    verdicts = judged(rows(**changes))
    assert len(verdicts) == 4 and sum(verdict == "MISSED" for _, verdict in verdicts) == missed, verdicts
    assert sum(verdict == "held" for _, verdict in verdicts) == 4 - missed


def test_few_seeds_give_no_verdict():
    assert {verdict for _, verdict in judged(rows(seeds=SEEDS - 1, l0=1.0))} == {f"no verdict under {SEEDS} seeds"}


def test_without_saelens_only_l0_is_judged():
    own = {pair: found for pair, found in rows().items() if pair[0] == OURS}
    assert len(judged(own)) == 1 and len(table(own)) == 3
    assert table(rows())[2] == "| linnaeus | 16 | 16.0000 | 0.9000 | 0.9500 | 0.1000 | 1,000 | 500 |"


def test_one_is_the_mean_of_the_dictionaries_alone():
    assert with_mean({"a": [1.0, 2.0], "b": [3.0, 6.0], TOGETHER: [9.0, 9.0]})[ALONE] == [2.0, 4.0]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a study whose trials are not trained: their explained variance is that of `values`, by the learning rate and scaling."""
    values = {(3e-4, ""): 0.1, (1e-3, ""): 0.3, (3e-4, "none"): 0.2, (1e-3, "none"): 0.1, (3e-4, "expected_average_only_in"): 0.25}
    made: list[Trial] = []

    def trained(self: Study, trials: list[Trial], root: Path) -> Any:
        for trial in trials:
            made.append(trial)
            yield trial, values.get((trial.settings.lr, trial.settings.normalize), 0.0), {"cpu_seconds": 1.0, "wall_seconds": 1.0}

    monkeypatch.setattr(Study, "ours", trained)
    monkeypatch.setattr(Study, "theirs", trained)
    reading: Any = SimpleNamespace(name="language", source=SimpleNamespace(fingerprint="1"), tested=10, folder=tmp_path, store=dict)
    reading.evaluate = lambda value: dict.fromkeys(MEASURES, value)
    return Study(reading, Size(100, 10, 10), [3e-4, 1e-3], TrialFile(tmp_path / "results.jsonl"), "python"), made


def test_each_program_has_its_best_settings(study: Any):
    trials, made = study
    assert trials.choose(OURS) == (1e-3, "") and trials.choose(THEIRS) == (3e-4, "expected_average_only_in")
    found = trials.compare([16], [0, 1])
    assert [row["explained_variance"] for row in found[OURS, 16]] == [0.3, 0.3]
    assert [row["explained_variance"] for row in found[THEIRS, 16]] == [0.25, 0.25]
    assert len(made) == 2 + 4 + 2 * 2


def test_a_finished_trial_is_not_repeated(study: Any):
    trials, made = study
    first = trials.compare([16, 32], [0])
    number = len(made)
    assert trials.compare([16, 32], [0]) == first and len(made) == number
    trials.reading.source.fingerprint = "2"
    trials.compare([16, 32], [0])
    assert len(made) == 2 * number, "the results of other activations were taken"


@pytest.mark.parametrize("name", ["batch_topk", "topk"])
def test_a_folder_of_saelens_is_read_as_it_was_saved(name: str, tmp_path: Path):
    model: Any = build_dictionary(CONFIGS[name], WIDTH, seed=3).eval()
    x = activations(300)
    model.fit_scale(x)
    with torch.no_grad():
        model.encoder_bias.normal_(std=0.1, generator=torch.Generator().manual_seed(5))
        model.encoder.mul_(5)
        if name == "batch_topk":
            model.threshold.fill_(0.3)
    trained = TrainedDictionary(model, None, "")
    write_folder(trained, tmp_path)
    found = read_folder(tmp_path)
    activities = trained.encode(x)
    assert 0 < (activities > 0).float().mean() < 1
    assert torch.allclose(found.encode(x), activities, atol=1e-5)
    assert torch.allclose(found.decode(activities), trained.decode(activities), atol=1e-5)


@pytest.mark.slow
def test_the_evaluation_is_that_of_the_run_itself(tmp_path: Path):
    run = runs.run("dictionary", tmp_path / "trained", "model.frontier=[]", "model.k=3")  # reads the run `read`, which it trains first
    read = tmp_path / "read" / "text" / "run"
    final = json.loads((run / "summary.json").read_text())["final"]
    found = Reading("language", read, "blocks.1", tmp_path, samples=4, tested=1000).evaluate(load_model(run).dictionary)
    assert found == pytest.approx({name: final[f"val/{name}"] for name in MEASURES}, abs=1e-5)
