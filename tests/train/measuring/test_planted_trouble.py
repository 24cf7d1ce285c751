"""A learning rate that is far too high, and a process that is slower than the others: real runs, in which the alarm names the problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from linnaeus.reporting.jsonl.alarm_log import read_alarms
from tests import runs

RATE = ["trainer.length=150steps", "trainer.micro_batch_size=null", "schedule.log=[10steps]", "schedule.report=[25steps]"]
RATE += ["schedule.validate=[]", "schedule.validate_at_end=false"]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.002, 0.06])
def test_a_learning_rate_30_times_too_high_is_named_in_the_second_report(tmp_path: Path, rate: float) -> None:
    """A small GPT learns with 0.002. With 30 times as much it stays at about the loss of the untrained model."""
    run = runs.run("language", tmp_path, *RATE, f"optimizer.lr={rate}")
    alarms, losses = read_alarms(run), [row["train/loss"] for row in runs.rows(run / "metrics.jsonl")]
    if rate == 0.002:
        assert not alarms and losses[-1] < 0.7 * losses[0]
        return
    assert [(alarm.kind, alarm.step) for alarm in alarms] == [("learning_rate", 50)] and losses[-1] > 0.85 * losses[0]
    assert "although updates changed the weights by up to 1" in alarms[0].text and "lower optimizer.lr" in alarms[0].describe()
    assert runs.summary(run)["alarms"]["kinds"] == {"learning_rate": 1}


@pytest.mark.slow
def test_a_process_whose_forward_takes_a_quarter_longer_is_named_in_the_second_report(tmp_path: Path) -> None:
    """Forward sleeps for 0.4 s, on rank 1 for 0.5 s: so long that a busy machine changes the ratio little."""
    settings = ["trainer.length=11steps", "schedule.report=[5steps]", "trainer.global_batch_size=16", "trainer.micro_batch_size=8"]
    settings += ["schedule.validate=[]", "schedule.validate_at_end=false"]
    runs.run_group(2, [runs.job("vectors", tmp_path, *settings, watch=["sleeping_forward"])], tmp_path)
    run = tmp_path / "vectors" / "run"
    (alarm,) = [alarm for alarm in read_alarms(run) if alarm.kind == "slow_rank"]
    assert (alarm.step, alarm.process_rank) == (10, 1) and "more per update in forward and backward" in alarm.text
    assert alarm.value is not None and 1.12 < alarm.value < 1.5
    assert f"WARNING {alarm.text}" in (run / "train.log").read_text()
