"""Test the comparison of predicted paths with paths to the most probable leaf (`benchmarks/predicted_path.py`)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import predicted_path
from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_model


def test_the_accuracy_of_the_predicted_path_is_that_of_validation(finished, capsys, monkeypatch):
    model = load_model(finished.run)
    _, predicted = predicted_path.accuracies(model, finished.run)
    final = json.loads((finished.run / "summary.json").read_text())["final"]
    assert predicted.tolist() == pytest.approx([final[f"val/{rank}/top1"] for rank in model.tree.ranks])
    monkeypatch.setattr("sys.argv", ["predicted_path", str(finished.run), str(finished.run)])
    assert predicted_path.main() == 0
    assert capsys.readouterr().out.count("\n") == 5


def test_differences_are_predicted_minus_most_probable():
    lines = predicted_path.table(["genus", "species"], [np.array([[0.5, 0.25], [0.75, 0.25]])] * 3)
    assert lines[-1] == "| difference | +25.00 (+25.00 to +25.00) | +0.00 (+0.00 to +0.00) |"
