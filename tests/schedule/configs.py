"""Configurations and resolved schedules for tests of the schedule."""

from dataclasses import replace
from functools import cache
from typing import Any

from linnaeus.config import compose
from linnaeus.config.schema import Config
from linnaeus.config.schema_optimization import GradNormConfig
from linnaeus.config.schema_schedule import ImageSizeConfig
from linnaeus.schedule import ResolvedSchedule, resolve_all_schedule_params

COMPONENTS = ("SPATIAL", "TEMPORAL", "ELEVATION")


@cache
def _base() -> Config:
    return compose(
        [
            "optimizer=sgd", "optimizer.lr_scaling=none", "lr_scheduler.warmup=0steps", "lr_scheduler.final_scale=0",
            "trainer.length=10epochs", "trainer.global_batch_size=8", "trainer.micro_batch_size=4", "weighting.conflict=[]",
            "schedule.log=[5steps]", "schedule.validate=[20%]", "schedule.partial_combinations=[[SPATIAL],[TEMPORAL]]",
            "schedule.partial_meta_mask_prob={start:0,end:0.2,until:50%}", "schedule.mixup_group_level=[]",
        ]
    )  # fmt: skip


def make_config(
    trainer: dict[str, Any] | None = None,
    early_stop: dict[str, Any] | None = None,
    scheduler: Any = None,
    growth: Any = None,
    gradnorm: tuple[list[str], str] | None = None,
    conflict: tuple[str, ...] = (),
    last_batch: str = "keep",
    off_last: str = "0%",
    start_size: tuple[int, int, str, str] | None = None,
    **schedule: Any,
) -> Config:
    """Return a configuration of images of 224 pixels. `start_size`: values of `schedule.image_size`.

    `schedule`, `trainer` and `early_stop` replace fields of these groups; `gradnorm` is (every, warm-up)."""
    base = _base()
    if start_size is not None:
        schedule["image_size"] = ImageSizeConfig(*start_size)
    weighting: Any = replace(base.weighting, conflict=list(conflict))
    if gradnorm:
        weighting = GradNormConfig("gradnorm", {}, list(conflict), *gradnorm, 1.5, 0.025, "shared")
    return replace(
        base,
        weighting=weighting,
        data=replace(base.data, last_batch=last_batch, image_size=224),
        augment=replace(base.augment, off_last=off_last),
        lr_scheduler=scheduler or base.lr_scheduler,
        schedule=replace(base.schedule, early_stop=replace(base.schedule.early_stop, **(early_stop or {})), **schedule),
        trainer=replace(base.trainer, **(trainer or {})),
        growth=growth or base.growth,
    )


def resolve(
    total: int = 100, per_epoch: int = 10, *more: Any, components: tuple[str, ...] = COMPONENTS, **changes: Any
) -> ResolvedSchedule:
    """Return the resolved schedule of `make_config(**changes)`; `more` are the further arguments of `resolve_all_schedule_params`."""
    return resolve_all_schedule_params(make_config(**changes), total, per_epoch, components, *more)
