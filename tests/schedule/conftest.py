"""A configuration for tests of the schedule, constructed from dataclasses without composing YAML."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from linnaeus.config.schema import Config, DataConfig, DebugConfig, LoggerConfig, RunConfig, TrainerConfig, WorkloadConfig
from linnaeus.config.schema_optimization import CosineConfig, GradNormConfig, GrowthConfig, SGDConfig, WeightingConfig
from linnaeus.config.schema_schedule import EarlyStopConfig, RampConfig, ScheduleConfig

EARLY_STOP = EarlyStopConfig("val/loss", "min", None, 0.0, None, None, None, None)
SCHEDULE = ScheduleConfig(
    log=["5steps"], report=["1%"], validate=["20%"], validate_mask_meta=["100%"], validate_partial_mask_meta=["100%"],
    partial_combinations=[["SPATIAL"], ["TEMPORAL"]], validate_at_end=True, all_combinations_at_end=False, checkpoint=["10%"],
    checkpoint_at_end=True, keep_last=2, keep_best=1, best_monitor="val/loss", best_mode="min",
    meta_mask_prob=RampConfig(0.1, 0.1, "0%", "100%"), partial_meta_mask_prob=RampConfig(0.0, 0.2, "0%", "50%"),
    partial_mask_whitelist=[], partial_mask_weights=[], null_mask_prob=RampConfig(1.0, 1.0, "0%", "100%"),
    mixup_prob=RampConfig(0.0, 0.0, "0%", "100%"), mixup_group_level=[], phases={}, early_stop=EARLY_STOP,
)  # fmt: skip
TRAINER = TrainerConfig(
    global_batch_size=8, micro_batch_size=4, length="10epochs", device="cpu", precision="float32", freeze=[], max_grad_norm=None,
    ema_decay=None,
    ema_validate=False, compile=False, channels_last=False, deterministic=False, threads=None, max_time=None, startup_timeout="30min",
    timeout="10min", max_skipped_in_a_row=9, limit_train_samples=None,
    limit_validation_samples=None, num_workers=0, prefetch=1, pin_memory=False,
)  # fmt: skip


def build(
    trainer: dict[str, Any] | None = None,
    early_stop: dict[str, Any] | None = None,
    scheduler: Any = None,
    growth: Any = None,
    gradnorm: tuple[list[str], str] | None = None,
    conflict: tuple[str, ...] = (),
    last_batch: str = "keep",
    **schedule: Any,
) -> Config:
    """Return a configuration. `schedule`, `trainer` and `early_stop` replace fields of these groups; `gradnorm` is (every, warm-up)."""
    weighting = WeightingConfig("fixed", {}, list(conflict))
    if gradnorm:
        weighting = GradNormConfig("gradnorm", {}, list(conflict), *gradnorm, 1.5, 0.025, "shared")
    return Config(
        seed=0, plugins=[], plan=False, run=RunConfig(None, "test", "outputs", "auto", [], None, [], []),
        workload=WorkloadConfig("taxonomy"),
        data=DataConfig("biota", last_batch, 8, 0.0), model=None, head=None, loss=None, augment=None, weighting=weighting,
        optimizer=SGDConfig("sgd", 0.1, "none", 8, 0.0, False, [], 0.9, False),
        lr_scheduler=scheduler or CosineConfig("cosine", "0steps", 0.0),
        schedule=replace(SCHEDULE, early_stop=replace(EARLY_STOP, **(early_stop or {})), **schedule),
        trainer=replace(TRAINER, **(trainer or {})), logger=LoggerConfig("plain", "disabled", "x", False, False, ["progress"], None),
        debug=DebugConfig(False, [], False), growth=growth or GrowthConfig("none"), launch=None, sweep=None,
    )  # fmt: skip


@pytest.fixture
def make_config() -> Callable[..., Config]:
    return build
