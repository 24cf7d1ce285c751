"""The debug presets and the keys they stand on, such as limited data. `test_profiling.py` tests `profile`."""

from __future__ import annotations

import numpy as np
import pytest

from linnaeus.config import compose
from linnaeus.errors import ConfigError
from linnaeus.train import validation
from linnaeus.workloads.language.text_windows import proportional_counts
from linnaeus.workloads.language.workload import LanguageWorkload
from tests import runs


def rows(run):
    return runs.rows(run / "metrics.jsonl")


def test_a_limited_run_trains_on_the_first_samples_only(tmp_path):
    run = runs.run("vectors", tmp_path, "trainer.limit_train_samples=16", "debug.batch_hashes=true", "trainer.length=2epochs")
    seen = [name for row in runs.rows(run / "batches-rank0.jsonl") for name in row["samples"]]
    assert set(map(int, seen)) == set(range(16)) and len(seen) >= 32, "with placeholders of empty micro-batches"


def test_limited_validation_uses_a_stated_part(tmp_path):
    whole, limited, all_of_them = (
        runs.run("vectors", tmp_path / str(limit), "data.validation_samples=13", f"trainer.limit_validation_samples={limit}")
        for limit in ("null", 10, 13)
    )
    found = [[row["val/loss"] for row in rows(run) if "val/loss" in row] for run in (whole, limited, all_of_them)]
    assert found[0] == found[2] != found[1] and len(found[0]) == len(found[1])
    line = "validation: 10 of 13 samples, the same ones in every pass (trainer.limit_validation_samples)"
    assert [line in (run / "train.log").read_text() for run in (whole, limited, all_of_them)] == [False, True, False]


def test_validation_batches_have_the_size_of_the_micro_batch(tmp_path, monkeypatch):
    sizes, original = [], validation.ValidationBatches
    monkeypatch.setattr(
        validation, "ValidationBatches", lambda samples, batch, *ranks: sizes.append(batch) or original(samples, batch, *ranks)
    )
    runs.run("vectors", tmp_path, "data.validation_batch=null", "trainer.micro_batch_size=4")
    assert set(sizes) == {4}


def test_a_run_of_few_updates_is_warned_of(tmp_path):
    line = "is only 6 updates of up to 8 samples: increase it, or decrease trainer.global_batch_size"
    settings = ["trainer.limit_train_samples=24", "trainer.global_batch_size=8", "trainer.micro_batch_size=8"]
    logs = [
        (runs.run("vectors", tmp_path / name, *settings, f"trainer.length={length}", *more) / "train.log").read_text()
        for name, length, *more in (
            ("short", "2epochs"),
            ("long", "4epochs"),
            ("steps", "6steps"),
            ("stopped", "4epochs", "schedule.early_stop.max_steps=6"),
        )
    ]
    assert [log.count(line) for log in logs] == [1, 0, 0, 0] and "WARNING trainer.length=2epochs is only" in logs[0]


def test_without_a_cadence_validation_runs_at_the_end_unless_it_is_switched_off(tmp_path):
    validated, never = (
        runs.run("vectors", tmp_path / value, "schedule.validate=[]", f"schedule.validate_at_end={value}") for value in ("true", "false")
    )
    assert "val/loss" in rows(validated)[-1] and not [row for row in rows(never) if "val/loss" in row]
    line = "nothing was validated: no validation was due, and schedule.validate_at_end is false"
    assert [line in (run / "train.log").read_text() for run in (validated, never)] == [False, True]


def test_resampled_data_cannot_be_limited(tmp_path):
    settings = ["data.sampling=class_balanced", "trainer.limit_train_samples=16"]
    with pytest.raises(ConfigError, match="cannot limit resampled data"):
        runs.run("biota", tmp_path, *settings)


@pytest.mark.parametrize("settings", [[], ["data.order=random"]], ids=["windows", "random"])
def test_a_limit_leaves_the_first_windows_of_a_text(tmp_path, settings):
    text = runs.run("language", tmp_path, *settings, "trainer.limit_train_samples=16", "debug.batch_hashes=true", "trainer.length=8epochs")
    samples = [sample for row in runs.rows(text / "batches-rank0.jsonl") for sample in row["samples"]]
    assert set(samples) == {f"window-{number}" for number in range(16)}


def test_a_limit_leaves_a_share_of_each_source(tmp_path):
    """Phases mix the sources in their own proportions; each source has its first windows only."""
    config = runs.configuration("nanecho", tmp_path, "trainer.limit_train_samples=24", "debug.batch_hashes=true")
    run = runs.resumed(config)
    samples = {sample for row in runs.rows(run / "batches-rank0.jsonl") for sample in row["samples"]}
    train_set = LanguageWorkload(config).train_set
    counts = dict(zip(train_set.sources, train_set.window_counts.tolist(), strict=True))
    assert sum(counts.values()) == len(train_set) == 24 and min(counts.values()) >= 1
    assert samples <= {f"{source}/window-{number}" for source, count in counts.items() for number in range(count)}
    assert len(samples) > 12, "320 draws"
    assert (train_set.sizes <= (train_set.window_counts + 1) * config.data.block).all()
    with pytest.raises(ConfigError, match="below the number of sources, 4"):
        runs.run("nanecho", tmp_path / "few", "trainer.limit_train_samples=3")


@pytest.mark.parametrize("seed", range(20))
def test_shares_add_up_and_are_nearly_proportional(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 10 ** rng.integers(1, 7), rng.integers(1, 12))
    total = int(rng.integers(len(counts), counts.sum() + 1))
    found = proportional_counts(counts, total)
    assert found.sum() == total and (found >= 1).all() and (found <= counts).all()
    exact = counts * total / counts.sum()
    raised = np.maximum(0, 1 - exact).sum()  # by the shares below one window
    assert (np.abs(found - exact) <= 1 + raised).all()


def test_a_dump_of_the_metrics_is_a_file_and_one_line_of_the_log(tmp_path):
    logs = [
        (runs.run("vectors", tmp_path / value, f"debug.dump_metrics={value}") / "train.log").read_text().splitlines()
        for value in ("false", "true")
    ]
    assert [line.endswith("/metrics-step-00000015.json") for line in logs[1] if "metrics state" in line] == [True]
    assert len(logs[1]) == len(logs[0]) + 1


@pytest.mark.parametrize("preset", ["fdr", "limit", "overfit", "profile"])
def test_a_preset_composes(preset):
    assert compose([f"debug={preset}"]).run.experiment == preset


def test_overfitting_brings_the_loss_down(tmp_path):
    run = runs.run("vectors", tmp_path, "debug=overfit", "trainer.length=60steps", "optimizer.lr=0.02")
    losses = [row["train/loss"] for row in rows(run) if "train/loss" in row]
    assert losses[-1] < 0.3 * losses[0]
