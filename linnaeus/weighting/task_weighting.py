"""Interface of task weightings, their measurements and their initial weights.

A weighting states in `requirements` what it needs; `WeightingMeter` measures only that, over the whole global batch, and passes it to
`finish`. So the loop treats all weightings alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from linnaeus.errors import ConfigError


@dataclass(frozen=True)
class Requirements:
    """The measurements that a weighting needs; none by default."""

    losses: bool = False  # loss sums and label counts of every task
    gradients: bool = False  # norms and scalar products of the tasks' gradients
    losses_after: bool = False  # losses of the same samples after the update; costs a second forward pass
    every_update: bool = False  # at every update, not only at those that move the weights
    same_update: bool = False  # the weights act on the update they were measured in, before its backward


@dataclass(frozen=True)
class Measurements:
    """Measurements of one update, summed over micro-batches and ranks, so equal on all ranks. Tensors are on the device.

    A measurement that is not required is None."""

    update: int  # number of the update: `global_step` after it
    due: bool  # True if the weights must move
    loss_sums: Tensor | None = None  # float64 [T]: sums of each task's losses
    valid: Tensor | None = None  # float64 [T]: number (or total weight) of the labels in these sums
    loss_sums_after: Tensor | None = None  # float64 [T]: sums over the same labels after the update
    losses: Tensor | None = None  # [T]: mean losses, as differentiated
    grad_norms: Tensor | None = None  # [T]: norms of the gradients of `losses`
    gramian: Tensor | None = None  # [T, T]: scalar products of these gradients


class TaskWeighting(Protocol):
    """Weights of the tasks' losses. `weights`: [T] on the device, sum T; one tensor for the whole run, updated in place."""

    weights: Tensor
    requirements: Requirements

    def finish(self, measured: Measurements) -> None:
        """Set the weights of the next update, or of this one with `requirements.same_update`. Does not wait for the device."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class FixedWeighting:
    """Constant weights. Does not measure anything and does not have a state: the weights are in the configuration."""

    requirements = Requirements()

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def finish(self, measured: Measurements) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def initial_weights(weights: Mapping[str, float], tasks: Sequence[str], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return [T] the configured weights, 1 for a task without one, scaled to sum to T.

    Raise `ConfigError` for an unknown task, a negative or non-finite weight, and weights that are all 0."""
    for task, weight in weights.items():
        if task not in tasks:
            raise ConfigError(f"weighting.weights.{task}: {task} is not a task; choose from {', '.join(tasks)}")
        if not 0 <= weight < math.inf:
            raise ConfigError(f"weighting.weights.{task}={weight}; it must be a number that is at least 0")
    values = torch.tensor([float(weights.get(task, 1.0)) for task in tasks], dtype=torch.float64)
    if not values.sum() > 0:
        raise ConfigError("weighting.weights: all tasks have weight 0, so nothing would be trained; set one above 0")
    return (values * (len(tasks) / values.sum())).to(device=device, dtype=dtype)


def usable(values: Tensor) -> Tensor:
    """Return bool [T]: positive and finite. A task without a valid label has a loss and a gradient of exactly 0."""
    return torch.isfinite(values) & (values > 0)


def means(sums: Tensor, valid: Tensor) -> Tensor:
    """Return [T]: loss per label, 0 for a task without labels. `valid` may be below 1 if labels are weighted."""
    return sums / torch.where(valid > 0, valid, 1.0)


def set_weights(weights: Tensor, target: Tensor, active: Tensor) -> None:
    """Set the weights of the `active` tasks (bool [T]) in proportion to `target` [T], in place; the others and the sum T do not change."""
    moved = torch.where(active, target, 0.0)
    others = torch.where(active, 0.0, weights).sum()
    rescaled = moved * ((len(weights) - others) / moved.sum())
    weights.copy_(torch.where(active, rescaled, weights))


def load_tensors(state: Mapping[str, Any], **targets: Tensor) -> None:
    """Copy the tensors of a saved state into `targets`. Raise `ConfigError` if names or shapes differ."""
    if set(state) != set(targets) or any(state[name].shape != target.shape for name, target in targets.items()):
        raise ConfigError("weighting: the saved state is of another weighting or of other tasks; resume with the same weighting and tasks")
    for name, target in targets.items():
        target.copy_(state[name])
