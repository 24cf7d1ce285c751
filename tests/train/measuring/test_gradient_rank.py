"""The process whose gradient is too large or not finite is named, although the losses are as usual: runs of two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from linnaeus.health import HealthMonitor, Updates
from linnaeus.metrics.update_sums import MOST_ELEMENTS, UpdateSums
from tests import runs

SETTINGS = ["trainer.length=110steps", "trainer.micro_batch_size=8", "schedule.log=[10steps]", "schedule.validate=[]"]
SETTINGS += ["optimizer.lr=0.0001", "schedule.validate_at_end=false", "schedule.report=[50%]", "data.train_samples=640"]
SETTINGS += ["debug.batch_hashes=true"]
EXPECTED = [("gradient_spike", 76, 1), ("not_finite", 96, 1)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with bad gradients on rank 1: `whole`; `cut`, interrupted between the large gradient and its row; `off`, without alarms."""
    root = tmp_path_factory.mktemp("gradients")
    jobs = []
    for name, stop, *more in (("whole", None), ("cut", 78), ("cut", None), ("off", None, "logger.alarms=false")):
        (root / name).mkdir(exist_ok=True)
        jobs.append(runs.job("vectors", root / name, *SETTINGS, *more, watch=["bad_gradients"], stop=stop))
    runs.run_group(2, jobs, root)
    return root


@pytest.mark.slow
def test_the_rank_and_the_samples_of_a_bad_gradient_are_named(root: Path) -> None:
    run = root / "whole" / "vectors" / "run"
    alarms = runs.alarms(run)
    assert [(alarm.kind, alarm.step, alarm.process_rank) for alarm in alarms] == EXPECTED
    for alarm in alarms:
        used = [row["samples"] for row in runs.rows(run / "batches-rank1.jsonl") if row["global_step"] == alarm.step]
        assert list(alarm.samples) == [sample for micro_batch in used for sample in micro_batch] and alarm.sample_count == 16


@pytest.mark.slow
def test_the_same_ranks_after_a_resume_between_the_update_and_its_row(root: Path) -> None:
    whole, cut = (root / name / "vectors" / "run" for name in ("whole", "cut"))
    assert runs.differences(whole, cut) == []


@pytest.mark.slow
def test_the_weights_have_the_same_bits_without_the_measurement(root: Path) -> None:
    whole, off = (runs.newest(root / name / "vectors" / "run") for name in ("whole", "off"))
    assert runs.unequal(whole.model_state, off.model_state) == []


@pytest.mark.parametrize(("last", "rank"), [([1.0, 12.0, 1.0], 1), ([12.0, 12.0, 12.0], None), ([], None)])
def test_the_process_with_the_larger_gradient_is_named(last: list[float], rank: int | None) -> None:
    monitor, usual = HealthMonitor(["a"]), [1.0, 1.1, 0.9]
    losses, norms = [1.0] * 100, [1.0] * 99 + [8.0]
    own = [usual if last else []] * 99 + [last]
    (alarm,) = monitor.observe(Updates(1, [[1.0]] * 100, losses, [[0.3, 0.3, 0.4]] * 100, norms, gradients=own))
    assert (alarm.kind, alarm.step, alarm.process_rank) == ("gradient_spike", 100, rank)


def test_a_small_trained_parameter_near_the_input_is_watched() -> None:
    weights = [torch.nn.Parameter(torch.ones(size)) for size in (3, MOST_ELEMENTS + 1, 5, 7)]
    weights[0].requires_grad = False
    sums = UpdateSums(1, 4, torch.device("cpu"))
    sums.watch_gradient(weights)
    for factor in (1.0, 2.0):
        for _ in range(2):  # micro-batches
            sum((weight * factor).sum() for weight in weights).backward()
        sums.add(torch.ones(1).double())
        sums.end_update([1.0])
        for weight in weights:
            weight.grad = None
    read = sums.read(lambda message: message, rank=1, world_size=2)
    assert read.gradients[:, 0].tolist() == [0.0, 0.0] and read.gradients[:, 1].tolist() == pytest.approx([2 * 5**0.5, 4 * 5**0.5])
    assert sums.read(lambda message: message).gradients.shape == (2, 0)
    sums.clear()
    for _ in range(2):  # updates in which this process has no sample
        sums.end_update([1.0])
    assert sums.read(lambda message: message, rank=1, world_size=2).gradients.tolist() == [[0.0, 0.0], [0.0, 0.0]]
