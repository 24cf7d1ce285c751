"""FAMO, fast adaptive multitask optimization (Liu et al. 2023): all losses should fall at the same relative rate.

The paper has logits xi and z = softmax(xi), and descends sum_t c z_t log L_t, with c chosen so that the factors of the task gradients sum
to 1: the weight of task t is proportional to z_t / L_t. After the update the losses of the same samples are measured again, and the logits
are moved against the improvement delta_t = log L_t(before) - log L_t(after):

    gradient_t = z_t (delta_t - sum_s z_s delta_s) + decay xi_t,  one step of Adam (lr 0.025, decay 0.001, betas 0.9 and 0.999).

A task that improves less than the others gets a larger weight. Differences from the paper:

- The weights are used from the next update on. The paper computes the weights of an update from its own losses; with several micro-batches
  or ranks these are not known before the first backward. Here the weight of task t is proportional to z_t / L_t(after). L_t(after) is the
  loss on the samples of the current update, with the parameters after that update.
- The weights sum to the number of tasks; in the paper to 1.
- Losses are means over the whole global batch. The second forward pass uses the dropout masks of the first and does not change batch
  statistics. It costs about a third of a step.
- If `every` is longer than one step, losses are measured and logits are changed only once per interval.
- A task without a valid label in an update, or with a loss that is not positive and finite, keeps its weight, logit and moments. The other
  weights are scaled so that the sum of all weights does not change. In an update that is skipped, this holds for all tasks.
- The configured weights are additional factors: each multiplies z_t / L_t(after) of its task before the weights are scaled to their sum."""

from __future__ import annotations

import torch
from torch import Tensor

from linnaeus.weighting.task_weighting import Measurements, Requirements, SavedTensors, means, set_weights, usable

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # constants of Adam, as in the paper


class FAMO(SavedTensors):
    """Task weights by FAMO. `logits`: [T]. `moments`: first and second moments of Adam, [2, T]. `moves`: number of Adam steps of each
    logit, [T].

    All three are float64."""

    requirements = Requirements(losses=True, losses_after=True)
    saved = ("weights", "logits", "moments", "moves")

    def __init__(self, weights: Tensor, lr: float, decay: float) -> None:
        self.weights, self.lr, self.decay = weights, lr, decay
        self.factors = weights.double().clone()
        self.logits, self.moves = torch.zeros_like(self.factors), torch.zeros_like(self.factors)
        self.moments = torch.zeros(2, len(weights), dtype=torch.float64, device=weights.device)

    @torch.no_grad()
    def finish(self, measured: Measurements) -> None:
        """Step the logits according to the change of the losses in this update, and set the weights of the next update."""
        assert measured.loss_sums is not None and measured.loss_sums_after is not None and measured.valid is not None
        before, after = means(measured.loss_sums, measured.valid), means(measured.loss_sums_after, measured.valid)
        active = usable(before) & usable(after)
        self._step(torch.where(active, before.log() - after.log(), 0.0), active)
        target = self.factors * torch.softmax(self.logits, 0) / torch.where(active, after, 1.0)
        set_weights(self.weights, target, active)

    def _step(self, improvement: Tensor, active: Tensor) -> None:
        shares = torch.softmax(self.logits.masked_fill(~active, -torch.inf), 0)
        gradient = shares * (improvement - (shares * improvement).sum()) + self.decay * self.logits
        first, second = self.moments
        first.copy_(torch.where(active, BETA1 * first + (1 - BETA1) * gradient, first))
        second.copy_(torch.where(active, BETA2 * second + (1 - BETA2) * gradient**2, second))
        self.moves += active
        moves = self.moves.clamp(min=1)
        step = first / (1 - BETA1**moves) / ((second / (1 - BETA2**moves)).sqrt() + EPS)
        self.logits.copy_(torch.where(active, self.logits - self.lr * step, self.logits))
