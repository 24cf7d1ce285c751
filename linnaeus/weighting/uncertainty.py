"""Uncertainty weighting (Kendall, Gal and Cipolla 2018): each task has a learned variance, and its weight is the inverse variance.

For classification the paper minimises sum_t e^(-s_t) L_t + s_t / 2 over the network and over s_t = log sigma_t^2. The gradient in s_t, 1/2
- e^(-s_t) L_t, does not need a graph. Gradient flow over a time lr has a closed form, since the variance v_t = e^(s_t) satisfies the linear
equation dv/dtau = L_t - v_t / 2:

    v_t  <-  2 L_t + (v_t - 2 L_t) e^(-lr / 2).

To first order this is the paper's gradient step of size lr. It cannot pass the optimum v_t = 2 L_t, however large the loss or the step. The
weights are 1 / v_t, scaled to sum to the number of tasks (the paper does not scale them; for optimizers such as Adam this makes no
difference). L_t is the mean over the whole global batch, so the weights do not depend on its split. New weights are used from the next
update on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from linnaeus.weighting.task_weighting import Measurements, Requirements, SavedTensors, means, set_weights, usable


class UncertaintyWeighting(SavedTensors):
    """Task weights by uncertainty. `log_variances`: float64 [T].

    The initial variances are the inverse configured weights, v_t = 1 / w_t."""

    requirements = Requirements(losses=True)
    saved = ("weights", "log_variances")

    def __init__(self, weights: Tensor, lr: float) -> None:
        self.weights, self.keep = weights, math.exp(-lr / 2)
        self.log_variances = -weights.double().log()

    @torch.no_grad()
    def finish(self, measured: Measurements) -> None:
        """Update the variances with the losses of this update, and set the weights for the next update.

        A task without a valid label keeps its variance and its weight."""
        assert measured.loss_sums is not None and measured.valid is not None
        losses = means(measured.loss_sums, measured.valid)
        active, optimum = usable(losses), 2 * losses
        moved = (optimum + (self.log_variances.exp() - optimum) * self.keep).log()
        self.log_variances.copy_(torch.where(active, moved, self.log_variances))
        set_weights(self.weights, torch.exp(-self.log_variances), active)
