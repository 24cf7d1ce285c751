"""Values of the configuration that are derived from others."""

import re
from pathlib import Path

import pytest

from linnaeus.config import compose
from linnaeus.config.monitors import direction
from linnaeus.errors import ConfigError
from linnaeus.progress.stages import validation_passes
from linnaeus.schedule.resolved import resolve_all_schedule_params
from linnaeus.workloads import build_workload
from tests import runs
from tests.config.observers import write_manifest


@pytest.mark.parametrize(
    "monitor, mode",
    {
        "val/loss": "min",
        "val/inconsistent": "min",
        "val/crm_hd1": "min",
        "time/ms_per_step": "min",
        "val/chain": "max",
        "val/info_f1": "max",
        "val/species/top1_low": "max",
        "val/species/marginal_top1": "max",
        "val_ema/species/macro_top1": "max",
    }.items(),
)
def test_the_direction_of_a_metric_follows_its_name(monitor: str, mode: str):
    monitors = [f"{key}={monitor}" for key in ("schedule.best_monitor", "schedule.early_stop.monitor", "lr_scheduler.monitor")]
    config = compose(["lr_scheduler=plateau", *monitors])
    assert config.schedule.best_mode == config.schedule.early_stop.mode == config.lr_scheduler.mode == mode


def test_an_unknown_direction_is_an_error_and_can_be_set():
    assert compose(["schedule.best_monitor=val/wer"]).schedule.best_mode == "auto"
    with pytest.raises(ConfigError, match=r"schedule.best_mode is auto, but it is not known whether a smaller val/wer is better"):
        direction("auto", "val/wer", "taxonomy", "schedule.best_mode")
    assert compose(["schedule.best_monitor=val/wer", "schedule.best_mode=min"]).schedule.best_mode == "min"


def test_monitors_follow_the_weights_that_are_validated():
    config = compose(["trainer.ema_decay=0.99", "lr_scheduler=plateau"])
    assert config.schedule.best_monitor == config.schedule.early_stop.monitor == config.lr_scheduler.monitor == "val_ema/loss"
    assert compose(["trainer.ema_decay=0.99", "trainer.ema_validate=false"]).schedule.best_monitor == "val/loss"


def test_an_experiment_without_a_name_is_called_after_its_data():
    assert compose().run.experiment == "biota"
    assert compose(["data=manifest", "data.path=x.csv"]).run.experiment == "manifest"


def test_passes_mask_only_metadata_that_validation_rows_have(tmp_path: Path):
    manifest = write_manifest(tmp_path)
    given = ["data=manifest", f"data.path={manifest}", "data.image_size=16", "schedule.meta_mask_prob.end=0.5"]
    built = build_workload(compose([*given, "data.latitude_column=null"]))
    assert built.components == () and built.inputs == ("SPATIAL", "TEMPORAL", "ELEVATION")
    assert "meta_mask_prob" not in built.schedule_probabilities
    lines = [line.replace(",lat,", ",latitude,").replace(",lon,", ",longitude,") for line in manifest.read_text().splitlines()]
    cut = [re.sub(r"2020-..-11", "", line) if "val" in line else line for line in lines]  # the dates of validation rows are empty
    manifest.write_text("\n".join(cut) + "\n")
    config = compose([*given, "data.date_column=day", "data.split_column=side"])
    built = build_workload(config)
    assert built.components == ("SPATIAL",) and "meta_mask_prob" in built.schedule_probabilities
    resolved = resolve_all_schedule_params(config, 100, 10, built.components)
    assert [p.key for p in validation_passes(resolved.combinations, built.components)] == ["val", "val_mask_meta"]
    listed = compose([*given, "data.date_column=day", "data.split_column=side", "schedule.partial_combinations=[[SPATIAL],[TEMPORAL]]"])
    resolved = resolve_all_schedule_params(listed, 100, 10, built.components)
    assert [p.key for p in validation_passes(resolved.combinations, built.components)] == ["val", "val_mask_meta", "val_mask_SPATIAL"]
    assert built._missing_components() == [
        "data.components: no row has ELEVATION: no effect on the model, masked by no validation pass",
        "data.components: no validation row has TEMPORAL: masked by no validation pass",
    ]


def test_a_checkpoint_of_another_model_is_refused_before_anything_is_written(tmp_path: Path):
    first = runs.run("vectors", tmp_path / "a", "trainer.length=2steps")
    other = runs.configuration("vectors", tmp_path / "b", "trainer.length=4steps", f"run.resume={first / 'checkpoints'}", "model.hidden=8")
    with pytest.raises(ConfigError, match="another model"):
        runs.start(other)
    assert not (tmp_path / "b").exists()
