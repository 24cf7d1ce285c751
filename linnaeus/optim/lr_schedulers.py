"""Compute the learning rate as a pure function of `global_step`: the update from step s to s + 1 uses `base_lr` x `scale(s)`.

During a warm-up of W steps the scale is (s + 1) / W: 1 / W at the first update, never 0. Then the scale follows a shape, such as a cosine,
which is 1 at step W and reaches its end one step after the last update, so the learning rate of the last update is not 0 even if
`final_scale` is 0. The phases of a curriculum multiply the scale, also during the warm-up. Only `plateau` has a state: its accumulated
factor, the best result and the number of results without improvement."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

from linnaeus.config.schema_optimization import (
    ConstantConfig,
    CosineConfig,
    LinearConfig,
    OptimizerConfig,
    PlateauConfig,
    SchedulerConfig,
    StepConfig,
    WSDConfig,
)
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError
from linnaeus.schedule.early_stopping import monitored
from linnaeus.schedule.phases import Phases

Shape = Callable[[int], float]
# Decay from 1 to 0 at fraction x of its length. sqrt: "1-sqrt" of Hägele et al. 2024, the best shape in their comparison.
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1.0 - x,
    "cosine": lambda x: 0.5 * (1.0 + math.cos(math.pi * x)),
    "sqrt": lambda x: 1.0 - math.sqrt(x),
}


class LRSchedule:
    """Learning rate of a run by step: `base_lr` times the warm-up or, after it, the shape; times the multiplier of the curriculum `phases`.

    The learning rate of a parameter group is this one times the `lr_scale` of the group; nothing else changes it.

    `not_compared`: the metric and direction of the loaded state, such as "val/loss (min)", if later results cannot be compared with it."""

    not_compared: str | None = None

    def __init__(self, name: str, base_lr: float, warmup: int, shape: Shape, phases: Phases | None = None) -> None:
        self.name, self.base_lr, self.warmup, self.shape, self.phases = name, base_lr, warmup, shape, phases

    def at(self, step: int) -> float:
        """Return the learning rate of the update that takes `global_step` from `step` to `step + 1`."""
        return self.base_lr * self.scale(step)

    def scale(self, step: int) -> float:
        """Return the learning rate of the update at `step`, divided by `base_lr`."""
        scale = (step + 1) / self.warmup if step < self.warmup else self.shape(step)
        return scale if self.phases is None else scale * self.phases.lr_multiplier(step)

    def observe(self, metrics: Mapping[str, float]) -> bool:
        """Record the validation results of a step. Return True if they change the learning rate, which is only possible with `plateau`."""
        return False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ConfigError(f"lr_scheduler.name={self.name}: the saved state is of another schedule; resume with that one")


class Plateau(LRSchedule):
    """A learning rate that is constant after warm-up, and multiplied by `factor` when validation results stop improving.

    Results stop improving if more than `patience` results in a row do not improve the best by more than `min_delta`. NaN is not an
    improvement."""

    def __init__(self, config: PlateauConfig, base_lr: float, warmup: int, phases: Phases | None = None) -> None:
        super().__init__(config.name, base_lr, warmup, lambda step: 1.0, phases)
        self.config = config
        self.reduced, self.waited = 1.0, 0
        self.best: float | None = None

    def scale(self, step: int) -> float:
        return super().scale(step) * self.reduced

    def observe(self, metrics: Mapping[str, float]) -> bool:
        """Record the monitored metric in `metrics`, the validation results of a step. Return True if it reduces the learning rate.

        Raise `ConfigError` if `metrics` contains results of the monitored validation pass, but not the metric itself."""
        config = self.config
        value = monitored(metrics, config.monitor, "lr_scheduler.monitor")
        if value is None:
            return False
        value = value if config.mode == "min" else -value
        if not math.isnan(value) and (self.best is None or value < self.best - config.min_delta):
            self.best, self.waited = value, 0
            return False
        self.waited += 1
        if self.waited <= config.patience:
            return False
        self.reduced, self.waited = self.reduced * config.factor, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        state = {"reduced": self.reduced, "best": self.best, "waited": self.waited}
        return state | {"monitor": self.config.monitor, "mode": self.config.mode}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. If it is of another metric or direction, keep its accumulated factor, but compare with no earlier result."""
        if not {"reduced", "best", "waited"} <= set(state):
            raise ConfigError("lr_scheduler.name=plateau: the saved state is of another schedule; resume with that one")
        self.reduced, self.best, self.waited = state["reduced"], state["best"], state["waited"]
        now = self.config.monitor, self.config.mode
        before = state.get("monitor", now[0]), state.get("mode", now[1])  # earlier versions did not save them
        self.not_compared = None if before == now else "{} ({})".format(*before)
        if self.not_compared is not None:
            self.best, self.waited = None, 0


def scaled_lr(config: OptimizerConfig, global_batch_size: int) -> tuple[float, str]:
    """Return (base learning rate for `global_batch_size`, a line about it for the log). The rule is `config.lr_scaling`."""
    ratio = global_batch_size / config.lr_reference_batch
    lr = config.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.lr_scaling]
    if config.lr_scaling == "none":
        return lr, f"learning rate {lr:g}, not scaled with the global batch ({global_batch_size})"
    reference = f"learning rate {config.lr:g} at {config.lr_reference_batch} samples"
    return lr, f"{reference}, scaled ({config.lr_scaling}) to {lr:g} at {global_batch_size}"


def build_scheduler(
    config: SchedulerConfig, base_lr: float, total_steps: int, steps_per_epoch: int, phases: Phases | None = None
) -> LRSchedule:
    """Return the learning-rate schedule of a run of `total_steps` updates, multiplied by the curriculum `phases` if given.

    Raise `ConfigError` if the warm-up, the decay or the milestones in `config` do not fit into the run."""

    def steps(text: str, key: str) -> int:
        return Duration.parse(text, f"lr_scheduler.{key}").to_steps(total_steps, steps_per_epoch)

    warmup = steps(config.warmup, "warmup")
    if warmup > total_steps:
        raise ConfigError(f"lr_scheduler.warmup={config.warmup}: {warmup} steps are more than the {total_steps} of the run; shorten it")
    if isinstance(config, PlateauConfig):
        return Plateau(config, base_lr, warmup, phases)
    return LRSchedule(config.name, base_lr, warmup, _shape(config, warmup, total_steps, steps), phases)


def _shape(config: SchedulerConfig, warmup: int, total: int, steps: Callable[[str, str], int]) -> Shape:
    if isinstance(config, (CosineConfig, LinearConfig)):
        return _decay(config.name, warmup, total, config.final_scale)
    if isinstance(config, WSDConfig):
        length = steps(config.decay, "decay")
        if not length:
            raise ConfigError(f"lr_scheduler.decay={config.decay}; it must be at least 1 step, or use lr_scheduler=constant")
        if warmup + length > total:
            raise ConfigError(
                f"lr_scheduler.decay={config.decay}: {length} steps and {warmup} of warm-up exceed the {total} of the run; shorten one"
            )
        return _decay(config.decay_shape, total - length, total, config.final_scale)
    if isinstance(config, StepConfig):
        return _milestones(config, total, steps)
    assert isinstance(config, ConstantConfig), f"{config} does not have a shape"
    return lambda step: 1.0


def _decay(kind: str, start: int, end: int, final: float) -> Shape:
    """Return a function of the step. It is 1 up to step `start`, `final` from step `end` on, and follows `DECAYS[kind]` between these
    steps."""
    curve, length = DECAYS[kind], max(1, end - start)

    def shape(step: int) -> float:
        return final + (1.0 - final) * curve(min(max(0, step - start) / length, 1.0))

    return shape


def _milestones(config: StepConfig, total: int, steps: Callable[[str, str], int]) -> Shape:
    """Return a function of the step. It is 1 at first and is multiplied by `factor` at each milestone (a step in `config`).

    Raise `ConfigError` if there is no milestone, or if a milestone is outside of the run."""
    milestones = [steps(text, f"milestones[{i}]") for i, text in enumerate(config.milestones)]
    if not milestones:
        raise ConfigError("lr_scheduler.milestones is []; set at least one, such as [60%], or use lr_scheduler=constant")
    for text, milestone in zip(config.milestones, milestones, strict=True):
        if not 0 < milestone < total:
            raise ConfigError(f"lr_scheduler.milestones: {text} is step {milestone}; it must be between 0 and the {total} steps of the run")
    milestones.sort()
    return lambda step: config.factor ** bisect_right(milestones, step)
