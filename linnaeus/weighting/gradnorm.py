"""GradNorm (Chen et al. 2018): task weights with which all tasks train at similar rates.

Let g_t be the gradient of task t's unweighted loss at the last shared layer, G_t = w_t |g_t|, and r_t = (L_t / L_t(0)) divided by its mean
over tasks. The goal of GradNorm is G_t = mean(G) r_t^alpha =: T_t. GradNorm descends sum_t |G_t - T_t| in the weights, with T_t constant.
G_t is linear in w_t, so the gradient has the closed form sign(G_t - T_t) |g_t| and does not need a second-order graph.

A literal implementation takes steps that depend on the scale of the gradients (lr |g_t| may pass 0 early in training and be negligible
late) and that never converge. This implementation descends a Huber function of the same discrepancy in the logarithm of the weights:

    log w_t  <-  log w_t - lr clip(log G_t - log T_t, -1, 1),   then scale to the same sum.

Far from balance this is GradNorm's constant step, relative to the weight: at most a factor e^lr in either direction. Near balance the
differences log G_t - log T_t shrink by (1 - lr) per update and converge to 0 without oscillation. Only ratios of norms are used, so the
scale of losses and gradients has no effect. With alpha 0 and constant norms 3 : 1 the weights converge to 0.5 : 1.5.

A task is left out of an update, and keeps its weight, if its loss or gradient norm is 0 (no valid label; a zero-initialised head at step 0)
or not finite. This is decided on the device.

L_t(0) is the loss at the first measurement: one global batch after `weighting.warmup`. `TaskGradients` measures the gradients, at
`weighting.place`."""

from __future__ import annotations

import torch
from torch import Tensor

from linnaeus.weighting.task_weighting import Measurements, Requirements, SavedTensors, set_weights, usable


class GradNorm(SavedTensors):
    """Task weights by GradNorm.

    The gradient of a task is summed over micro-batches and ranks before its norm is computed, so the weights do not depend on how the
    global batch is split."""

    requirements = Requirements(gradients=True)
    saved = ("weights", "initial_losses")

    def __init__(self, weights: Tensor, alpha: float, lr: float) -> None:
        self.weights, self.alpha, self.lr = weights, alpha, lr
        self.initial_losses = torch.zeros_like(weights)  # 0: not recorded yet

    @torch.no_grad()
    def finish(self, measured: Measurements) -> None:
        """Update the weights in place, from the measurements of this update, for the next update."""
        assert measured.losses is not None and measured.grad_norms is not None
        first = (self.initial_losses == 0) & usable(measured.losses)
        self.initial_losses.copy_(torch.where(first, measured.losses, self.initial_losses))
        self._move(measured.losses, measured.grad_norms)

    def _move(self, losses: Tensor, grad_norms: Tensor) -> None:
        active = usable(grad_norms) & usable(losses)
        count = active.sum().clamp(min=1)
        # Inactive tasks have the value 1, so that their logarithms are finite; they are masked out of every sum.
        weighted = torch.where(active, self.weights * grad_norms, 1.0)
        rates = torch.where(active, losses / self.initial_losses, 1.0)
        mean_weighted, mean_rate = (weighted * active).sum() / count, (rates * active).sum() / count
        discrepancy = weighted.log() - mean_weighted.log() - self.alpha * (rates.log() - mean_rate.log())
        set_weights(self.weights, self.weights * torch.exp(-self.lr * discrepancy.clamp(-1.0, 1.0)), active)
