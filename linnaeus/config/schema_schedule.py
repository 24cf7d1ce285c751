"""The classes of `schedule`: what happens when. See `schema`."""

from __future__ import annotations

from dataclasses import dataclass

from linnaeus.config.setting import Durations, setting


@dataclass(frozen=True)
class RampConfig:
    """A probability that moves linearly from `start` to `end` between two moments and is constant outside them."""

    start: float = setting("probability before the ramp", low=0, high=1)
    end: float = setting("probability after the ramp", low=0, high=1)
    begin: str = setting("when the ramp begins", duration="update")
    until: str = setting("when the ramp ends", duration="update")


@dataclass(frozen=True)
class PhaseConfig:
    """An entry of `schedule.phases`; what it leaves out has the default here."""

    start: str = setting("when the phase begins", duration="update")
    end: str = setting("when it is over; until then it fades into a phase that has begun before", duration="update")
    description: str = setting("what it is for, in reports", default="")
    lr: float = setting("what the learning rate is multiplied by", above=0, default=1.0)
    data: dict[str, float] = setting(
        "weight of each source of the data that samples are drawn from, {news: 2, prose: 1}; empty: all, by their size", low=0, default={}
    )
    dimensions: dict[str, float] = setting(
        "weight of dimensions of the model, scaled to sum to 1; one that is not named weighs 1", low=0, default={}
    )


@dataclass(frozen=True)
class EarlyStopConfig:
    monitor: str = setting("validation metric to watch, such as val/loss")
    mode: str = setting("whether smaller or larger is better; auto: by the metric's name", choices=("auto", "min", "max"))
    patience: int | None = setting("validations without improvement before training stops; null: never", low=1)
    min_delta: float = setting("smallest change that counts as an improvement", low=0)
    metric_bound: float | None = setting("stop once the monitored metric is at least this good; null: never")
    min_lr: float | None = setting("stop once the learning rate is below this, after warm-up; null: never", above=0)
    max_grad_norm: float | None = setting(
        "stop once the gradient norm (before clipping) exceeds this at a log boundary; null: never", above=0
    )
    max_steps: int | None = setting("stop at this global step whatever the length says; null: never", low=1)


@dataclass(frozen=True)
class ScheduleConfig:
    log: Durations = setting("when a row of training metrics is written", duration="update")
    report: Durations = setting("when a progress report is printed; besides at 0 % and at the last step, unless []", duration="any")
    validate: Durations = setting("when the normal validation pass runs", duration="update")
    validate_mask_meta: Durations = setting("when validation with all metadata masked runs", duration="update")
    validate_partial_mask_meta: Durations = setting("when validation with each listed combination masked runs", duration="update")
    partial_combinations: list[list[str]] = setting(
        "the combinations of metadata components to mask in partial passes: [[SPATIAL], [SPATIAL, TEMPORAL]]"
    )
    validate_at_end: bool = setting("run the passes that have a cadence once more at the last step if they are not due there")
    all_combinations_at_end: bool = setting("at the end validate every combination of masked components")
    checkpoint: Durations = setting("when a checkpoint is written", duration="any")
    checkpoint_at_end: bool = setting("write a checkpoint at the last step")
    keep_last: int = setting("how many of the newest checkpoints are kept", low=1)
    keep_best: int = setting("how many of the best checkpoints are kept besides", low=0)
    best_monitor: str = setting("validation metric that says which is best")
    best_mode: str = setting("whether smaller or larger is better; auto: by the metric's name", choices=("auto", "min", "max"))
    meta_mask_prob: RampConfig = setting("probability that all metadata of a training sample are masked")
    partial_meta_mask_prob: RampConfig = setting("probability that one listed combination of a sample's metadata is masked")
    partial_mask_whitelist: list[list[str]] = setting("combinations partial masking may draw; empty: every proper subset")
    partial_mask_weights: list[float] = setting("their weights; empty: equal")
    null_mask_prob: RampConfig = setting("probability that a null label is left out of the loss; below 1 needs head.nulls=phase_in")
    mixup_prob: RampConfig = setting("probability that a pair of samples is mixed")
    mixup_group_level: list[dict[str, str]] = setting(
        "taxonomic rank whose members are paired, from each moment on: [{from: 0%, level: genus}]; takes effect at epoch starts"
    )
    phases: dict[str, PhaseConfig] | None = setting(
        "a curriculum, in order of start: {first: {start: 0%, end: 40%, lr: 1.2}, second: {start: 30%, end: 100%}}; two that overlap are "
        "cross-faded; null or {}: none"
    )
    early_stop: EarlyStopConfig = setting("when training stops before its length")
