"""What follows from other values of the configuration."""

from pathlib import Path

import pytest

from linnaeus.config import compose
from linnaeus.errors import ConfigError
from linnaeus.workloads import build_workload
from tests import runs

NO_METADATA = "path,genus,species\n" + "".join(f"{i}.png,G{i % 2},s{i % 4}\n" for i in range(24))


@pytest.mark.parametrize(
    ("monitor", "mode"), [("val/loss", "min"), ("val/species/top1", "max"), ("val/inconsistent", "min"), ("val/chain", "max")]
)
def test_the_direction_of_a_metric_follows_its_name(monitor, mode):
    config = compose(
        [
            f"schedule.best_monitor={monitor}",
            f"schedule.early_stop.monitor={monitor}",
            "lr_scheduler=plateau",
            f"lr_scheduler.monitor={monitor}",
        ]
    )
    assert config.schedule.best_mode == config.schedule.early_stop.mode == config.lr_scheduler.mode == mode
    assert compose([f"schedule.best_monitor={monitor}", "schedule.best_mode=min"]).schedule.best_mode == "min"


def test_monitors_follow_the_weights_that_are_validated():
    config = compose(["trainer.ema_decay=0.99", "lr_scheduler=plateau"])
    assert config.schedule.best_monitor == config.schedule.early_stop.monitor == config.lr_scheduler.monitor == "val_ema/loss"
    assert compose(["trainer.ema_decay=0.99", "trainer.ema_validate=false"]).schedule.best_monitor == "val/loss"


def test_an_experiment_without_a_name_is_called_after_its_data():
    assert compose().run.experiment == "biota"
    assert compose(["data=manifest", "data.path=x.csv"]).run.experiment == "manifest"


@pytest.mark.parametrize("key", ["optimizer.beta1", "optimizer.beta2", "trainer.ema_decay"])
def test_a_decay_of_one_is_refused(key):
    with pytest.raises(ConfigError, match="less than 1"):
        compose([f"{key}=1"])


def test_data_without_metadata_have_no_masked_passes(tmp_path: Path):
    from PIL import Image

    (tmp_path / "m.csv").write_text(NO_METADATA)
    for i in range(24):
        Image.new("RGB", (20, 20), (i * 9, 80, 10)).save(tmp_path / f"{i}.png")
    built = build_workload(
        compose(["data=manifest", f"data.path={tmp_path / 'm.csv'}", "data.image_size=16", "schedule.meta_mask_prob.end=0.5"])
    )
    assert built.components == () and built.inputs == ("SPATIAL", "TEMPORAL", "ELEVATION")


def test_a_checkpoint_of_another_model_is_refused_before_anything_is_written(tmp_path: Path):
    first = runs.run("vectors", tmp_path / "a", "trainer.length=2steps")
    other = runs.configuration("vectors", tmp_path / "b", "trainer.length=4steps", f"run.resume={first / 'checkpoints'}", "model.hidden=8")
    with pytest.raises(ConfigError, match="another model"):
        runs.start(other)
    assert not (tmp_path / "b").exists()
