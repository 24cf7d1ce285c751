"""Test opening a run of any workload: the same outputs as its own evaluation, data without augmentation, and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from linnaeus.data.samples import SampleIndex
from linnaeus.errors import ConfigError
from linnaeus.workloads.opened_run import OpenedRun, open_run
from tests import runs

CPU = torch.device("cpu")
WORKLOADS = ["biota", "language", "loadout"]


@pytest.fixture(scope="module", params=WORKLOADS)
def trained(request, tmp_path_factory) -> Path:
    return runs.run(request.param, tmp_path_factory.mktemp(request.param), "trainer.length=2steps", "schedule.checkpoint=[]")


def opened(run: Path, scratch: Path, **options) -> OpenedRun:
    return open_run(run, CPU, scratch, **options)


def test_the_model_gives_the_recorded_loss(trained, tmp_path):
    run = opened(trained, tmp_path)
    assert not run.model.training
    metrics = run.workload.metrics(CPU)
    total = torch.zeros(metrics.width, dtype=torch.float64)
    size, together = len(run.workload.validation_set), run.config.data.validation_batch
    with torch.inference_mode():
        for first in range(0, size, together):
            rows = range(first, min(first + together, size))
            batch = run.workload.prepare(run.workload.validation_set.__getitems__([SampleIndex(0, i, i, 0) for i in rows]))
            outputs = run.workload.predict(run.model, batch)
            total += metrics.sums(outputs, batch)
            metrics.count(outputs, batch)
    assert metrics.compute(total, metrics.counts)["loss"] == runs.summary(trained)["final"]["val/loss"]


def test_training_samples_are_read_as_in_validation(trained, tmp_path):
    workload = opened(trained, tmp_path).workload
    samples = workload.reading_set()
    first, again = (samples.__getitems__([SampleIndex(epoch, 3, 3, step) for step in (epoch,)]) for epoch in (0, 0))
    assert len(samples) > 0 and all(torch.equal(first[name], again[name]) for name in first)
    mask = workload.real_positions(first)
    assert mask is None or (mask.dtype == torch.bool and mask.dim() == 2)


def test_mistakes_are_one_line(trained, tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        opened(tmp_path / "absent", tmp_path)
    with pytest.raises(ConfigError, match=r"is not a run"):
        opened(tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="no checkpoint of step 77"):
        opened(trained, tmp_path, checkpoint="77")
    with pytest.raises(ConfigError, match=r"unknown key data\.pth"):
        opened(trained, tmp_path, settings=["data.pth=x"])


def test_a_run_in_the_current_directory_does_not_matter(trained, tmp_path, monkeypatch):
    """With other tokens, as its record says."""
    (tmp_path / "dataset.json").write_text('{"identity": "character-5-000000000000"}')
    monkeypatch.chdir(tmp_path)
    opened(trained.resolve(), tmp_path)
