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
        "a path": lambda one: {rank: (f"{name}!", p) for rank, (name, p) in one.items()},
        "a difference": lambda one: {rank: (name, p + 2e-5) for rank, (name, p) in one.items()},
        "not a number": lambda one: {rank: (name, float("nan")) for rank, (name, p) in one.items()},
    }

    def ways(run, model, found):
        given = {name: [one.get(name) for one in found.given] for name in agreement.ARGUMENTS}
        answers = agreement.of_predictions(model.predict([found.folder / path for path in found.paths], **given))
        return {"the same": answers} | {text: [change(one) for one in answers] for text, change in changed.items()}

    monkeypatch.setattr(agreement, "ways", ways)
    failed = agreement.failures(finished.run, tmp_path, most=4)
    assert failed == [
        "a path: 4 photographs have another path",
        "a difference: probabilities differ by 2.0e-05",
        "not a number: probabilities differ by nan",
    ]
    answers, truth = {"val": [{"species": ("a", 0.5)}, {}]}, [{"species": "a"}, {"species": "b"}]
    assert agreement.wrong_accuracies(answers, truth, ["species"], {"val/species/top1": 0.5}) == []
    assert agreement.wrong_accuracies(answers, truth, ["species"], {"val/species/top1": 0.5 + 1e-16 * 2})
