"""A monitored metric must be measured, and its direction known: `auto` never guesses."""

import pytest

from linnaeus.config.schema_optimization import PlateauConfig
from linnaeus.errors import ConfigError
from linnaeus.optim.lr_schedulers import Plateau
from linnaeus.schedule import EarlyStopping, resolve_all_schedule_params
from linnaeus.train.building.planning import idle_notes, patience_notes
from tests import runs
from tests.schedule.configs import make_config
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


@pytest.mark.parametrize("patience", range(1, 7))
def test_a_patience_that_the_validations_of_a_run_cannot_exhaust_is_noted(patience):
    """Four of five validations come before the last step. Results that never improve stop the run exactly if nothing is noted."""
    scheduler = PlateauConfig("plateau", "0steps", "val/loss", "min", 0.5, patience, 0.0)
    config = make_config(validate=["20%"], scheduler=scheduler, early_stop={"patience": patience})
    notes = patience_notes(config, resolve_all_schedule_params(config, 100, 10))
    stopping, plateau = EarlyStopping(patience), Plateau(scheduler, 1.0, 0)
    keys = ["schedule.early_stop"] * (not any([stopping.check(1.0) for _ in range(4)]))
    keys += ["lr_scheduler"] * (not any([plateau.observe({"val/loss": 1.0}) for _ in range(4)]))
    assert [note.split(" has no effect")[0] for note in notes] == [f"{key}.patience={patience}" for key in keys]
    assert all("val/loss is measured 4 times before the last step" in note for note in notes)


@pytest.mark.parametrize(
    "given, names",
    [
        ({}, []),
        ({"monitor": "val/species/top1"}, ["monitor"]),
        ({"min_delta": 0.1}, ["min_delta"]),
        ({"monitor": "val/species/top1", "metric_bound": 0.9}, []),
        ({"min_delta": 0.1, "metric_bound": 0.9}, ["min_delta"]),
        ({"monitor": "val/species/top1", "min_delta": 0.1, "patience": 2}, []),
    ],
)
def test_settings_of_an_early_stop_that_never_happens_are_noted(given, names):
    config = make_config(validate=["20%"], early_stop=given)
    notes = patience_notes(config, resolve_all_schedule_params(config, 100, 10))
    assert [note.split(" has no effect")[0] for note in notes] == [f"schedule.early_stop.{name}" for name in names]


@pytest.mark.parametrize(
    ("trainer", "schedule", "components", "names"),
    [
        ({}, {}, (), []),
        ({}, {"all_combinations_at_end": True, "keep_best": 3}, ("SPATIAL",), []),
        ({}, {"all_combinations_at_end": True, "validate_mask_meta": []}, (), ["schedule.all_combinations_at_end"]),
        ({}, {"validate_mask_meta": ["50%"]}, (), ["schedule.validate_mask_meta"]),
        ({"ema_validate": False}, {}, (), ["trainer.ema_validate=false"]),
        ({"ema_validate": False, "ema_decay": 0.9}, {}, (), []),
        ({}, {"keep_best": 3, "validate": [], "validate_at_end": False}, (), ["schedule.keep_best=3"]),
    ],
)
def test_settings_of_validation_without_effect_are_noted(trainer, schedule, components, names):
    config = make_config(trainer, **{"validate": ["20%"], "partial_combinations": None, **schedule})
    notes = idle_notes(config, resolve_all_schedule_params(config, 100, 10, components))
    assert [note.split(" has no effect")[0] for note in notes] == names


def test_a_run_logs_that_the_default_patience_of_a_plateau_has_no_effect(tmp_path):
    run = runs.run("vectors", tmp_path, "lr_scheduler=plateau", "trainer.length=4steps", "schedule.validate=[25%]")
    text = (run / "train.log").read_text()
    assert "lr_scheduler.patience=3 has no effect: the learning rate is reduced after 4 validations" in text
