"""The debug presets and the keys they stand on: limited data, a profile of some steps."""

from __future__ import annotations

import json

import pytest

from linnaeus.config import compose
from linnaeus.errors import ConfigError
from tests import runs


def rows(run):
    return runs.rows(run / "metrics.jsonl")


def test_a_limited_run_trains_on_the_first_samples_only(tmp_path):
    run = runs.run("vectors", tmp_path, "trainer.limit_train_samples=16", "debug.batch_hashes=true", "trainer.length=2epochs")
    seen = [name for row in runs.rows(run / "batches-rank0.jsonl") for name in row["samples"]]
    assert set(map(int, seen)) == set(range(16)) and len(seen) >= 32, "with placeholders of empty micro-batches"


def test_limited_validation_equals_the_metrics_of_those_samples(tmp_path):
    """The first 10 of 13 samples are the same whether they are all there is or a limit takes them."""
    whole = runs.run("vectors", tmp_path / "whole", "data.validation_samples=10")
    limited = runs.run("vectors", tmp_path / "limited", "data.validation_samples=13", "trainer.limit_validation_samples=10")
    other = runs.run("vectors", tmp_path / "other", "data.validation_samples=13")
    found = [[row["val/loss"] for row in rows(run) if "val/loss" in row] for run in (whole, limited, other)]
    assert found[0] == found[1] != found[2]


def test_resampled_data_cannot_be_limited(tmp_path):
    settings = ["data.sampling=class_balanced", "trainer.limit_train_samples=16"]
    with pytest.raises(ConfigError, match="cannot limit resampled data"):
        runs.run("biota", tmp_path, *settings)


def test_a_profile_is_written_and_changes_no_update(tmp_path):
    plain = runs.run("vectors", tmp_path / "plain")
    run = runs.run("vectors", tmp_path / "profiled", "debug.profile_steps=[2,3]")
    assert json.loads((run / "profile" / "trace.json").read_text())["traceEvents"]
    assert "aten::" in (run / "profile" / "summary.txt").read_text()
    assert rows(plain) == rows(run) and not (plain / "profile").exists()


def test_impossible_steps_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"debug.profile_steps is \[3, 2\]; it must be \[first, last\]"):
        runs.run("vectors", tmp_path, "debug.profile_steps=[3,2]")


@pytest.mark.parametrize("preset", ["fdr", "limit", "overfit", "profile"])
def test_a_preset_composes(preset):
    assert compose([f"debug={preset}"]).run.experiment == preset


def test_overfitting_brings_the_loss_down(tmp_path):
    run = runs.run("vectors", tmp_path, "debug=overfit", "trainer.length=60steps", "optimizer.lr=0.02")
    losses = [row["train/loss"] for row in rows(run) if "train/loss" in row]
    assert losses[-1] < 0.3 * losses[0]
