"""All ways to use a trained classifier agree (`agreement.py`), and a way or an accuracy that differs is found."""

import pytest

from tests.faults import agreement
from tests.workloads.taxonomy.trained.conftest import finished

__all__ = ["finished"]


@pytest.mark.slow
def test_all_ways_to_use_a_run_agree(finished, tmp_path):
    assert agreement.failures(finished.run, tmp_path) == []


def test_other_taxa_probabilities_and_accuracies_are_found(finished, tmp_path, monkeypatch, capsys):
    changed = {
        "another path": lambda one: {rank: (f"{name}!", p) for rank, (name, p) in one.items()},
        "probabilities differ by 2.0e-05": lambda one: {rank: (name, p + 2e-5) for rank, (name, p) in one.items()},
        "probabilities differ by nan": lambda one: {rank: (name, float("nan")) for rank, (name, p) in one.items()},
    }
    for number, (text, change) in enumerate(changed.items()):
        own = lambda run, model, found, change=change: {
            "command": [
                change(one)
                for one in agreement.of_predictions(
                    model.predict(
                        [found.folder / path for path in found.paths],
                        **{name: [g.get(name) for g in found.given] for name in agreement.ARGUMENTS},
                    )
                )
            ]
        }
        monkeypatch.setattr(agreement, "ways", own)
        folder = tmp_path / str(number)
        folder.mkdir()
        failed = agreement.failures(finished.run, folder, most=4)
        assert len(failed) == 1 and text in failed[0], failed
    answers, truth = {"val": [{"species": ("a", 0.5)}, {}]}, [{"species": "a"}, {"species": "b"}]
    assert agreement.wrong_accuracies(answers, truth, ["species"], {"val/species/top1": 0.5}) == []
    assert agreement.wrong_accuracies(answers, truth, ["species"], {"val/species/top1": 0.5 + 1e-16 * 2})
