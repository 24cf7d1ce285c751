"""What a task weighting is to the loop: what it needs to see of an update, what it is shown, and the weights it starts from.

A weighting says once, in `needs`, what it wants measured; `WeightingMeter` measures just that, over the whole global batch, and hands it
over in `finish`. So the loop has no case for any of them.
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
    """What a weighting wants to see of an update; nothing by default."""

    losses: bool = False  # the loss of every task
    gradients: bool = False  # norms and products of the tasks' gradients
    losses_after: bool = False  # the losses of the same samples again, after the update: a second forward
    always: bool = False  # at every update, not only at those where the weights are due
    at_once: bool = False  # the weights act on the very update they were measured in, before its backward


@dataclass(frozen=True)
class Measurements:
    """One update as a weighting sees it: sums over micro-batches and processes, the same on all of them; tensors on the device.
    What was not asked for is None."""

    update: int  # its number, `global_step` once it is done
    due: bool  # whether the weights are to move
    sums: Tensor | None = None  # float64 [T]: of each task's losses
    valid: Tensor | None = None  # float64 [T]: labels they were summed over
    sums_after: Tensor | None = None  # float64 [T]: of the same labels after the update
    losses: Tensor | None = None  # [T]: mean of what was differentiated
    norms: Tensor | None = None  # [T]: of the gradients of those
    gramian: Tensor | None = None  # [T, T]: their scalar products


class TaskWeighting(Protocol):
    """`weights`: [T] on the device, summing to T; the very same tensor for the whole run, changed in place."""

    weights: Tensor
    requirements: Requirements

    def finish(self, measured: Measurements) -> None:
        """Set the weights of the next update (of this one, where `requirements.at_once`). Does not wait for the device."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class FixedWeighting:
    """Nothing to measure, nothing to keep: the weights come from the configuration again."""

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


def usable(values: Tensor) -> Tensor:
    """bool [T]: positive and finite. A task without a valid label has a loss and a gradient of exactly 0."""
    return torch.isfinite(values) & (values > 0)


def means(sums: Tensor, valid: Tensor) -> Tensor:
    """[T]: losses per label; 0 where there is none. `valid` may be below 1 where labels are weighted."""
    return sums / torch.where(valid > 0, valid, 1.0)


def set_weights(weights: Tensor, wanted: Tensor, active: Tensor) -> None:
    """Give the `active` tasks (bool [T]) weights in proportion to `wanted` [T], in place; the others keep theirs and the sum stays T."""
    moved = torch.where(active, wanted, 0.0)
    others = torch.where(active, 0.0, weights).sum()
    rescaled = moved * ((len(weights) - others) / moved.sum())
    weights.copy_(torch.where(active, rescaled, weights))


def load_tensors(state: Mapping[str, Any], **targets: Tensor) -> None:
    """Copy the tensors of a saved state into `targets`. Raises ConfigError for the state of another weighting or of other tasks."""
    if set(state) != set(targets) or any(state[name].shape != target.shape for name, target in targets.items()):
        raise ConfigError("weighting: the saved state is of another weighting or of other tasks; resume with those")
    for name, target in targets.items():
        target.copy_(state[name])
