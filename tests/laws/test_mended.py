"""Ways in which the laws were once broken, each as the run that showed it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from linnaeus import train
from linnaeus.data.order import epoch_order
from linnaeus.errors import ConfigError
from linnaeus.rundir.validation_results import ValidationResults
from linnaeus.train import loop
from linnaeus.workloads.taxonomy.biota.biota_source import BiotaReader
from linnaeus.workloads.taxonomy.observations import UndecodableImage
from tests import runs
from tests.vectors.workload import VectorsWorkload

LIMIT = "schedule.early_stop.max_steps"


def test_an_extended_run_that_is_killed_continues(tmp_path):
    runs.run("vectors", tmp_path, f"{LIMIT}=4")
    more = runs.configuration("vectors", tmp_path, f"{LIMIT}=9", f"run.allow=[{LIMIT}]")
    with runs.killed(loop, "train_one_step", 3):
        runs.start(more)
    assert runs.summary(runs.run_path(more))["status"] != "finished"
    assert runs.start(more) == 0
    assert runs.summary(runs.run_path(more))["global_step"] == 9


def test_another_runs_checkpoint_does_not_bring_its_limits(tmp_path, capsys):
    first = runs.run("vectors", tmp_path / "a", f"{LIMIT}=4")
    second = runs.run("vectors", tmp_path / "b", f"run.resume={first / 'checkpoints'}", "logger.console=plain")
    assert runs.summary(second)["status"] == "finished" and runs.summary(second)["global_step"] > 4
    assert "lacks" not in capsys.readouterr().out


def break_photographs(monkeypatch, broken):
    """Make the photographs of biota unreadable for whose numbers `broken` is true."""
    read = BiotaReader.read

    def failing(self, samples):
        if bad := [int(sample) for sample in np.asarray(samples) if broken(sample)]:
            raise UndecodableImage(bad[0], "no picture")
        return read(self, samples)

    monkeypatch.setattr(BiotaReader, "read", failing)


def test_unreadable_photographs_in_validation_are_named_and_counted(tmp_path, monkeypatch):
    break_photographs(monkeypatch, lambda sample: sample >= 85)  # validation comes after 85 for training
    with pytest.raises(ConfigError, match="max_bad_fraction"):
        runs.start(runs.configuration("biota", tmp_path, "data.max_bad_fraction=0.05"))
    assert list(tmp_path.rglob("quarantine.jsonl"))


@pytest.mark.slow
def test_the_list_of_unreadable_photographs_is_the_same_after_a_kill(tmp_path, monkeypatch):
    break_photographs(monkeypatch, lambda sample: sample % 7 == 3)
    settings = ["data.max_bad_fraction=0.2", "schedule.checkpoint=[1steps]"]
    whole = runs.run("biota", tmp_path / "whole", *settings)
    config = runs.configuration("biota", tmp_path / "killed", *settings)
    with runs.killed(loop, "train_one_step", 2):
        runs.start(config)
    assert runs.start(config) == 0
    content = (whole / "quarantine.jsonl").read_text()
    assert content == (runs.run_path(config) / "quarantine.jsonl").read_text()
    names = [json.loads(line)["id"] for line in content.splitlines()]
    assert names == sorted(set(names)) and len(names) > 5


def test_a_last_micro_batch_of_one_is_no_end_for_batch_norm(tmp_path):
    runs.run("vectors", tmp_path, "model.batch_norm=true", "data.train_samples=81")


def test_the_sample_left_over_is_any_of_them():
    groups = np.array([0] * 5 + [1] * 4 + [2, 3])
    last = {int(epoch_order(0, e, 11, groups)[-1]) for e in range(60)}
    assert {9, 10} <= last and len(last) > 4


def test_a_skipped_update_leaves_batch_statistics_alone(tmp_path, monkeypatch):
    prepare = VectorsWorkload.prepare

    def poisoned(self, batch, masked=()):
        calls.append(1)
        return {**batch, "x": batch["x"] * float("nan")} if len(calls) == 6 else prepare(self, batch, masked)

    calls: list[int] = []
    monkeypatch.setattr(VectorsWorkload, "prepare", poisoned)
    run = runs.run("vectors", tmp_path, "model.batch_norm=true", "trainer.ema_decay=0.9")
    assert max(row.get("train/skipped_updates", 0) for row in runs.rows(run / "metrics.jsonl")) == 1
    newest = runs.newest(run)
    assert all(torch.isfinite(tensor.double()).all() for state in (newest.model_state, newest.ema_state) for tensor in state.values())


def test_a_result_of_other_weights_is_not_taken(tmp_path):
    config = runs.configuration("vectors", tmp_path)
    with runs.killed(train, "finish", 1):
        runs.start(config)
    path = next(runs.run_path(config).glob("validation/*/val.json"))
    results, stored = ValidationResults(path.parents[1]), json.loads(path.read_text())
    step = stored["global_step"]
    assert results.read(step, "val", stored["weights"]) == stored["metrics"]
    assert results.read(step, "val", "0" * 32) is None


def test_a_short_run_whose_every_update_is_skipped_does_not_end_as_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(VectorsWorkload, "prepare", lambda self, batch, masked=(): {**batch, "x": batch["x"] * float("nan")})
    config = runs.configuration("vectors", tmp_path, "trainer.length=3steps")
    with pytest.raises(FloatingPointError, match="3 updates in a row up to step 3 skipped"):
        runs.start(config)
    assert runs.summary(runs.run_path(config))["status"] == "failed"
