"""Dynamic weight average (Liu, Johns and Davison 2019): a task whose loss falls slowly has a larger weight.

With L_t(k) the mean loss of task t in the k-th interval (`weighting.every`; an epoch in the paper), r_t = L_t(k) / L_t(k-1) and a
temperature tau, the weights of the next interval are

    w_t  proportional to  exp(r_t / tau),  scaled to sum to the number of tasks.

The mean over an interval is the sum of the losses of all its updates divided by the number of all its valid labels, as in the log. The
configured weights multiply w_t. During the first two intervals, the configured weights alone are the task weights."""

from __future__ import annotations

import torch
from torch import Tensor

from linnaeus.weighting.task_weighting import Measurements, Requirements, SavedTensors, means, set_weights, usable


class DynamicWeightAverage(SavedTensors):
    """Task weights by dynamic weight average.

    `previous`: mean loss of each task in the last complete interval, 0 for a task without labels. `sums`, `valid`: loss sum and label count
    of each task in the current interval. All three are float64 [T]."""

    requirements = Requirements(losses=True, every_update=True)
    saved = ("weights", "previous", "sums", "valid")

    def __init__(self, weights: Tensor, temperature: float) -> None:
        self.weights, self.temperature = weights, temperature
        self.factors = weights.double().clone()
        self.previous, self.sums, self.valid = (torch.zeros_like(self.factors) for _ in range(3))

    @torch.no_grad()
    def finish(self, measured: Measurements) -> None:
        """Add the losses of an update. If the update ends an interval, set the weights of the next interval. Non-finite losses are left
        out."""
        assert measured.loss_sums is not None and measured.valid is not None
        counted = torch.isfinite(measured.loss_sums)
        self.sums += torch.where(counted, measured.loss_sums, 0.0)
        self.valid += torch.where(counted, measured.valid, 0.0)
        if measured.due:
            self._end_interval()

    def _end_interval(self) -> None:
        losses = means(self.sums, self.valid)
        seen = usable(losses)
        active = seen & usable(self.previous)
        ratios = torch.where(active, losses / self.previous, 0.0)
        set_weights(self.weights, self.factors * torch.softmax(ratios / self.temperature, 0), active)
        self.previous.copy_(torch.where(seen, losses, self.previous))
        self.sums.zero_()
        self.valid.zero_()
