"""Define the interface of task weightings, measure the quantities that they require, and compute their initial weights.

A weighting lists the quantities in `requirements`; `WeightingMeter` measures only these, over the whole global batch, and passes them to
`finish`. So the training loop treats all weightings alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from linnaeus.distributed.summation_tree import BlockwiseSum, SumOrder
from linnaeus.errors import ConfigError
from linnaeus.weighting.gradients import GradientConflict, TaskGradients


@dataclass(frozen=True)
class Requirements:
    """Measurements that a task weighting requires; none by default."""

    losses: bool = False  # loss sums and label counts of every task
    gradients: bool = False  # norms and scalar products of the tasks' gradients
    losses_after: bool = False  # losses of the same samples after the update; costs a second forward pass
    every_update: bool = False  # measure at every update, not only at those that update the weights
    same_update: bool = False  # the weights act on the update they were measured in, before its backward


@dataclass(frozen=True)
class Measurements:
    """Measurements of one update, summed over micro-batches and ranks, so that they are equal on all ranks. Tensors are on the device.

    A measurement that is not required is None."""

    update: int  # number of the update: `global_step` after it
    due: bool  # True if the weights must be updated
    loss_sums: Tensor | None = None  # float64 [T]: sums of each task's losses
    valid: Tensor | None = None  # float64 [T]: number (or total weight) of the labels in these sums
    loss_sums_after: Tensor | None = None  # float64 [T]: sums over the same labels after the update; NaN if it was skipped
    losses: Tensor | None = None  # [T]: mean losses, as differentiated
    grad_norms: Tensor | None = None  # [T]: norms of the gradients of `losses`
    gramian: Tensor | None = None  # [T, T]: scalar products of these gradients


class TaskWeighting(Protocol):
    """Interface of a task weighting: the weights of the tasks' losses and a method that updates them.

    `weights`: [T] on the device, with sum T. The same tensor is used in the whole run and updated in place."""

    weights: Tensor
    requirements: Requirements

    def finish(self, measured: Measurements) -> None:
        """Set the weights for the next update, or for the current update if `requirements.same_update`. Does not wait for the device."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class SavedTensors:
    """Base of the task weightings whose state consists of tensors. `saved`: names of the attributes that are these tensors."""

    saved: tuple[str, ...]

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).clone() for name in self.saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy the tensors of a saved state into those of this object. Raise `ConfigError` if names or shapes differ."""
        targets = {name: getattr(self, name) for name in self.saved}
        if set(state) != set(targets) or any(state[name].shape != target.shape for name, target in targets.items()):
            raise ConfigError(
                "weighting: the saved state is of another weighting or of other tasks; resume with the same weighting and tasks"
            )
        for name, target in targets.items():
            target.copy_(state[name])


class FixedWeighting:
    """Constant task weights. This weighting requires no measurement and has no state: the weights are in the configuration."""

    requirements = Requirements()

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def finish(self, measured: Measurements) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class WeightingMeter:
    """Measurement, at every update, of the quantities that the task weighting and the gradient conflict require.

    Call `start`, then `measure` for each micro-batch between its loss and its backward, and `finish` after the update. If the weights act
    on the update in which they are measured (`Requirements.same_update`), `measure` itself also calls `finish`."""

    def __init__(
        self,
        weighting: TaskWeighting,
        conflict: GradientConflict,
        gradients: TaskGradients,
        order: SumOrder,
        separate_loss_sums: Callable[[Any], Sequence[Tensor] | None],
    ) -> None:
        """`order`: order of the sums over micro-batches and ranks.

        `separate_loss_sums`: method of the workload that returns the loss sums as T scalars from the outputs of the model. If it returns
        None, the gradients are computed from the stacked loss sums."""
        self.weighting, self.conflict, self.gradients = weighting, conflict, gradients
        self.order, self.separate_loss_sums = order, separate_loss_sums
        self._for_weighting = self._gradients = False  # measure for the weighting; measure gradients for it or the conflict
        self._loss_sums: BlockwiseSum | None = None  # of float64 [T]; None: not required

    def start(self, update: int, valid: Tensor, due: bool, conflict_due: bool) -> None:
        """Start update number `update`.

        `valid`: denominator of the loss of each task in the whole global batch, mostly its number of labels, float64 [T] on the host.
        `due`: True if the task weights must be updated. `conflict_due`: True if the gradient conflict must be measured."""
        requirements = self.weighting.requirements
        self._for_weighting = (due or requirements.every_update) and (requirements.losses or requirements.gradients)
        self._gradients = (conflict_due and self.gradients.possible) or (self._for_weighting and requirements.gradients)
        self._loss_sums = BlockwiseSum(self.order.block) if self._for_weighting and requirements.losses else None
        self._update, self._due, self._valid = update, due, valid
        if self._gradients:
            self.gradients.start(at_place=self._for_weighting and requirements.gradients)

    def measure(self, loss_sums: Tensor, outputs: Any, scale: Tensor | None) -> None:
        """Measure a micro-batch before its backward. `loss_sums`: [T] with their graph. `scale`: loss scale of fp16, []; None: 1."""
        if self._loss_sums is not None:
            self._loss_sums.add(loss_sums.detach().double())
        if not self._gradients:
            return
        denominators = torch.where(self._valid > 0, self._valid, 1.0).to(loss_sums, non_blocking=True)
        separate = self.separate_loss_sums(outputs)
        if separate is None:
            losses: Sequence[Tensor] = (loss_sums / denominators).unbind()
        else:
            losses = [loss_sum / count for loss_sum, count in zip(separate, denominators.unbind(), strict=True)]
        self.gradients.add(losses, outputs, scale)
        if self.weighting.requirements.same_update:
            self.finish()

    def requires_losses_after(self) -> bool:
        """Return True if `finish` must be called with the loss sums of the same micro-batches, computed again after the update."""
        return self._for_weighting and self.weighting.requirements.losses_after

    def finish(self, loss_sums_after: Tensor | None = None) -> None:
        """Sum the measurements over the ranks and pass them to the weighting.

        `loss_sums_after`: loss sums of this rank after the update, float64 [T]; needed only if `requires_losses_after()`."""
        found: dict[str, Tensor] = {}
        if self._loss_sums is not None:
            sums = self._loss_sums.total()
            both = torch.stack([sums] if loss_sums_after is None else [sums, loss_sums_after])
            found = dict(zip(("loss_sums", "loss_sums_after"), self.order.all_reduce(both).unbind()))
            found["valid"] = self._valid.to(both, non_blocking=True)
        if self._gradients:
            losses, grad_norms, gramian, at_shared = self.gradients.total(self.order.all_reduce)
            self.conflict.update(at_shared)
            found |= {"losses": losses, "grad_norms": grad_norms, "gramian": gramian}
        if self._for_weighting:
            self.weighting.finish(Measurements(self._update, self._due, **found))
        self._for_weighting, self._gradients, self._loss_sums = False, False, None


def initial_weights(weights: Mapping[str, float], tasks: Sequence[str], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the configured task weights [T], scaled to sum to T. A task that is not named has weight 1 before the scaling.

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
    """Return bool [T]: True for each of `values` [T] that is positive and finite.

    A task without a valid label has a loss and a gradient of exactly 0, so it is not usable."""
    return torch.isfinite(values) & (values > 0)


def means(sums: Tensor, valid: Tensor) -> Tensor:
    """Return the mean loss per label of each task, [T]; 0 for a task without labels.

    `sums`: loss sums, [T]. `valid`: number of labels, [T], or their total weight, which may be below 1."""
    return sums / torch.where(valid > 0, valid, 1.0)


def set_weights(weights: Tensor, target: Tensor, active: Tensor) -> None:
    """Set the entries of `weights` [T] of the `active` tasks (bool [T]) in proportion to `target` [T], in place.

    The entries of all other tasks do not change. The sum of all weights stays T."""
    moved = torch.where(active, target, 0.0)
    others = torch.where(active, 0.0, weights).sum()
    rescaled = moved * ((len(weights) - others) / moved.sum())
    weights.copy_(torch.where(active, rescaled, weights))
