"""The learning rate as a pure function of `global_step`: `scale(s)` is what the update from step s to s + 1 multiplies it by.

Warm-up of W steps is (s + 1) / W, so no update has a learning rate of 0 and the first has 1 / W of the peak; then comes the
shape, measured from the end of the warm-up, at its peak at step W and one step short of its end at the last update: with
`final_scale` 0 the last update still moves. The phases of a curriculum multiply all of it, the warm-up too. Only `plateau` holds anything:
what it has multiplied by so far, and its patience.
"""

from __future__ import annotations

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
from linnaeus.schedule.phases import Phases

Shape = Callable[[int], float]
# How far a decay has come down, 1 to 0, at fraction x of its length. sqrt: "1-sqrt" of Hägele et al. 2024, the best of those they tried.
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1.0 - x,
    "cosine": lambda x: 0.5 * (1.0 + math.cos(math.pi * x)),
    "sqrt": lambda x: 1.0 - math.sqrt(x),
}


class LRSchedule:
    """The learning rate of a run: `base_lr` times a warm-up, then a shape, times the multiplier of `phases`. Parameter groups multiply it
    by their own `lr_scale`, nothing else changes it."""

    def __init__(self, name: str, base_lr: float, warmup: int, shape: Shape, phases: Phases | None = None) -> None:
        self.name, self.base_lr, self.warmup, self.shape, self.phases = name, base_lr, warmup, shape, phases

    def at(self, step: int) -> float:
        """Return the learning rate of the update that takes `global_step` from `step` to `step + 1`."""
        return self.base_lr * self.scale(step)

    def scale(self, step: int) -> float:
        """Return `at(step) / base_lr`."""
        scale = (step + 1) / self.warmup if step < self.warmup else self.shape(step)
        return scale if self.phases is None else scale * self.phases.lr_multiplier(step)

    def observe(self, metrics: Mapping[str, float]) -> bool:
        """Take the validation results of a step; True if the learning rate changes. Only `plateau` ever does."""
        return False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ConfigError(f"lr_scheduler.name={self.name}: the saved state is of another schedule; resume with that one")


class Plateau(LRSchedule):
    """Constant after warm-up, multiplied by `factor` after more than `patience` results in a row that did not improve by more
    than `min_delta` (NaN is no improvement)."""

    def __init__(self, config: PlateauConfig, base_lr: float, warmup: int, phases: Phases | None = None) -> None:
        super().__init__(config.name, base_lr, warmup, lambda step: 1.0, phases)
        self.config = config
        self.reduced, self.waited = 1.0, 0
        self.best: float | None = None

    def scale(self, step: int) -> float:
        return super().scale(step) * self.reduced

    def observe(self, metrics: Mapping[str, float]) -> bool:
        """Raises ConfigError when there are results of passes that name `monitor`'s prefix but not the metric itself."""
        config = self.config
        if config.monitor not in metrics:
            prefix = config.monitor.split("/")[0]
            if any(name.startswith(f"{prefix}/") for name in metrics):
                known = ", ".join(sorted(name for name in metrics if name.startswith(f"{prefix}/")))
                raise ConfigError(f"lr_scheduler.monitor={config.monitor}: no such metric; there are {known}")
            return False
        value = metrics[config.monitor] if config.mode == "min" else -metrics[config.monitor]
        if not math.isnan(value) and (self.best is None or value < self.best - config.min_delta):
            self.best, self.waited = value, 0
            return False
        self.waited += 1
        if self.waited <= config.patience:
            return False
        self.reduced, self.waited = self.reduced * config.factor, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"reduced": self.reduced, "best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"reduced", "best", "waited"}:
            raise ConfigError("lr_scheduler.name=plateau: the saved state is of another schedule; resume with that one")
        self.reduced, self.best, self.waited = state["reduced"], state["best"], state["waited"]


def scaled_lr(config: OptimizerConfig, global_batch_size: int) -> tuple[float, str]:
    """Return the base learning rate at this global batch size, and the line that explains it."""
    ratio = global_batch_size / config.lr_reference_batch
    lr = config.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.lr_scaling]
    if config.lr_scaling == "none":
        return lr, f"learning rate {lr:g}, not scaled with the global batch ({global_batch_size})"
    reference = f"learning rate {config.lr:g} at {config.lr_reference_batch} samples"
    return lr, f"{reference}, scaled ({config.lr_scaling}) to {lr:g} at {global_batch_size}"


def build_scheduler(
    config: SchedulerConfig, base_lr: float, total_steps: int, steps_per_epoch: int, phases: Phases | None = None
) -> LRSchedule:
    """Return the learning-rate schedule of a run of `total_steps` updates, with the `phases` of its curriculum. Raise `ConfigError` for
    one that does not fit into the run."""

    def steps(text: str, key: str) -> int:
        return Duration.parse(text, f"lr_scheduler.{key}").to_steps(total_steps, steps_per_epoch)

    warmup = steps(config.warmup, "warmup")
    if warmup > total_steps:
        raise ConfigError(f"lr_scheduler.warmup={config.warmup}: {warmup} steps, longer than the training of {total_steps}; shorten it")
    if isinstance(config, PlateauConfig):
        return Plateau(config, base_lr, warmup, phases)
    return LRSchedule(config.name, base_lr, warmup, _shape(config, warmup, total_steps, steps), phases)


def _shape(config: SchedulerConfig, warmup: int, total: int, steps: Callable[[str, str], int]) -> Shape:
    if isinstance(config, (CosineConfig, LinearConfig)):
        return _decay(config.name, warmup, total, config.final_scale)
    if isinstance(config, WSDConfig):
        length = steps(config.decay, "decay")
        if not length:
            raise ConfigError(f"lr_scheduler.decay={config.decay}: no decay at all; use lr_scheduler=constant")
        if warmup + length > total:
            raise ConfigError(
                f"lr_scheduler.decay={config.decay}: {length} steps and a warm-up of {warmup} exceed the training of {total}; shorten one"
            )
        return _decay(config.decay_shape, total - length, total, config.final_scale)
    if isinstance(config, StepConfig):
        return _stairs(config, total, steps)
    assert isinstance(config, ConstantConfig), f"no shape for {config}"
    return lambda step: 1.0


def _decay(kind: str, begin: int, end: int, final: float) -> Shape:
    """1 up to `begin`, `final` at `end` and beyond."""
    curve, length = DECAYS[kind], max(1, end - begin)

    def shape(step: int) -> float:
        return final + (1.0 - final) * curve(min(max(0, step - begin) / length, 1.0))

    return shape


def _stairs(config: StepConfig, total: int, steps: Callable[[str, str], int]) -> Shape:
    """Multiplied by `factor` from each moment on."""
    moments = [steps(text, f"milestones[{i}]") for i, text in enumerate(config.milestones)]
    if not moments:
        raise ConfigError(
            "lr_scheduler.milestones=[]: no moment at which the learning rate changes; name some or use lr_scheduler=constant"
        )
    for text, moment in zip(config.milestones, moments, strict=True):
        if not 0 < moment < total:
            raise ConfigError(
                f"lr_scheduler.milestones: {text} is step {moment}, not inside the training of {total} steps; move or remove it"
            )
    moments.sort()
    return lambda step: config.factor ** bisect_right(moments, step)
