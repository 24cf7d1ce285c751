"""A run may go on with another number of processes: the same global batches, every sample once an epoch, the same numbers to rounding."""

from __future__ import annotations

import pytest
import torch

from linnaeus.train import saving
from tests import runs, watching
from tests.laws.test_factorisation import distance, losses, parameters

# 85 samples in global batches of 32 are three updates an epoch: stopped in the middle of the first epoch and of the third
SETTINGS = ["trainer.precision=float64", "trainer.length=3epochs", "debug.batch_hashes=true", "trainer.ema_decay=0.9"]
SETTINGS += ["schedule.best_monitor=val_ema/loss", "schedule.log=[2steps]", "schedule.validate=[3steps]"]
STATEFUL = {"biota": [], "vectors": ["weighting=gradnorm", "weighting.every=[2steps]"]}


@pytest.fixture(scope="module", params=[pytest.param("biota", marks=pytest.mark.slow), "vectors"])
def roots(request, tmp_path_factory):
    """(workload, folder of the run of one process, folder of the run of 1 -> 2 -> 1)."""
    name, root = request.param, tmp_path_factory.mktemp("made")
    settings = [*SETTINGS, *STATEFUL[name]]
    config = runs.configuration(name, root / "changed", *settings)
    runs.run(name, root / "one", *settings)
    runs.interrupted(config, watching.stopped_at(2))
    runs.run_group(2, [runs.job(name, root / "changed", *settings, stop=7)], root)
    assert runs.newest(runs.run_path(config)).step == 7
    assert runs.start(config) == 0
    return name, root / "one", root / "changed"


def test_every_sample_is_seen_once_an_epoch(roots):
    name, _, changed = roots
    rows = [row for path in (changed / name / "run").glob("batches-rank*.jsonl") for row in runs.rows(path)]
    assert {path.name for path in (changed / name / "run").glob("batches-rank*.jsonl")} == {"batches-rank0.jsonl", "batches-rank1.jsonl"}
    everything = sorted({sample for row in rows for sample in row["samples"]})
    assert len(everything) == 85
    for epoch in range(3):
        steps = range(3 * epoch + 1, 3 * epoch + 4)
        seen = [sample for row in rows if row["global_step"] in steps for sample in real(row)]
        assert sorted(seen) == everything


def real(row: dict) -> list[str]:
    """Return the samples of a micro-batch without the stand-ins of an empty one."""
    first = (row["global_step"] - 1) % 3 * 32 + row["micro_batch"] * 8
    return row["samples"][: max(0, min(8, 85 - first))]


def test_losses_weights_and_averages_equal_those_of_one_process(roots):
    name, one, changed = roots
    assert distance(losses(one, name), losses(changed, name)) < 1e-10
    assert distance(parameters(one, name), parameters(changed, name)) < 1e-10
    a, b = (runs.newest(folder / name / "run") for folder in (one, changed))
    for key, average in a.ema_state.items():
        assert distance(average.double(), b.ema_state[key].double()) < 1e-10 or not average.double().abs().max()
    assert [row["global_step"] for row in runs.rows(one / name / "run/metrics.jsonl")] == [
        row["global_step"] for row in runs.rows(changed / name / "run/metrics.jsonl")
    ]


def test_negative_control_another_sample_is_seen(roots):
    name, one, _ = roots
    assert distance(parameters(one, name), parameters(one, name) * (1 + 1e-9)) > 1e-10
    assert not torch.equal(losses(one, name)[:1], losses(one, name)[1:2])


def test_the_change_is_said_and_the_accumulation_follows(roots):
    name, _, changed = roots
    text = (changed / name / "run" / "train.log").read_text()
    assert "2 processes now, 1 when the checkpoint was written" in text and "1 process now, 2 when" in text
    assert "32 = micro-batch 8 x 4 accumulation steps x 1 process" in text and "micro-batch 8 x 2 accumulation steps x 2 processes" in text


@pytest.mark.parametrize("size, text", [(8, "the updates agree to float rounding"), ("null", "micro-batches of 32 samples, not 16")])
def test_a_change_of_the_micro_batches_is_said(tmp_path, monkeypatch, size, text):
    """Dropout is drawn for each micro-batch, so with other micro-batches the updates do not agree to rounding."""
    state = saving.readable_state
    config = runs.configuration("vectors", tmp_path, f"trainer.micro_batch_size={size}", "trainer.length=2steps")
    with monkeypatch.context() as patch:
        patch.setattr(saving, "readable_state", lambda t: state(t) | {"world_size": 2})
        run = runs.interrupted(config, watching.stopped_at(1))
    assert runs.start(config) == 0
    (line,) = [line for line in (run / "train.log").read_text().splitlines() if "1 process now, 2 when the checkpoint was written" in line]
    assert text in line
