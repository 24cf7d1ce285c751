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
    """`start`, `measure` for each micro-batch between its loss and its backward, `finish` after the update."""

    def __init__(
        self,
        weighting: TaskWeighting,
        conflict: GradientConflict,
        gradients: TaskGradients,
        all_reduce: Callable[[Tensor], Tensor],
        separate_loss_sums: SeparateSums | None = None,
    ) -> None:
        """`all_reduce` sums a tensor over the processes and returns it; `separate_loss_sums` is the workload's, None: the loss sums."""
        self.weighting, self.conflict, self.gradients = weighting, conflict, gradients
        self.all_reduce, self.separate_loss_sums = all_reduce, separate_loss_sums
        self._asked = self._gradients = False  # what is measured of this update: for the weighting, and of gradients for anybody
        self._sums: Tensor | None = None  # float64 [T] of losses, where they are wanted

    def start(self, update: int, valid: Tensor, due: bool, conflict_due: bool) -> None:
        """Start the update number `update`. `valid` float64 [T] on the host: labels in the whole global batch; `due`: the weights
        are to move; `conflict_due`: the conflict is to be measured."""
        requirements, weights = self.weighting.requirements, self.weighting.weights
        self._asked = (due or requirements.always) and (requirements.losses or requirements.gradients)
        self._gradients = (conflict_due and self.gradients.possible) or (self._asked and requirements.gradients)
        self._sums = torch.zeros_like(weights, dtype=torch.float64) if self._asked and requirements.losses else None
        self._update, self._due, self._valid = update, due, valid
        if self._gradients:
            self.gradients.start(at_place=self._asked and requirements.gradients)

    def measure(self, sums: Tensor, outputs: Any, scale: Tensor | None) -> None:
        """Look at a micro-batch before its backward: `sums` [T] of losses with their graph, `scale` the loss scale of fp16."""
        if self._sums is not None:
            self._sums += sums.detach()
        if not self._gradients:
            return
        denominators = torch.where(self._valid > 0, self._valid, 1.0).to(sums, non_blocking=True)
        separate = None if self.separate_loss_sums is None else self.separate_loss_sums(outputs)
        if separate is None:
            losses: Sequence[Tensor] = (sums / denominators).unbind()
        else:
            losses = [one / share for one, share in zip(separate, denominators.unbind(), strict=True)]
        self.gradients.add(losses, outputs, scale)
        if self.weighting.requirements.at_once:
            self.finish()

    def requires_losses_after(self) -> bool:
        """Whether `finish` is to be given the loss sums of the same window after the update."""
        return self._asked and self.weighting.requirements.losses_after

    def finish(self, sums_after: Tensor | None = None) -> None:
        """Hand over what was measured. `sums_after` float64 [T]: of this process."""
        found: dict[str, Tensor] = {}
        if self._sums is not None:
            both = torch.stack([self._sums] if sums_after is None else [self._sums, sums_after])
            found = dict(zip(("sums", "sums_after"), self.all_reduce(both).unbind()))
            found["valid"] = self._valid.to(both, non_blocking=True)
        if self._gradients:
            losses, norms, gramian, at_shared = self.gradients.total(self.all_reduce)
            self.conflict.update(at_shared)
            found |= {"losses": losses, "norms": norms, "gramian": gramian}
        if self._asked:
            self.weighting.finish(Measurements(self._update, self._due, **found))
        self._asked, self._gradients, self._sums = False, False, None
