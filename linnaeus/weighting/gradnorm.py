"""GradNorm (Chen et al. 2018): task weights under which the tasks train at similar rates.

With g_t the gradient of task t's unweighted loss at the last shared layer, G_t = w_t |g_t|, and r_t = (L_t / L_t(0)) divided by
its mean over tasks, GradNorm wants G_t = mean(G) r_t^alpha =: T_t, and takes steps of the weights down sum_t |G_t - T_t|, T held
fixed. G_t is linear in w_t, so that gradient is known in closed form, sign(G_t - T_t) |g_t|, and no second-order graph is built.

Taken literally the step depends on the scale of the gradients (a step of lr |g_t| may pass 0 early in training and be nothing
late) and never comes to rest. We descend a Huber function of the same discrepancy in the logarithm of the weights:

    log w_t  <-  log w_t - lr clip(log G_t - log T_t, -1, 1),   then scale to the same sum.

Far from balance that is GradNorm's constant step, in relative size: a weight moves by at most a factor e^lr each way. Near it, the
logs shrink by (1 - lr) per update and come to rest at G = T without chatter. Only ratios of norms enter, so nothing depends on
the scale of losses or gradients. With alpha 0 and constant norms 3 : 1 the weights go to 0.5 : 1.5.

A task is left out of an update, its weight unchanged, where it has nothing to say: no valid label (its loss and gradient are 0), a
gradient that is exactly 0 (a zero-initialised head at step 0), or anything not finite. All of it on the device.

L_t(0) is the loss at the first measurement, a single global batch after `weighting.warmup`.

Where the gradients are taken (`weighting.place`) is the business of `TaskGradients`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from linnaeus.weighting.task_weighting import Measurements, Requirements, load_tensors, set_weights, usable


class GradNorm:
    """The norm is that of the gradient summed over micro-batches and processes, not a mean of norms, so it does not depend on how
    the global batch is split."""

    requirements = Requirements(gradients=True)

    def __init__(self, weights: Tensor, alpha: float, lr: float) -> None:
        self.weights, self.alpha, self.lr = weights, alpha, lr
        self.initial_losses = torch.zeros_like(weights)  # 0: not recorded yet

    @torch.no_grad()
    def finish(self, measured: Measurements) -> None:
        """Move the weights, in place, for the next update."""
        assert measured.losses is not None and measured.norms is not None
        first = (self.initial_losses == 0) & usable(measured.losses)
        self.initial_losses.copy_(torch.where(first, measured.losses, self.initial_losses))
        self._move(measured.losses, measured.norms)

    def _move(self, losses: Tensor, norms: Tensor) -> None:
        active = usable(norms) & usable(losses)
        count = active.sum().clamp(min=1)
        # Stand-ins of 1 keep the logarithms of inactive tasks finite; they are masked out of every sum.
        weighted = torch.where(active, self.weights * norms, 1.0)
        rates = torch.where(active, losses / self.initial_losses, 1.0)
        mean_weighted, mean_rate = (weighted * active).sum() / count, (rates * active).sum() / count
        discrepancy = weighted.log() - mean_weighted.log() - self.alpha * (rates.log() - mean_rate.log())
        set_weights(self.weights, self.weights * torch.exp(-self.lr * discrepancy.clamp(-1.0, 1.0)), active)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights.clone(), "initial_losses": self.initial_losses.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_tensors(state, weights=self.weights, initial_losses=self.initial_losses)
