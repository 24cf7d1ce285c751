"""Convert the schedule of the configuration to whole steps, once at start-up, and check it.

`OpsSchedule` reads the resolved schedule, the reporting package prints and draws it, and loader workers receive a copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from linnaeus.config.schema import Config
from linnaeus.config.schema_optimization import (
    GrowthConfig,
    LinearGrowthConfig,
    MovingWeightsConfig,
    SchedulerConfig,
    StepConfig,
    SurgeryConfig,
    WeightingConfig,
    WSDConfig,
)
from linnaeus.config.schema_schedule import EarlyStopConfig, ScheduleConfig
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError
from linnaeus.schedule.events import Every, Ramp
from linnaeus.schedule.image_sizes import ImageSizes
from linnaeus.schedule.length import given_micro_batch
from linnaeus.schedule.validation_passes import (
    PARTIAL,
    PASSES,
    Combination,
    all_combinations,
    check_monitor,
    listed_combinations,
    passes_of_last_step,
)

if TYPE_CHECKING:
    from linnaeus.schedule.phases import Phases

DENSITY = "connected weights"
RAMPS = ("meta_mask_prob", "partial_meta_mask_prob", "null_mask_prob", "mixup_prob")


@dataclass(frozen=True)
class ResolvedSchedule:
    """Schedule of a run in whole steps. It contains only plain values, so that it can be pickled.

    The run ends at `last_step` at the latest (`early_stop.max_steps`). Percentages refer to `total_steps`."""

    total_steps: int
    steps_per_epoch: int
    last_step: int
    global_batch_size: int
    micro_batch_size: int | None  # None: the share of one process in the global batch
    log: Every
    report: Every
    validate: Every
    validate_mask_meta: Every
    validate_partial_mask_meta: Every
    checkpoint: Every
    weighting: Every  # updates of the task weights
    conflict: Every  # measurements of the gradient conflict between tasks
    growth: Every  # updates that connect weights
    density: Ramp | None  # share of connected weights; None: all weights are connected from the start
    combinations: tuple[Combination, ...]  # masked components of each partial pass, by its index
    num_listed: int  # the first combinations, listed in the configuration; the others run at the end only
    all_combinations_at_end: bool
    at_end: tuple[str, ...]  # validation passes of the last step, also if the run stops early
    can_mask: bool  # False if the validation data do not have metadata; True also before the data are known
    probabilities: tuple[str, ...]  # the names in RAMPS that affect these data
    meta_mask_prob: Ramp
    partial_meta_mask_prob: Ramp
    null_mask_prob: Ramp
    mixup_prob: Ramp
    mixup_group_levels: tuple[tuple[int, str], ...]  # (first epoch, 0-based; taxonomic rank)
    augmentation_end: int | None  # from this step on nothing is augmented or mixed; None: never
    image_sizes: ImageSizes | None  # of training images; None: constant
    warmup_end: int
    lr_milestones: tuple[tuple[str, int], ...]  # (change of the learning rate, step)
    phases: Phases | None  # of the curriculum
    early_stop: EarlyStopConfig

    def events(self) -> dict[str, Every]:
        """Return all events under the names that the printed schedule uses."""
        masking = {"validate_mask_meta": self.validate_mask_meta, PARTIAL: self.validate_partial_mask_meta} if self.can_mask else {}
        return {
            "validate": self.validate,
            **masking,
            "checkpoint": self.checkpoint,
            "weighting": self.weighting,
            "conflict": self.conflict,
            **({"growth": self.growth} if self.density is not None else {}),
            "report": self.report,
            "log": self.log,
        }

    def ramps(self) -> dict[str, Ramp]:
        """Return the ramps under the names that the printed schedule uses: the probabilities that affect these data, and the fraction of
        connected weights (growth)."""
        density = {DENSITY: self.density} if self.density is not None else {}
        return {name: getattr(self, name) for name in self.probabilities} | density


def resolve_all_schedule_params(
    config: Config,
    total_steps: int,
    steps_per_epoch: int,
    components: Sequence[str] | None = None,
    tasks: int | None = None,
    probabilities: Sequence[str] = RAMPS,
) -> ResolvedSchedule:
    """Return the schedule of `config` with every duration converted to steps.

    `components`: metadata components of the validation data, () if there are none; None before the data are read. `tasks`: number of tasks;
    None before the data are read. `probabilities`: the names in `RAMPS` that affect the data. Raise `ConfigError`, in one line, for an
    impossible schedule."""
    from linnaeus.schedule.phases import Phases  # imports numpy, which some commands do not need

    assert total_steps > 0 and steps_per_epoch > 0
    schedule, scheduler = config.schedule, config.lr_scheduler
    check_monitor(schedule)
    lengths = (total_steps, steps_per_epoch)
    last = min(total_steps, schedule.early_stop.max_steps or total_steps)
    has_metadata = components is None or len(components) > 0
    declared = getattr(config.data, "components", ())
    listed = listed_combinations(schedule.partial_combinations, components, declared) if has_metadata else ()
    every_combination = schedule.all_combinations_at_end and bool(components)
    combinations = all_combinations(listed, components or ()) if every_combination else listed
    if schedule.validate_partial_mask_meta and has_metadata and schedule.partial_combinations == []:
        key = "schedule.validate_partial_mask_meta"
        raise ConfigError(f"{key} needs schedule.partial_combinations, such as [[SPATIAL]]; or set {key}=[]")
    events = _events(config, *lengths, last, {"validate": True, "validate_mask_meta": has_metadata, PARTIAL: bool(combinations)})
    events |= _weighting_events(config.weighting, *lengths, last, tasks)
    events["growth"], density = _growth_event(config.growth, *lengths, last)
    ramps = {name: Ramp.resolve(getattr(schedule, name), f"schedule.{name}", *lengths) for name in RAMPS}
    effective = tuple(name for name in RAMPS if name in probabilities)
    _check_probabilities(schedule, effective)
    levels = _mixup_group_levels(schedule, *lengths)
    levels = levels if "mixup_prob" in effective else ()
    augmentation_end = _augmentation_end(config, *lengths)
    if ramps["mixup_prob"].start or ramps["mixup_prob"].end:
        ramps["mixup_prob"] = replace(ramps["mixup_prob"], off_step=augmentation_end)
    phases = Phases.resolve(schedule.phases or {}, *lengths)
    warmup_end = Duration.parse(scheduler.warmup, "lr_scheduler.warmup").to_steps(*lengths)
    return ResolvedSchedule(
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        last_step=last,
        global_batch_size=config.trainer.global_batch_size,
        micro_batch_size=given_micro_batch(config),
        log=events["log"],
        report=events["report"],
        validate=events["validate"],
        validate_mask_meta=events["validate_mask_meta"],
        validate_partial_mask_meta=events[PARTIAL],
        checkpoint=events["checkpoint"],
        weighting=events["weighting"],
        conflict=events["conflict"],
        growth=events["growth"],
        density=density,
        combinations=combinations,
        num_listed=len(listed),
        all_combinations_at_end=every_combination,
        at_end=passes_of_last_step(schedule, events, every_combination),
        can_mask=has_metadata,
        probabilities=effective,
        meta_mask_prob=ramps["meta_mask_prob"],
        partial_meta_mask_prob=ramps["partial_meta_mask_prob"],
        null_mask_prob=ramps["null_mask_prob"],
        mixup_prob=ramps["mixup_prob"],
        mixup_group_levels=levels,
        augmentation_end=augmentation_end,
        image_sizes=ImageSizes.resolve(config, *lengths),
        warmup_end=warmup_end,
        lr_milestones=_lr_milestones(scheduler, warmup_end, phases, *lengths),
        phases=phases,
        early_stop=schedule.early_stop,
    )


def _events(config: Config, total: int, per_epoch: int, last: int, possible: dict[str, bool]) -> dict[str, Every]:
    """Return the events of logging, reports, checkpoints and validation passes, by name. `possible`: for each pass, False if it must never
    occur.

    At the last step `validate_at_end` adds the normal pass and the passes that have intervals; `all_combinations_at_end` adds the passes
    that mask metadata."""
    schedule = config.schedule

    def every(name: str, at_end: bool = False, by_clock: bool = False) -> Every:
        return Every.resolve(getattr(schedule, name), f"schedule.{name}", total, per_epoch, last, at_end=at_end, by_clock=by_clock)

    never = Every(first=1, last=last)
    events = {"log": every("log"), "report": every("report", bool(schedule.report), by_clock=True)}
    events["checkpoint"] = every("checkpoint", schedule.checkpoint_at_end, by_clock=True)
    for name in PASSES:
        at_end = schedule.validate_at_end and (name == "validate" or bool(getattr(schedule, name)))
        every_combination = schedule.all_combinations_at_end and name != "validate"
        events[name] = every(name, at_end or every_combination) if possible[name] else never
    return events


def _weighting_events(weighting: WeightingConfig, total: int, per_epoch: int, last: int, tasks: int | None) -> dict[str, Every]:
    """Return two events: `weighting` (updates of the task weights) and `conflict` (measurements of the gradient conflict between tasks).

    If the task weights change during the run, `weighting` occurs at the intervals `weighting.every`, from the end of `weighting.warmup` on.
    With gradient surgery it occurs at every update, otherwise never. `conflict` occurs at the intervals `weighting.conflict`; never with
    one task. `tasks`: number of tasks; None: unknown."""
    weight_updates = Every(first=1, last=last)
    if isinstance(weighting, MovingWeightsConfig):
        warmup = Duration.parse(weighting.warmup, "weighting.warmup").to_steps(total, per_epoch)
        weight_updates = Every.resolve(weighting.every, "weighting.every", total, per_epoch, last, first=max(1, warmup))
    elif isinstance(weighting, SurgeryConfig):
        weight_updates = Every.resolve(["1steps"], "weighting", total, per_epoch, last)
    cadence = [] if tasks == 1 else weighting.conflict
    return {"weighting": weight_updates, "conflict": Every.resolve(cadence, "weighting.conflict", total, per_epoch, last)}


def _growth_event(growth: GrowthConfig, total: int, per_epoch: int, last: int) -> tuple[Every, Ramp | None]:
    """Return the event of the updates that connect weights, and the ramp of the fraction of connected weights. The last of these updates is
    at the end of the ramp.

    Without growth the ramp is None. Without growth and with a constant fraction the event never occurs. Raise `ConfigError` for a fraction
    that decreases, for a ramp that ends at step 0, and for `growth` settings without effect."""
    never = Every(first=1, last=last)
    if not isinstance(growth, LinearGrowthConfig):
        return never, None
    if growth.end < growth.start:
        raise ConfigError(f"growth.end={growth.end:g} is less than growth.start={growth.start:g}; connections are never removed, use more")
    density = Ramp.resolve(growth, "growth", total, per_epoch)
    if density.is_constant:
        if growth.every:
            constant = f"growth.end={growth.end:g} equals growth.start, so no weight would ever be connected"
            raise ConfigError(f"{constant}; use a larger growth.end, or growth.every=[] for a constant density")
        return never, density
    if density.until_step == 0:
        raise ConfigError(f"growth.until={growth.until} is step 0, before the first update; set a later one")
    if not growth.every:
        raise ConfigError("growth.every is [], so no weight would ever be connected; set it, such as [1%]")
    first, until = min(density.begin_step + 1, density.until_step), min(density.until_step, last)
    reaches_end = density.until_step <= last
    return Every.resolve(growth.every, "growth.every", total, per_epoch, until, first=first, at_end=reaches_end), density


def _lr_milestones(
    scheduler: SchedulerConfig, warmup_end: int, phases: Phases | None, total: int, per_epoch: int
) -> tuple[tuple[str, int], ...]:
    """Return (description, step) of each point where the curve of the learning rate changes its form, for the printed schedule.

    The learning rate itself is computed by `LRSchedule` in `linnaeus.optim`."""
    milestones = [("warm-up ends", warmup_end)] if warmup_end else []
    if isinstance(scheduler, StepConfig):
        at = (Duration.parse(text, "lr_scheduler.milestones").to_steps(total, per_epoch) for text in scheduler.milestones)
        milestones += [(f"x {scheduler.factor:g}", step) for step in at]
    if isinstance(scheduler, WSDConfig):
        decay = Duration.parse(scheduler.decay, "lr_scheduler.decay").to_steps(total, per_epoch)
        milestones.append(("decay begins", max(0, total - decay)))
    milestones += phases.lr_milestones(total) if phases is not None else []
    return tuple(sorted(milestones, key=lambda milestone: milestone[1]))


def _mixup_group_levels(schedule: ScheduleConfig, total: int, per_epoch: int) -> tuple[tuple[int, str], ...]:
    """Return (epoch, taxonomic rank) for each entry of `schedule.mixup_group_level`. The epoch is the first that starts at or after the
    step of the key `from` of the entry. Of entries with the same epoch, only the last has an effect.

    Raise `ConfigError` for an entry with other keys than `from` and `level`, and for entries that are not sorted."""
    levels: list[tuple[int, str]] = []
    steps: list[int] = []
    for i, entry in enumerate(schedule.mixup_group_level):
        key = f"schedule.mixup_group_level[{i}]"
        if set(entry) != {"from", "level"}:
            raise ConfigError(f"{key} has the keys {', '.join(entry) or 'none'}; it must have from and level: {{from: 50%, level: genus}}")
        step = Duration.parse(entry["from"], f"{key}.from").to_steps(total, per_epoch)
        if steps and step <= steps[-1]:
            raise ConfigError(f"{key}.from={entry['from']} (step {step}) must come after the previous entry (step {steps[-1]}); sort them")
        steps.append(step)
        levels.append((-(-step // per_epoch), entry["level"]))
    return tuple(levels)


def _augmentation_end(config: Config, total: int, per_epoch: int) -> int | None:
    """Return the step at which augmentation ends, `augment.off_last` before the end of the run. Return None if `augment.off_last` is 0 or
    missing."""
    text = getattr(config.augment, "off_last", "0%")
    length = Duration.parse(text, "augment.off_last").to_steps(total, per_epoch)
    return max(0, total - length) if length else None


def _check_probabilities(schedule: ScheduleConfig, effective: Sequence[str]) -> None:
    """Raise `ConfigError` if mixing or null-label masking is configured, but not in `effective`, the names of the probabilities that the
    data support.

    The metadata-masking probabilities are not checked: their defaults are above 0, so they may not be the user's choice."""
    for name, disabled in (("mixup_prob", 0.0), ("null_mask_prob", 1.0)):
        ramp = getattr(schedule, name)
        if name not in effective and (ramp.start, ramp.end) != (disabled, disabled):
            raise ConfigError(f"schedule.{name} has no effect on this data; set its start and end to {disabled:g}")
