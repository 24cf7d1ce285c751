"""The classes of `optimizer`, `lr_scheduler`, `weighting` and `growth`: how the weights move. See `schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linnaeus.config.setting import Durations, setting


@dataclass(frozen=True)
class OptimizerConfig:
    name: str = setting("which optimizer")
    lr: float = setting("learning rate, at `lr_reference_batch` samples an update", above=0)
    lr_scaling: str = setting("how `lr` grows with the global batch", choices=("none", "linear", "sqrt"))
    lr_reference_batch: int = setting("the global batch `lr` is meant for", low=1)
    weight_decay: float = setting("decoupled weight decay of the matrices (norms, biases and tokens have none)", low=0)
    fused: bool = setting("one fused kernel per update where torch has one")
    param_groups: list[dict[str, Any]] = setting(
        "parameter groups: [{filter: ..., lr_scale: ..., weight_decay: ...}], the first that matches takes the parameter"
    )


@dataclass(frozen=True)
class AdamWConfig(OptimizerConfig):
    beta1: float = setting("decay of the first moment", low=0, below=1)
    beta2: float = setting("decay of the second moment", low=0, below=1)
    eps: float = setting("added to the root of the second moment", above=0)


@dataclass(frozen=True)
class SGDConfig(OptimizerConfig):
    momentum: float = setting("momentum", low=0, below=1)
    nesterov: bool = setting("Nesterov's form of momentum")


@dataclass(frozen=True)
class MuonConfig(OptimizerConfig):
    momentum: float = setting("momentum of the orthogonalised update of 2-d hidden weights", low=0, below=1)
    adamw_lr_scale: float = setting("learning rate of the AdamW that takes every other parameter, relative to lr", above=0)
    beta1: float = setting("decay of AdamW's first moment", low=0, below=1)
    beta2: float = setting("decay of AdamW's second moment", low=0, below=1)
    eps: float = setting("AdamW's eps", above=0)


@dataclass(frozen=True)
class SchedulerConfig:
    name: str = setting("shape of the learning rate", choices=("cosine", "linear", "step", "wsd", "constant", "plateau"))
    warmup: str = setting("linear warm-up from 0; `0steps` for none", duration="update")


@dataclass(frozen=True)
class CosineConfig(SchedulerConfig):
    final_scale: float = setting("learning rate at the end, relative to the peak", low=0, high=1)


@dataclass(frozen=True)
class LinearConfig(SchedulerConfig):
    final_scale: float = setting("learning rate at the end, relative to the peak", low=0, high=1)


@dataclass(frozen=True)
class StepConfig(SchedulerConfig):
    milestones: Durations = setting("moments at which the learning rate is multiplied by `factor`", duration="update")
    factor: float = setting("what it is multiplied by", above=0, high=1)


@dataclass(frozen=True)
class WSDConfig(SchedulerConfig):
    decay: str = setting("length of the final decay (warm-up, stable, decay)", duration="update")
    decay_shape: str = setting("shape of the final decay", choices=("linear", "cosine", "sqrt"))
    final_scale: float = setting("learning rate at the end, relative to the peak", low=0, high=1)


@dataclass(frozen=True)
class ConstantConfig(SchedulerConfig):
    pass


@dataclass(frozen=True)
class PlateauConfig(SchedulerConfig):
    monitor: str = setting("validation metric to watch, such as val/loss")
    mode: str = setting("whether smaller or larger is better; auto: by the metric's name", choices=("auto", "min", "max"))
    factor: float = setting("what the learning rate is multiplied by on a plateau", above=0, high=1)
    patience: int = setting("validations without improvement before that", low=0)
    min_delta: float = setting("smallest change that counts as an improvement", low=0)


@dataclass(frozen=True)
class WeightingConfig:
    name: str = setting("how the losses of the tasks are weighted", choices=("fixed", "gradnorm", "uncertainty", "dwa", "famo", "surgery"))
    weights: dict[str, float] = setting("weight per task to begin with; a task not named has 1; scaled to sum to the number of tasks")
    conflict: Durations = setting(
        "when the cosines between the tasks' gradients at the last shared layer are measured, for the rows of metrics", duration="update"
    )


@dataclass(frozen=True)
class MovingWeightsConfig(WeightingConfig):
    """What every weighting has that moves its weights now and then."""

    every: Durations = setting("when the weights are updated; for dwa the interval its mean losses are of", duration="update")
    warmup: str = setting("no update of the weights before this", duration="update")


@dataclass(frozen=True)
class GradNormConfig(MovingWeightsConfig):
    alpha: float = setting("strength of the restoring force towards equal training rates", low=0)
    lr: float = setting("step size of the task weights", above=0)
    place: str = setting(
        "where gradients are measured: at the last shared layer, the features the heads read, or exactly, over all shared parameters",
        choices=("shared", "features", "trunk"),
    )


@dataclass(frozen=True)
class UncertaintyConfig(MovingWeightsConfig):
    lr: float = setting("step size of the tasks' log variances, which settle within a few times 2 / lr updates of them", above=0)


@dataclass(frozen=True)
class DWAConfig(MovingWeightsConfig):
    temperature: float = setting("softness of the weights; a large one makes them equal", above=0)


@dataclass(frozen=True)
class FAMOConfig(MovingWeightsConfig):
    lr: float = setting("step size of Adam on the logits of the task weights", above=0)
    decay: float = setting("pull of the logits back to 0", low=0)


@dataclass(frozen=True)
class SurgeryConfig(WeightingConfig):
    method: str = setting("how conflicting gradients are combined", choices=("pcgrad", "upgrad"))
    place: str = setting(
        "where gradients are measured: at the last shared layer, or exactly, over all shared parameters", choices=("shared", "trunk")
    )


@dataclass(frozen=True)
class GrowthConfig:
    name: str = setting(
        "none: every weight is there from the start; linear: the share of connected weights grows linearly", choices=("none", "linear")
    )


@dataclass(frozen=True)
class LinearGrowthConfig(GrowthConfig):
    start: float = setting("share of the weights that are connected at the start, of every matrix alike", above=0, below=1)
    end: float = setting("share that is connected once the growth is over", above=0, high=1)
    begin: str = setting("when the growth begins", duration="update")
    until: str = setting("when it ends", duration="update")
    every: Durations = setting(
        "when weights are connected between these two, besides at the end; []: never, for a density that stays", duration="update"
    )
    by: str = setting(
        "which weights come next: those with the largest gradient in the update that connects them, or by a random order",
        choices=("gradient", "random"),
    )
