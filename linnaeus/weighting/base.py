"""What a task weighting is to the loop, and the weights a configuration starts from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from linnaeus.config.errors import ConfigError


class TaskWeighting(Protocol):
    """`weights`: [T] on the device, summing to T; the very same tensor for the whole run, changed in place between updates."""

    weights: Tensor

    def measure(self, losses: Tensor | Sequence[Tensor], shared: Sequence[Tensor], scale: Tensor | None = None) -> None:
        """Look at a micro-batch before its backward."""
        ...

    def finish(self, all_reduce: Callable[[Tensor], Tensor]) -> None:
        """Set the weights of the next update from what was measured over the window."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def initial_weights(weights: Mapping[str, float], tasks: Sequence[str], device: torch.device, dtype: torch.dtype) -> Tensor:
    """[T] weights of the configuration, 1 where a task is not named, scaled to sum to T. Raises ConfigError for an unknown task,
    a weight that is negative or not finite, and weights that are all 0."""
    for task, weight in weights.items():
        if task not in tasks:
            raise ConfigError(f"weighting.weights.{task}: no such task; there are {', '.join(tasks)}")
        if not 0 <= weight < math.inf:
            raise ConfigError(f"weighting.weights.{task}={weight}: give a number that is at least 0")
    values = torch.tensor([float(weights.get(task, 1.0)) for task in tasks], dtype=torch.float64)
    if not values.sum() > 0:
        raise ConfigError("weighting.weights: all tasks have weight 0, so nothing is learnt; give one a positive weight")
    return (values * (len(tasks) / values.sum())).to(device=device, dtype=dtype)
