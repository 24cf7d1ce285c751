"""Define the dataclasses of the configuration group `schedule`: validations, checkpoints, ramps and curriculum phases."""

from dataclasses import dataclass

from linnaeus.config.setting import Durations, setting


@dataclass(frozen=True)
class RampConfig:
    """A probability that is `start` up to the time `begin`, `end` from the time `until` on, and changes linearly between them."""

    start: float = setting("probability before the ramp", low=0, high=1)
    end: float = setting("probability after the ramp", low=0, high=1)
    begin: str = setting("when the ramp begins", duration="update")
    until: str = setting("when the ramp ends", duration="update")


@dataclass(frozen=True)
class ImageSizeConfig:
    """Side length of training images in pixels. It grows from `start` to `data.image_size` in stages of equal length, between the times
    `begin` and `until`."""

    start: int | None = setting("side of the first training images, in pixels; null: data.image_size throughout", low=8, high=8192)
    multiple: int = setting("the sides below data.image_size are multiples of this, the patch size or stride of the model", low=1)
    begin: str = setting("when the images begin to grow", duration="update")
    until: str = setting("when the training images reach data.image_size", duration="update")


@dataclass(frozen=True)
class PhaseConfig:
    """A curriculum phase, an entry of `schedule.phases`. In an entry, keys with a default in this class may be left out."""

    start: str = setting("start of the phase", duration="update")
    end: str = setting("end of the phase; where phases overlap, they are cross-faded", duration="update")
    description: str = setting("text shown in reports", default="")
    lr: float = setting("multiplier of the learning rate", above=0, default=1.0)
    data: dict[str, float] = setting("weight of each source, {news: 2, prose: 1}; empty: in proportion to the sizes", low=0, default={})
    dimensions: dict[str, float] = setting("weights of the model's dimensions, scaled to sum to 1; 1 if not named", low=0, default={})


@dataclass(frozen=True)
class EarlyStopConfig:
    monitor: str = setting("validation metric to monitor, such as val/loss")
    mode: str = setting("min: smaller is better; max: larger is better; auto: as the metric states", choices=("auto", "min", "max"))
    patience: int | None = setting("validations without improvement before training stops; null: never", low=1)
    min_delta: float = setting("smallest change that counts as an improvement", low=0)
    metric_bound: float | None = setting("stop once the metric reaches this value; null: never")
    min_lr: float | None = setting("stop once the learning rate is below this, after warm-up; null: never", above=0)
    max_grad_norm: float | None = setting("stop once a logged gradient norm (before clipping) exceeds this; null: never", above=0)
    max_steps: int | None = setting("stop at this global step even if the run is longer; null: never", low=1)


@dataclass(frozen=True)
class ScheduleConfig:
    log: Durations = setting("when a row of training metrics is written", duration="update")
    report: Durations = setting("when a progress report is printed, in addition to 0 % and the last step; []: no reports", duration="any")
    validate: Durations = setting("when the normal validation pass runs", duration="update")
    validate_mask_meta: Durations = setting("when validation with all metadata masked runs", duration="update")
    validate_partial_mask_meta: Durations = setting("when validation with each listed combination masked runs", duration="update")
    partial_combinations: list[list[str]] | None = setting(
        "combinations of components that partial passes mask: [[SPATIAL], [SPATIAL, TEMPORAL]]; null: each of several components alone"
    )
    validate_at_end: bool = setting("run the normal pass, and the other scheduled ones, at the last step too")
    all_combinations_at_end: bool = setting("at the end, validate with every combination of masked components")
    checkpoint: Durations = setting("when a checkpoint is written", duration="any")
    checkpoint_at_end: bool = setting("write a checkpoint at the last step")
    keep_last: int = setting("number of newest checkpoints to keep", low=1)
    keep_best: int = setting("number of best checkpoints to keep in addition", low=0)
    best_monitor: str = setting("validation metric that selects the best checkpoint")
    best_mode: str = setting("min: smaller is better; max: larger is better; auto: as the metric states", choices=("auto", "min", "max"))
    meta_mask_prob: RampConfig = setting("probability that all metadata of a training sample are masked")
    partial_meta_mask_prob: RampConfig = setting(
        "probability that one combination of metadata components is masked in a training sample whose metadata are not all masked"
    )
    partial_mask_whitelist: list[list[str]] = setting("combinations that partial masking draws from; empty: every proper subset")
    partial_mask_weights: list[float] = setting("weights of these combinations; empty: equal")
    null_mask_prob: RampConfig = setting("probability that a null label is left out of the loss; below 1 needs head.nulls=phase_in")
    mixup_prob: RampConfig = setting("probability that a pair of samples is mixed")
    mixup_group_level: list[dict[str, str]] = setting(
        "taxonomic rank, or finest, within which samples are paired, from a time on: [{from: 0%, level: genus}], at the next epoch start"
    )
    image_size: ImageSizeConfig = setting("growing training images (progressive resizing); validation uses data.image_size")
    phases: dict[str, PhaseConfig] | None = setting(
        "curriculum, ordered by start: {first: {start: 0%, end: 40%, lr: 1.2}, second: {start: 30%, end: 100%}}; overlapping phases are "
        "cross-faded; null or {}: no curriculum"
    )
    early_stop: EarlyStopConfig = setting("conditions for stopping before the end")
