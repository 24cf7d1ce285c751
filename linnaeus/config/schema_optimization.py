"""Define the dataclasses of four groups of the configuration: `optimizer`, `lr_scheduler`, `weighting` and `growth`."""

from dataclasses import dataclass
from typing import Any

from linnaeus.config.setting import Durations, setting


@dataclass(frozen=True)
class OptimizerConfig:
    name: str = setting("name of the optimizer")
    lr: float = setting("learning rate at a global batch size of `lr_reference_batch`", above=0)
    lr_scaling: str = setting("scaling of `lr` with the global batch size", choices=("none", "linear", "sqrt"))
    lr_reference_batch: int = setting("global batch size that `lr` was chosen for", low=1)
    weight_decay: float = setting(
        "weight decay, decoupled for adamw and muon, added to the gradient for sgd; norms, biases and tokens are not decayed", low=0
    )
    layer_decay: float | None = setting(
        "factor of the learning rate from each layer to the one below it, 1 at the head, such as 0.75 to fine-tune; null: 1 everywhere",
        above=0,
        high=1,
    )
    fused: bool = setting("use torch's fused kernel where there is one")
    param_groups: list[dict[str, Any]] = setting("[{filter: ..., lr_scale: ..., weight_decay: ...}]; the first group that matches applies")


@dataclass(frozen=True)
class AdamWConfig(OptimizerConfig):
    beta1: float = setting("decay of the first moment", low=0, below=1)
    beta2: float = setting("decay of the second moment", low=0, below=1)
    eps: float = setting("constant added to the square root of the second moment", above=0)
    state_precision: str = setting(
        "precision of both moments; bf16 takes half of the memory, rounded at random", choices=("float32", "bf16")
    )


@dataclass(frozen=True)
class SGDConfig(OptimizerConfig):
    momentum: float = setting("momentum", low=0, below=1)
    nesterov: bool = setting("use Nesterov momentum")


@dataclass(frozen=True)
class MuonConfig(OptimizerConfig):
    momentum: float = setting("momentum of the orthogonalised update of 2-d hidden weights", low=0, below=1)
    adamw_lr_scale: float = setting("learning rate of AdamW for all other parameters, relative to `lr`", above=0)
    beta1: float = setting("AdamW: decay of the first moment", low=0, below=1)
    beta2: float = setting("AdamW: decay of the second moment", low=0, below=1)
    eps: float = setting("AdamW: constant added to the square root of the second moment", above=0)


@dataclass(frozen=True)
class TimmOptimizerConfig(OptimizerConfig):
    opt: str = setting("name of a timm optimizer, such as lamb or lion")
    options: dict[str, Any] = setting("further arguments of that optimizer, such as {betas: [0.9, 0.98]}")


@dataclass(frozen=True)
class SchedulerConfig:
    name: str = setting("shape of the learning-rate schedule", choices=("cosine", "linear", "step", "wsd", "constant", "plateau"))
    warmup: str = setting("length of the linear warm-up; `0steps`: no warm-up", duration="update")


@dataclass(frozen=True)
class CosineConfig(SchedulerConfig):
    final_scale: float = setting("learning rate at the end, relative to the peak", low=0, high=1)


@dataclass(frozen=True)
class LinearConfig(SchedulerConfig):
    final_scale: float = setting("learning rate at the end, relative to the peak", low=0, high=1)


@dataclass(frozen=True)
class StepConfig(SchedulerConfig):
    milestones: Durations = setting("times at which the learning rate is multiplied by `factor`", duration="update")
    factor: float = setting("factor of the learning rate at each milestone", above=0, high=1)


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
    monitor: str = setting("validation metric to monitor, such as val/loss")
    mode: str = setting("min: smaller is better; max: larger is better; auto: as the metric states", choices=("auto", "min", "max"))
    factor: float = setting("factor of the learning rate on a plateau", above=0, high=1)
    patience: int = setting("validations without improvement that are tolerated; the next one reduces the learning rate", low=0)
    min_delta: float = setting("smallest change that counts as an improvement", low=0)


@dataclass(frozen=True)
class WeightingConfig:
    name: str = setting("method of weighting the tasks", choices=("fixed", "gradnorm", "uncertainty", "dwa", "famo", "surgery"))
    weights: dict[str, float] = setting("initial weight per task, 1 for a task that is not named; scaled to sum to the number of tasks")
    conflict: Durations = setting("when the cosines between task gradients at the last shared layer are measured", duration="update")


@dataclass(frozen=True)
class MovingWeightsConfig(WeightingConfig):
    """Keys common to all weightings that change the task weights during the run, at intervals."""

    every: Durations = setting("when the task weights are updated; dwa averages the losses over this interval", duration="update")
    warmup: str = setting("task weights are not updated before this", duration="update")


@dataclass(frozen=True)
class GradNormConfig(MovingWeightsConfig):
    alpha: float = setting("strength of the restoring force towards equal training rates", low=0)
    lr: float = setting("step size of the task weights", above=0)
    place: str = setting(
        "where gradients are measured: last shared layer, input of the heads, or shared parameters",
        choices=("shared", "features", "trunk"),
    )


@dataclass(frozen=True)
class UncertaintyConfig(MovingWeightsConfig):
    lr: float = setting("step size of the log variances; they converge within a few times 2 / lr updates", above=0)


@dataclass(frozen=True)
class DWAConfig(MovingWeightsConfig):
    temperature: float = setting("temperature of the softmax over the tasks; a large value makes the weights equal", above=0)


@dataclass(frozen=True)
class FAMOConfig(MovingWeightsConfig):
    lr: float = setting("step size of Adam on the logits of the task weights", above=0)
    decay: float = setting("decay of the logits towards 0", low=0)


@dataclass(frozen=True)
class SurgeryConfig(WeightingConfig):
    method: str = setting("method of combining conflicting gradients", choices=("pcgrad", "upgrad"))
    place: str = setting("where gradients are measured: the last shared layer, or all shared parameters", choices=("shared", "trunk"))


@dataclass(frozen=True)
class GrowthConfig:
    name: str = setting("none: all weights are connected; linear: the share of connected weights grows", choices=("none", "linear"))


@dataclass(frozen=True)
class LinearGrowthConfig(GrowthConfig):
    start: float = setting("share of each matrix's weights that is connected at the start", above=0, below=1)
    end: float = setting("share that is connected at the end of the growth", above=0, high=1)
    begin: str = setting("when the growth starts", duration="update")
    until: str = setting("when the growth ends", duration="update")
    every: Durations = setting("when weights are connected from `begin` to `until`, and always at `until`; []: never", duration="update")
    by: str = setting("order of connecting: the largest gradient in that update first, or random", choices=("gradient", "random"))
