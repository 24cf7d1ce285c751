"""Every JSON file of a run and of a sweep is strict JSON: without NaN and infinities, which other readers refuse."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from linnaeus.errors import ConfigError
from linnaeus.sweep.sweep_files import SweepFiles
from linnaeus.sweep.trial_results import Metric
from linnaeus.sweep.trial_source import TrialSource
from linnaeus.workloads.language.workload import LanguageWorkload
from linnaeus.workloads.taxonomy.observations import dataset_record
from tests import runs
from tests.laws.test_mended import break_photographs


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def names_of_strict(root: Path) -> set[str]:
    """Return the names of the JSON files under `root`. Raise `AssertionError` for one with a constant that JSON does not have."""
    found = set()
    for path in (*root.rglob("*.json"), *root.rglob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text(encoding="utf-8")]:
            json.loads(text, parse_constant=refuse)
        found.add(path.name)
    return found


def test_the_files_of_a_diverged_taxonomy_run(tmp_path, monkeypatch):
    facts = dataset_record._facts
    break_photographs(monkeypatch, lambda sample: sample == 5)
    monkeypatch.setattr(dataset_record, "_facts", lambda *arguments: {**facts(*arguments), "share": math.nan})
    path = runs.run(
        "biota",
        tmp_path,
        "trainer.global_batch_size=8",
        "trainer.length=1epochs",
        "optimizer.lr=1e30",
        "data.max_bad_fraction=0.2",
        "schedule.checkpoint=[1steps]",
    )
    names = {"dataset.json", "taxonomy.json", "class_indices.json", "quarantine.jsonl", "metrics.jsonl", "summary.json", "run.json"}
    assert names <= names_of_strict(tmp_path)
    assert json.loads((path / "dataset.json").read_text())["share"] is None


def test_the_record_of_a_text(tmp_path):
    store = SimpleNamespace(facts={"share": math.nan}, tokenizer=None)
    workload = SimpleNamespace(store=store, dimensions=("memory",), final_dimension_weights={"memory": math.inf})
    LanguageWorkload.save_dataset_record(workload, tmp_path)  # type: ignore[arg-type]
    assert names_of_strict(tmp_path) == {"dataset.json", "dimensions.json"}


class Trials(TrialSource):
    metric = Metric("val/loss", "min", True)

    def record(self):
        return [{"trial": 1, "value": math.nan, "columns": {"time/x": math.inf}}]


def test_the_file_of_a_sweep(tmp_path):
    files = SweepFiles(tmp_path, tmp_path, Trials(), [])
    with files.opened():
        files.write({"command": ["Käfer"]}, None)
    assert names_of_strict(tmp_path) == {"sweep.json"}
    with files.opened() as saved:
        assert saved == {"command": ["Käfer"], "trials": [{"trial": 1, "value": None, "columns": {"time/x": "Infinity"}}]}
    (tmp_path / "sweep.json").write_text('{"command": [')
    with pytest.raises(ConfigError, match=r"sweep.json is damaged; choose another sweep.name, or delete it"), files.opened():
        pass


def test_a_number_that_json_does_not_have_is_found(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": NaN}\n')
    with pytest.raises(AssertionError, match="NaN"):
        names_of_strict(tmp_path)
