"""A monitored metric must be measured, and its direction known: `auto` never guesses."""

import pytest

from linnaeus.errors import ConfigError
from tests import runs
from tests.vectors import config


def test_a_measured_metric_without_a_direction_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "DIRECTIONS", {"mse": "min"})
    with pytest.raises(ConfigError, match=r"schedule\.best_mode is auto, but it is not known whether a smaller val/r2 is better"):
        runs.run("vectors", tmp_path, "schedule.best_monitor=val/r2")
    assert list(tmp_path.iterdir()) == []
    runs.run("vectors", tmp_path, "schedule.best_monitor=val/r2", "schedule.best_mode=max")


NEVER = ["trainer.length=3steps", "schedule.validate=[100steps]", "schedule.validate_at_end=false"]


def test_a_run_in_which_no_validation_is_due_has_no_best_checkpoint(tmp_path):
    run = runs.run("vectors", tmp_path, *NEVER)
    assert (runs.summary(run)["status"], runs.summary(run)["best"]) == ("finished", {})


@pytest.mark.parametrize(
    "settings, key",
    [(["lr_scheduler=plateau"], "lr_scheduler.monitor"), (["schedule.early_stop.patience=2"], "schedule.early_stop.monitor")],
)
def test_a_monitor_without_any_validation_is_an_error(tmp_path, settings, key):
    fix = "this run makes no validation; set schedule.validate or schedule.validate_at_end=true"
    with pytest.raises(ConfigError, match=f"{key} is val/loss, but {fix}$"):
        runs.run("vectors", tmp_path, *NEVER, *settings)
