"""The schedule of a run in whole steps: every duration of the config resolved once, checked, frozen.

`OpsSchedule` asks it, `schedule_summary` and `schedule_picture` show it, loader workers carry it for the ramps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from linnaeus.schedule.combinations import Combination, all_combinations, listed_combinations
from linnaeus.schedule.events import Every, Ramp

if TYPE_CHECKING:
    from linnaeus.schedule.phases import Phases

PARTIAL = "validate_partial_mask_meta"
PASSES = ("validate", "validate_mask_meta", PARTIAL)
DENSITY = "connected weights"
RAMPS = ("meta_mask_prob", "partial_meta_mask_prob", "null_mask_prob", "mixup_prob")


@dataclass(frozen=True)
class ResolvedSchedule:
    """All plain integers and tuples; picklable. `last_step` is where the run ends at the latest (`early_stop.max_steps`), while
    fractions are of `total_steps`."""

    total_steps: int
    steps_per_epoch: int
    last_step: int
    global_batch_size: int
    micro_batch_size: int
    log: Every
    report: Every
    validate: Every
    validate_mask_meta: Every
    validate_partial_mask_meta: Every
    checkpoint: Every
    weighting: Every  # when the task weights are updated
    conflict: Every  # when the conflict between tasks is measured
    growth: Every  # when weights are connected
    density: Ramp | None  # of connected weights; None: all are, from the start
    combinations: tuple[Combination, ...]  # of masked components, by the index of their partial pass
    listed: int  # how many of them the config lists: the others run at the end only
    all_combinations_at_end: bool
    at_end: tuple[str, ...]  # the validation passes that belong to the last step, wherever that turns out to be
    can_mask: bool  # whether there are metadata, as far as is known, that a validation pass could mask
    probabilities: tuple[str, ...]  # those of RAMPS that the data ask for
    meta_mask_prob: Ramp
    partial_meta_mask_prob: Ramp
    null_mask_prob: Ramp
    mixup_prob: Ramp
    mixup_group_levels: tuple[tuple[int, str], ...]  # (0-based epoch from which on, taxonomic rank)
    warmup_end: int
    lr_milestones: tuple[tuple[str, int], ...]  # (what happens to the learning rate, step)
    phases: Phases | None  # the curriculum
    early_stop: EarlyStopConfig

    @property
    def epochs(self) -> int:
        """Epochs begun, the last one possibly cut short."""
        return -(-self.total_steps // self.steps_per_epoch)

    def events(self) -> dict[str, Every]:
        """Everything that happens at steps, by its name in the plan."""
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
        """What moves or stands between 0 and 1 in this run, by its name in the plan."""
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
    """Every duration in steps. `components` are the metadata components of the data: () for none, None where they are not
    known yet, as are the number of `tasks`; `probabilities` are those of `RAMPS` that the data ask for. Raises `ConfigError`, one line, for
    what cannot be."""
    from linnaeus.schedule.phases import Phases  # and with it numpy, which not every command needs

    assert total_steps > 0 and steps_per_epoch > 0
    schedule, scheduler = config.schedule, config.lr_scheduler
    _check_monitor(schedule)
    lengths = (total_steps, steps_per_epoch)
    last = min(total_steps, schedule.early_stop.max_steps or total_steps)
    has_metadata = components is None or len(components) > 0
    listed = listed_combinations(schedule.partial_combinations, components) if has_metadata else ()
    complete = schedule.all_combinations_at_end and bool(components)
    combinations = all_combinations(listed, components or ()) if complete else listed
    if schedule.validate_partial_mask_meta and has_metadata and not listed:
        raise ConfigError("schedule.validate_partial_mask_meta needs schedule.partial_combinations, such as [[SPATIAL]]; or set it to []")
    events = _events(config, *lengths, last, {"validate": True, "validate_mask_meta": has_metadata, PARTIAL: bool(combinations)})
    events |= _weighting_events(config.weighting, *lengths, last, tasks)
    events["growth"], density = _growth(config.growth, *lengths, last)
    ramps = {name: Ramp.resolve(getattr(schedule, name), f"schedule.{name}", *lengths) for name in RAMPS}
    acting = tuple(name for name in RAMPS if name in probabilities and (has_metadata or not name.endswith("meta_mask_prob")))
    _check_acting(schedule, acting)
    levels = _mixing_levels(schedule, *lengths)
    levels = levels if "mixup_prob" in acting else ()
    phases = Phases.resolve(schedule.phases or {}, *lengths)
    warmup_end = Duration.parse(scheduler.warmup, "lr_scheduler.warmup").to_steps(*lengths)
    return ResolvedSchedule(
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        last_step=last,
        global_batch_size=config.trainer.global_batch_size,
        micro_batch_size=config.trainer.micro_batch_size,
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
        listed=len(listed),
        all_combinations_at_end=complete,
        at_end=_passes_at_end(schedule, events, complete),
        can_mask=has_metadata,
        probabilities=acting,
        meta_mask_prob=ramps["meta_mask_prob"],
        partial_meta_mask_prob=ramps["partial_meta_mask_prob"],
        null_mask_prob=ramps["null_mask_prob"],
        mixup_prob=ramps["mixup_prob"],
        mixup_group_levels=levels,
        warmup_end=warmup_end,
        lr_milestones=_lr_moments(scheduler, warmup_end, phases, *lengths),
        phases=phases,
        early_stop=schedule.early_stop,
    )


def _events(config: Config, total: int, per_epoch: int, last: int, possible: dict[str, bool]) -> dict[str, Every]:
    """Every kind of event; of the validation passes those that are `possible` with the metadata there are. At the end come the
    passes that have a cadence, and all that mask something where every combination is asked for."""
    schedule = config.schedule

    def every(name: str, at_end: bool = False, by_clock: bool = False) -> Every:
        return Every.resolve(getattr(schedule, name), f"schedule.{name}", total, per_epoch, last, at_end=at_end, by_clock=by_clock)

    never = Every(first=1, last=last)
    events = {"log": every("log"), "report": every("report", bool(schedule.report), by_clock=True)}
    events["checkpoint"] = every("checkpoint", schedule.checkpoint_at_end, by_clock=True)
    for name in PASSES:
        once_more = schedule.validate_at_end and bool(getattr(schedule, name))
        complete = schedule.all_combinations_at_end and name != "validate"
        events[name] = every(name, once_more or complete) if possible[name] else never
    return events


def _weighting_events(weighting: WeightingConfig, total: int, per_epoch: int, last: int, tasks: int | None) -> dict[str, Every]:
    """When task weights are updated (surgery: always), and when the conflict is measured between tasks, of which it takes two."""
    moves = Every(first=1, last=last)
    if isinstance(weighting, MovingWeightsConfig):
        begin = Duration.parse(weighting.warmup, "weighting.warmup").to_steps(total, per_epoch)
        moves = Every.resolve(weighting.every, "weighting.every", total, per_epoch, last, first=max(1, begin))
    elif isinstance(weighting, SurgeryConfig):
        moves = Every.resolve(["1steps"], "weighting", total, per_epoch, last)
    cadence = [] if tasks == 1 else weighting.conflict
    return {"weighting": moves, "conflict": Every.resolve(cadence, "weighting.conflict", total, per_epoch, last)}


def _growth(growth: GrowthConfig, total: int, per_epoch: int, last: int) -> tuple[Every, Ramp | None]:
    """When weights are connected, the last time where the ramp ends; and the share of them that is."""
    never = Every(first=1, last=last)
    if not isinstance(growth, LinearGrowthConfig):
        return never, None
    if growth.end < growth.start:
        raise ConfigError(f"growth.end={growth.end:g} is less than growth.start={growth.start:g}; connected weights stay, make it larger")
    density = Ramp.resolve(growth, "growth", total, per_epoch)
    if density.is_constant:
        if growth.every:
            stays = f"growth.end={growth.end:g} is growth.start, so nothing would ever be connected"
            raise ConfigError(f"{stays}; make it larger, or say growth.every=[] for a density that stays")
        return never, density
    if density.until_step == 0:
        raise ConfigError(f"growth.until={growth.until} leaves no update to grow in; make it later")
    if not growth.every:
        raise ConfigError("growth.every=[]: nothing would ever be connected; say when, such as [1%]")
    first, until = min(density.begin_step + 1, density.until_step), min(density.until_step, last)
    whole = density.until_step <= last
    return Every.resolve(growth.every, "growth.every", total, per_epoch, until, first=first, at_end=whole), density


def _lr_moments(
    scheduler: SchedulerConfig, warmup_end: int, phases: Phases | None, total: int, per_epoch: int
) -> tuple[tuple[str, int], ...]:
    """The corners of the learning rate, for the plan; the curve itself is the scheduler's."""
    moments = [("warm-up ends", warmup_end)] if warmup_end else []
    if isinstance(scheduler, StepConfig):
        at = (Duration.parse(text, "lr_scheduler.milestones").to_steps(total, per_epoch) for text in scheduler.milestones)
        moments += [(f"x {scheduler.factor:g}", step) for step in at]
    if isinstance(scheduler, WSDConfig):
        moments.append(("decay begins", max(0, total - Duration.parse(scheduler.decay, "lr_scheduler.decay").to_steps(total, per_epoch))))
    moments += phases.lr_milestones(total) if phases is not None else []
    return tuple(sorted(moments, key=lambda moment: moment[1]))


def _passes_at_end(schedule: ScheduleConfig, events: dict[str, Every], complete: bool) -> tuple[str, ...]:
    masking = PASSES[1:] if complete else ()
    return tuple(name for name in PASSES if name in masking or (schedule.validate_at_end and events[name].cadences))


def _mixing_levels(schedule: ScheduleConfig, total: int, per_epoch: int) -> tuple[tuple[int, str], ...]:
    """The taxonomic rank that takes effect at the first epoch to start at or after each moment."""
    levels: dict[int, str] = {}
    moments: list[int] = []
    for i, entry in enumerate(schedule.mixup_group_level):
        key = f"schedule.mixup_group_level[{i}]"
        if set(entry) != {"from", "level"}:
            raise ConfigError(f"{key} has the keys {', '.join(entry) or 'none'}; it takes from and level: {{from: 50%, level: genus}}")
        moment = Duration.parse(entry["from"], f"{key}.from").to_steps(total, per_epoch)
        if moments and moment <= moments[-1]:
            raise ConfigError(
                f"{key}.from={entry['from']} (step {moment}) does not come after the entry before it (step {moments[-1]}); sort them"
            )
        moments.append(moment)
        levels[-(-moment // per_epoch)] = entry["level"]
    return tuple(levels.items())


def _check_acting(schedule: ScheduleConfig, acting: Sequence[str]) -> None:
    """Raises `ConfigError` for pairs to be mixed or null labels to be taught where the data know neither. How much metadata is masked
    has a default above 0, so what a user asked for cannot be told from it."""
    for name, without in (("mixup_prob", 0.0), ("null_mask_prob", 1.0)):
        ramp = getattr(schedule, name)
        if name not in acting and (ramp.start, ramp.end) != (without, without):
            raise ConfigError(f"schedule.{name} has no effect on this data; leave its start and end at {without:g}")


def _check_monitor(schedule: ScheduleConfig) -> None:
    """Early stopping on a validation metric has no effect without the pass that measures it."""
    stop = schedule.early_stop
    if stop.patience is None and stop.metric_bound is None:
        return
    prefix = stop.monitor.split("/")[0]
    name = "validate_mask_meta" if "mask_meta" in prefix else "validate_partial_mask_meta" if "mask" in prefix else "validate"
    if not getattr(schedule, name):
        raise ConfigError(
            f"schedule.early_stop watches {stop.monitor}, which is never measured: schedule.{name} is []; set it, such as [1epochs]"
        )
