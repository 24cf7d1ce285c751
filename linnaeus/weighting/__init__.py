"""How the losses of the tasks are weighted against each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from linnaeus.config.errors import ConfigError
from linnaeus.config.schema import GradNormConfig, WeightingConfig
from linnaeus.weighting.base import TaskWeighting, initial_weights
from linnaeus.weighting.fixed import FixedWeighting
from linnaeus.weighting.gradnorm import GradNorm

__all__ = ["FixedWeighting", "GradNorm", "TaskWeighting", "build_weighting"]


def build_weighting(
    config: WeightingConfig, tasks: Sequence[str], device: torch.device, dtype: torch.dtype = torch.float32
) -> TaskWeighting:
    """The weighting of a configuration; `dtype` is that of the losses (float64 where the run is). Raises ConfigError for an
    unknown task, weights that are impossible, and GradNorm where there is nothing to balance."""
    weights = initial_weights(config.weights, tasks, device, dtype)
    if not isinstance(config, GradNormConfig):
        return FixedWeighting(weights)
    if len(tasks) < 2:
        raise ConfigError(f"weighting.name=gradnorm: there is one task only ({tasks[0]}), nothing to balance; use weighting=fixed")
    for task in tasks:
        if not weights[tasks.index(task)] > 0:
            raise ConfigError(f"weighting.weights.{task}=0: GradNorm only moves positive weights; give one above 0 or use weighting=fixed")
    return GradNorm(weights, config.alpha, config.lr)
