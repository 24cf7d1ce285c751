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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.config.errors import ConfigError


class GradNorm:
    """`measure` each micro-batch of a window before its backward, then `finish`. The norm is that of the gradient summed over
    micro-batches and processes, not a mean of norms, so it does not depend on how the global batch is split."""

    def __init__(self, weights: Tensor, alpha: float, lr: float) -> None:
        self.weights, self.alpha, self.lr = weights, alpha, lr
        self.initial_losses = torch.zeros_like(weights)  # 0: not recorded yet
        self.norms = torch.zeros_like(weights)  # |g_t| of the last measurement
        self._vectors: Tensor | None = None
        self._losses: Tensor | None = None
        self._scale: Tensor | None = None

    def measure(self, losses: Tensor | Sequence[Tensor], shared: Sequence[Tensor], scale: Tensor | None = None) -> None:
        """Add a micro-batch. `losses`: [T] or T scalars, each task's sum of losses divided by its valid labels in the whole
        global batch, with their graph, which is kept. `scale`: the loss scale of fp16, [], multiplied in and divided out.

        Separate scalars are cheaper: through a stacked [T] each task's gradient runs through the heads of all, as zeros."""
        own = losses if scale is None else [loss * scale for loss in losses]
        vectors = torch.stack([_gradient(loss, shared) for loss in own])
        values = torch.stack([loss.detach() for loss in losses])
        self._vectors = vectors if self._vectors is None else self._vectors + vectors
        self._losses = values if self._losses is None else self._losses + values
        self._scale = scale

    @torch.no_grad()
    def finish(self, all_reduce: Callable[[Tensor], Tensor]) -> None:
        """Update the weights in place, for the next update. `all_reduce` sums a tensor over the processes and returns it."""
        assert self._vectors is not None and self._losses is not None, "finish without a measurement"
        dtype, tasks = self.weights.dtype, len(self.weights)
        total = all_reduce(torch.cat([self._vectors.to(dtype).flatten(), self._losses.to(dtype)]))
        losses, norms = total[-tasks:], torch.linalg.vector_norm(total[:-tasks].view(tasks, -1), dim=1)
        self.norms = norms if self._scale is None else norms / self._scale
        self._vectors = self._losses = self._scale = None
        self._record_initial(losses)
        self._move(losses, self.norms)

    def _record_initial(self, losses: Tensor) -> None:
        usable = torch.isfinite(losses) & (losses > 0)
        self.initial_losses.copy_(torch.where((self.initial_losses == 0) & usable, losses, self.initial_losses))

    def _move(self, losses: Tensor, norms: Tensor) -> None:
        active = torch.isfinite(norms) & (norms > 0) & torch.isfinite(losses) & (losses > 0)
        count = active.sum().clamp(min=1)
        # Stand-ins of 1 keep the logarithms of inactive tasks finite; they are masked out of every sum.
        weighted = torch.where(active, self.weights * norms, 1.0)
        rates = torch.where(active, losses / self.initial_losses, 1.0)
        mean_weighted, mean_rate = (weighted * active).sum() / count, (rates * active).sum() / count
        discrepancy = weighted.log() - mean_weighted.log() - self.alpha * (rates.log() - mean_rate.log())
        moved = torch.where(active, self.weights * torch.exp(-self.lr * discrepancy.clamp(-1.0, 1.0)), 0.0)
        inactive_sum = torch.where(active, 0.0, self.weights).sum()
        rescaled = moved * ((len(self.weights) - inactive_sum) / moved.sum())
        self.weights.copy_(torch.where(active, rescaled, self.weights))

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights.clone(), "initial_losses": self.initial_losses.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"weights", "initial_losses"} or state["weights"].shape != self.weights.shape:
            raise ConfigError("weighting: the saved state is of another weighting or of other tasks; resume with those")
        self.weights.copy_(state["weights"])
        self.initial_losses.copy_(state["initial_losses"])


def _gradient(loss: Tensor, shared: Sequence[Tensor]) -> Tensor:
    """The gradient of one loss at the shared parameters as one vector [P]; 0 where they do not enter it."""
    grads = torch.autograd.grad(loss, shared, retain_graph=True, allow_unused=True)
    return torch.cat([(torch.zeros_like(p) if grad is None else grad).reshape(-1) for grad, p in zip(grads, shared, strict=True)])
