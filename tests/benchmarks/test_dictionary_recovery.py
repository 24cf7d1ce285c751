"""Recovery of planted features beside SAELens: the verdicts, the file of finished trials, and our reader of SAELens' layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.dictionary_recovery import study as parts
from benchmarks.dictionary_recovery.__main__ import SEEDS, SIZES, TIMES_TEN, VARIANTS, judged, main, table
from benchmarks.dictionary_recovery.controls import CONTROLS, pursue
from benchmarks.dictionary_recovery.study import Study
from benchmarks.saelens.trials import means
from linnaeus.workloads.dictionary.recovery import Recovery

GOOD = {
    "mcc": 0.97,
    "f1": 0.9,
    "uniqueness": 1.0,
    "precision": 0.9,
    "recall": 0.9,
    "dead": 0.0,
    "shrinkage": 1.0,
    "l0": 6.0,
    "true_l0": 6.0,
}
GOOD |= {"explained_variance": 0.9, "cpu_seconds": 1.0, "cosine_to_start": 0.1, "evaluator_gap": 1e-6}


def rows(**changes: float) -> dict[tuple[str, str], list[dict[str, float]]]:
    """Return measures of both programs for all seeds; those of linnaeus have `changes`."""
    pairs = [(who, name) for who in ("linnaeus", "SAELens") for name in VARIANTS["easy"] if (who, name) != ("SAELens", TIMES_TEN)]
    found = {pair: [GOOD | (changes if pair[0] == "linnaeus" else {})] * SEEDS for pair in pairs}
    return found | {("linnaeus", TIMES_TEN): [GOOD | {"l0": 2.0}] * SEEDS}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, 0),
        ({"mcc": 0.955}, 5),  # four variants, and the best
        ({"mcc": 0.94}, 9),  # also on the easy set
        ({"f1": 0.87}, 5),
        ({"uniqueness": 0.9}, 4),
        ({"dead": 0.02}, 4),
        ({"shrinkage": 0.98}, 4),
        ({"l0": 3.9}, 0),  # less than twice the L0 with ten times the coefficient, which counts on the small set only
        ({"cosine_to_start": 0.95}, 1),
        ({"evaluator_gap": 2e-4}, 1),
    ],
)
def test_a_bar_is_missed_by_measures_beyond_it(changes: dict[str, float], missed: int):
    verdicts = judged("easy", SIZES["easy"], rows(**changes))
    assert sum(verdict == "MISSED" for _, verdict in verdicts) == missed, verdicts
    assert len(table(rows(**changes))) == 2 + 9 + 4


def test_on_the_small_set_l0_is_within_a_twentieth_of_k():
    found = {pair: [row | {"l0": 5.2} for row in measured] for pair, measured in rows().items()}
    missed = [text for text, verdict in judged("small", SIZES["small"], found) if verdict == "MISSED"]
    assert len(missed) == 1 and "coefficient" in missed[0]
    found = {pair: [row | {"l0": 5.3} for row in measured] for pair, measured in rows().items()}
    missed = [text for text, verdict in judged("small", SIZES["small"], found) if verdict == "MISSED"]
    assert len([text for text in missed if "L0 5.30 for k" in text]) == 3


def test_few_seeds_give_no_verdict_on_differences():
    few = {pair: found[:2] for pair, found in rows(mcc=0.5).items()}
    verdicts = [verdict for text, verdict in judged("small", SIZES["small"], few) if "mcc" in text]
    assert set(verdicts) == {f"no verdict under {SEEDS} seeds"}


def test_on_the_large_set_the_published_figures_are_the_bars():
    found = {("linnaeus", name): [GOOD | {"l0": 25.0, "f1": 0.88}] * SEEDS for name in VARIANTS["large"]}
    assert {verdict for _, verdict in judged("large", SIZES["large"], found)} == {"held"}
    found["linnaeus", "matryoshka"] = [GOOD | {"l0": 25.0, "f1": 0.86}] * SEEDS
    missed = [text for text, verdict in judged("large", SIZES["large"], found) if verdict == "MISSED"]
    assert missed == ["matryoshka, f1 0.860, published 0.87"]
    few = judged("large", SIZES["large"]._replace(samples=1024), found)
    assert not any(verdict == "MISSED" for _, verdict in few) and "no verdict under 5 seeds and 200,000,000 samples" in dict(few).values()


@pytest.mark.parametrize("words", [["--sets", "large"], ["--device", "cuda"]])
def test_saelens_is_compared_on_the_cpu_and_the_small_sets(words, capsys):
    with pytest.raises(SystemExit):
        main(["--saelens", "python", *words])
    said = capsys.readouterr().err
    assert "--saelens is for the sets small and easy" in said or "no CUDA device here" in said


def test_a_measure_that_old_lines_lack_has_no_mean():
    assert means([{"mcc": 0.5, "wall_seconds": 1.0}, {"mcc": 0.7}]) == {"mcc": pytest.approx(0.6)}


def test_a_finished_trial_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    monkeypatch.setattr(Study, "ours", lambda self, name, seed, planted: (tmp_path, made.append(name) or dict(GOOD)))
    monkeypatch.setattr(parts, "measure_control", lambda *words: Recovery(*[0.5] * 10))
    size = SIZES["easy"]._replace(tested=10)
    study = Study(size, {"topk": VARIANTS["easy"]["topk"]}, list(CONTROLS), tmp_path / "results.jsonl", None, tmp_path)
    first = study.seed(0)
    assert study.seed(0) == first and made == ["topk"] and set(first) == {("linnaeus", "topk"), *(("control", name) for name in CONTROLS)}
    Study(size._replace(samples=1), study.variants, (), study.results, None, tmp_path).seed(0)
    assert made == ["topk", "topk"], "the result of another size was taken"
    assert Study(size._replace(device="cuda"), study.variants, (), study.results, None, tmp_path).find("linnaeus", "topk", 0) is None


def test_the_published_trials_are_found():
    size = SIZES["small"]
    study = Study(size, VARIANTS["small"], (), Path("benchmarks/results/dictionary_recovery.jsonl"), None, Path())
    assert all(study.find("linnaeus", name, 0) for name in VARIANTS["small"])


def test_pursuit_finds_the_amounts_of_orthogonal_vectors():
    amounts = torch.tensor([[3.0, 0, 2, 0], [0, 1, 0, 0]])
    assert torch.allclose(pursue(amounts @ torch.eye(4), torch.eye(4), k=2), amounts)
    assert torch.equal(pursue(amounts, torch.eye(4), k=1)[0], torch.tensor([3.0, 0, 0, 0]))
