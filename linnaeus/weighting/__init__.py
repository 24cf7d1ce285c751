"""Task weighting: compute the weights by which the losses of the tasks are multiplied, from gradients and losses measured in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from linnaeus.config.schema_optimization import (
    DWAConfig,
    FAMOConfig,
    GradNormConfig,
    MovingWeightsConfig,
    SurgeryConfig,
    UncertaintyConfig,
    WeightingConfig,
)
from linnaeus.errors import ConfigError
from linnaeus.schedule.events import Every
from linnaeus.weighting.dwa import DynamicWeightAverage
from linnaeus.weighting.famo import FAMO
from linnaeus.weighting.gradients import GradientConflict, TaskGradients
from linnaeus.weighting.gradnorm import GradNorm
from linnaeus.weighting.surgery import Surgery
from linnaeus.weighting.task_weighting import (
    FixedWeighting,
    Measurements,
    Requirements,
    TaskWeighting,
    WeightingMeter,
    initial_weights,
)
from linnaeus.weighting.uncertainty import UncertaintyWeighting

__all__ = [
    "FAMO",
    "DynamicWeightAverage",
    "FixedWeighting",
    "GradNorm",
    "GradientConflict",
    "Measurements",
    "Requirements",
    "Surgery",
    "TaskGradients",
    "TaskWeighting",
    "UncertaintyWeighting",
    "WeightingMeter",
    "build_weighting",
    "check_continued_weights",
    "weighting_notes",
]


def weighting_notes(config: WeightingConfig, due: Every) -> tuple[str, ...]:
    """Return lines for the log at the start of a run: about tasks whose configured weight is 0, and about a weighting that changes no
    weight before the last update. `due`: the event of the updates of the task weights."""
    zero = [task for task, weight in config.weights.items() if weight == 0]
    notes = [f"weighting.weights: the loss of {', '.join(zero)} has weight 0: it is measured but not trained"] if zero else []
    if isinstance(config, MovingWeightsConfig) and due.ever_due:  # otherwise the printed schedule says that it does not occur
        compares = isinstance(config, DWAConfig)  # two intervals: the first has no weights of its own
        step = due.next_after(0)
        step = due.next_after(step) if compares and step is not None else step
        if step is None or step >= due.last:
            needed = "two intervals" if compares else "an interval"
            text = f"weighting={config.name} has no effect: the task weights change after {needed} of weighting.every="
            notes.append(f"{text}[{','.join(config.every)}], which do not end before the last step {due.last}; set a shorter one")
    return tuple(notes)


def check_continued_weights(config: WeightingConfig, before: Mapping[str, Any], checkpoint: object) -> str | None:
    """Return a line for the log if a run continues with other values of `weighting.weights` and they take effect later; None if they take
    effect at once or are the same.

    `before`: group `weighting` of the configuration of the checkpoint, {} if unknown. `checkpoint`: its path. Raise `ConfigError` if the
    weighting starts with the configured weights and then changes them itself, so that other values have no effect."""
    old = before.get("weights", config.weights)
    if before.get("name") != config.name or old == config.weights:
        return None
    if isinstance(config, GradNormConfig | UncertaintyConfig):
        raise ConfigError(
            f"weighting.weights={config.weights} has no effect: weighting={config.name} continues with the task weights in {checkpoint}; "
            f"use weighting.weights={old}, as for that checkpoint, or start another run with run.init_from={checkpoint}"
        )
    later = isinstance(config, DWAConfig | FAMOConfig)
    return f"weighting.weights takes effect when weighting={config.name} next changes the task weights" if later else None


def build_weighting(
    config: WeightingConfig,
    tasks: Sequence[str],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    accumulation: int = 1,
    seed: int = 0,
) -> TaskWeighting:
    """Return the task weighting that `config` names.

    `dtype`: type of the losses. `accumulation`: number of micro-batches of an update on one process. `seed`: seed of the run.

    Raise `ConfigError` for an unknown task or an impossible weight; for a weighting other than `fixed` with a single task or with a task of
    weight 0; and for gradient surgery with accumulation or without the library torchjd."""
    weights = initial_weights(config.weights, tasks, device, dtype)
    if type(config) is WeightingConfig:
        return FixedWeighting(weights)
    if len(tasks) < 2:
        raise ConfigError(f"weighting.name={config.name} needs two or more tasks, but the only task is {tasks[0]}; use weighting=fixed")
    if isinstance(config, MovingWeightsConfig) and not config.every:
        raise ConfigError(f"weighting.every is [], so weighting={config.name} would never update the weights; use weighting=fixed")
    for task in tasks:
        if config.weights.get(task) == 0:
            raise ConfigError(f"weighting.weights.{task}=0: {config.name} needs positive weights; set it above 0 or use weighting=fixed")
    match config:
        case GradNormConfig():
            return GradNorm(weights, config.alpha, config.lr)
        case UncertaintyConfig():
            return UncertaintyWeighting(weights, config.lr)
        case DWAConfig():
            return DynamicWeightAverage(weights, config.temperature)
        case FAMOConfig():
            return FAMO(weights, config.lr, config.decay)
    assert isinstance(config, SurgeryConfig)
    if accumulation > 1:
        raise ConfigError(
            f"weighting=surgery computes the weights of an update from its own gradients, so it needs one micro-batch per window, not "
            f"{accumulation}; set trainer.micro_batch_size to the share of one process"
        )
    return Surgery(weights, config.method, seed)
