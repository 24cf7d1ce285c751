"""`WeightingMeter`: measures, at every update, what the task weighting and the gradient conflict between tasks require."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.weighting.gradient_conflict import GradientConflict
from linnaeus.weighting.gradients import TaskGradients
from linnaeus.weighting.task_weighting import Measurements, TaskWeighting

SeparateSums = Callable[[Any], Sequence[Tensor] | None]


class WeightingMeter:
    """Call `start`, `measure` for each micro-batch between its loss and its backward, and `finish` after the update."""

    def __init__(
        self,
        weighting: TaskWeighting,
        conflict: GradientConflict,
        gradients: TaskGradients,
        all_reduce: Callable[[Tensor], Tensor],
        separate_loss_sums: SeparateSums | None = None,
    ) -> None:
        """`all_reduce` sums a tensor over the ranks, in place, and returns it. `separate_loss_sums` is the method of the workload; None:
        differentiate the stacked loss sums."""
        self.weighting, self.conflict, self.gradients = weighting, conflict, gradients
        self.all_reduce, self.separate_loss_sums = all_reduce, separate_loss_sums
        self._for_weighting = self._gradients = False  # measure for the weighting; measure gradients, for the weighting or the conflict
        self._loss_sums: Tensor | None = None  # float64 [T]; None: not required

    def start(self, update: int, valid: Tensor, due: bool, conflict_due: bool) -> None:
        """Start update number `update`.

        `valid`: float64 [T] on the host, labels in the whole global batch; `due`: the weights must move; `conflict_due`: the gradient
        conflict must be measured."""
        requirements, weights = self.weighting.requirements, self.weighting.weights
        self._for_weighting = (due or requirements.every_update) and (requirements.losses or requirements.gradients)
        self._gradients = (conflict_due and self.gradients.possible) or (self._for_weighting and requirements.gradients)
        self._loss_sums = torch.zeros_like(weights, dtype=torch.float64) if self._for_weighting and requirements.losses else None
        self._update, self._due, self._valid = update, due, valid
        if self._gradients:
            self.gradients.start(at_place=self._for_weighting and requirements.gradients)

    def measure(self, loss_sums: Tensor, outputs: Any, scale: Tensor | None) -> None:
        """Measure a micro-batch before its backward. `loss_sums`: [T] with their graph; `scale`: the loss scale of fp16."""
        if self._loss_sums is not None:
            self._loss_sums += loss_sums.detach()
        if not self._gradients:
            return
        denominators = torch.where(self._valid > 0, self._valid, 1.0).to(loss_sums, non_blocking=True)
        separate = None if self.separate_loss_sums is None else self.separate_loss_sums(outputs)
        if separate is None:
            losses: Sequence[Tensor] = (loss_sums / denominators).unbind()
        else:
            losses = [loss_sum / count for loss_sum, count in zip(separate, denominators.unbind(), strict=True)]
        self.gradients.add(losses, outputs, scale)
        if self.weighting.requirements.same_update:
            self.finish()

    def requires_losses_after(self) -> bool:
        """Return True if `finish` requires the loss sums of the same window after the update."""
        return self._for_weighting and self.weighting.requirements.losses_after

    def finish(self, loss_sums_after: Tensor | None = None) -> None:
        """Reduce the measurements over the ranks and pass them to the weighting. `loss_sums_after`: float64 [T] of this rank."""
        found: dict[str, Tensor] = {}
        if self._loss_sums is not None:
            both = torch.stack([self._loss_sums] if loss_sums_after is None else [self._loss_sums, loss_sums_after])
            found = dict(zip(("loss_sums", "loss_sums_after"), self.all_reduce(both).unbind()))
            found["valid"] = self._valid.to(both, non_blocking=True)
        if self._gradients:
            losses, grad_norms, gramian, at_shared = self.gradients.total(self.all_reduce)
            self.conflict.update(at_shared)
            found |= {"losses": losses, "grad_norms": grad_norms, "gramian": gramian}
        if self._for_weighting:
            self.weighting.finish(Measurements(self._update, self._due, **found))
        self._for_weighting, self._gradients, self._loss_sums = False, False, None
