"""How the losses of the tasks are weighted against each other."""

from __future__ import annotations

from collections.abc import Sequence

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
from linnaeus.weighting.dwa import DynamicWeightAverage
from linnaeus.weighting.famo import FAMO
from linnaeus.weighting.gradient_conflict import GradientConflict
from linnaeus.weighting.gradients import TaskGradients
from linnaeus.weighting.gradnorm import GradNorm
from linnaeus.weighting.surgery import Surgery
from linnaeus.weighting.task_weighting import FixedWeighting, Measurements, Requirements, TaskWeighting, initial_weights
from linnaeus.weighting.uncertainty import UncertaintyWeighting
from linnaeus.weighting.weighting_meter import WeightingMeter

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
    "weighting_notes",
]


def weighting_notes(config: WeightingConfig) -> tuple[str, ...]:
    """What to say of the configured weights at the start."""
    idle = [task for task, weight in config.weights.items() if weight == 0]
    return (f"weighting.weights: the loss of {', '.join(idle)} has weight 0, it is measured and trains nothing",) if idle else ()


def build_weighting(
    config: WeightingConfig,
    tasks: Sequence[str],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    accumulation: int = 1,
    seed: int = 0,
) -> TaskWeighting:
    """The weighting of a configuration; `dtype` is that of the losses (float64 where the run is), `accumulation` the micro-batches of
    a window. Raises ConfigError for an unknown task, weights that are impossible, one that balances where there is nothing to balance, and
    surgery where its weights would come too late or its library is missing."""
    weights = initial_weights(config.weights, tasks, device, dtype)
    if type(config) is WeightingConfig:
        return FixedWeighting(weights)
    if len(tasks) < 2:
        raise ConfigError(f"weighting.name={config.name}: there is one task only ({tasks[0]}), nothing to balance; use weighting=fixed")
    if isinstance(config, MovingWeightsConfig) and not config.every:
        raise ConfigError(f"weighting.every=[] would never move the weights of weighting={config.name}; use weighting=fixed")
    for task in tasks:
        if config.weights.get(task) == 0:
            raise ConfigError(
                f"weighting.weights.{task}=0: {config.name} only moves positive weights; give one above 0 or use weighting=fixed"
            )
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
            f"weighting=surgery weighs an update by its own gradients, but a window has {accumulation} micro-batches, of which the first "
            "would be weighed before the last is seen; set trainer.micro_batch_size so that there is one"
        )
    return Surgery(weights, config.method, seed)
