"""An update after backward: gradient norm, finite check, clipping, optimizer step, loss scale, moving average, counts.

A non-finite gradient is detected, and the update skipped, on the device; the host reads the counts only when a row is logged. After
DDP's all-reduce the gradient and its norm are equal on all ranks, so all ranks skip the same updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.optim.ema import EMA
from linnaeus.optim.growth import Growth, seed_second_moments
from linnaeus.optim.optimizers import Optimizers
from linnaeus.optim.precision import GradScaler


class Update:
    """`grad_norm`: gradient norm of the last update before clipping. `skipped_updates`, `skipped_in_a_row`: number of updates skipped as
    non-finite, in total and since the last applied one. All are float tensors [] on the device."""

    def __init__(
        self,
        optimizers: Optimizers,
        max_grad_norm: float | None = None,
        scaler: GradScaler | None = None,
        ema: EMA | None = None,
        statistics: Sequence[Tensor] = (),
        growth: Growth | None = None,
    ) -> None:
        """`statistics`: buffers that the forward pass changes (batch norm); a skipped update restores them. Weights that `growth`
        connects in a skipped update stay connected."""
        self.optimizers, self.max_grad_norm, self.scaler, self.ema = optimizers, max_grad_norm, scaler, ema
        self.growth, self._number = growth, 0
        self._statistics = list(statistics)
        self._before = [buffer.clone() for buffer in self._statistics]
        device = optimizers.params[0].device
        self.grad_norm = torch.zeros((), device=device)
        self.found_inf = torch.zeros((), device=device)
        self._skipped = torch.zeros(2, device=device)
        self.skipped_updates, self.skipped_in_a_row = self._skipped.unbind()

    @torch.no_grad()
    def start(self, number: int = 0) -> None:
        """Start update `number` (from 1), before its first forward pass. `number` is used by growth only."""
        self._number = number
        if self._statistics:
            torch._foreach_copy_(self._before, self._statistics)

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """Make one update from the gradients of the parameters, at the current learning rate. Return `grad_norm`.

        If the norm is not finite, skip it: parameters, moments, step counts and averages are unchanged to the bit."""
        grads = self.optimizers.gradients()
        new = self.growth.connect(self._number, grads) if self.growth is not None else []
        norm = total_norm(grads)
        zero = norm - norm  # NaN if the norm is infinite or NaN; NaN != NaN. Comparing with a Python number would cost 3 us more
        torch.ne(zero, zero, out=self.found_inf)
        divisor = self._divisor(norm)
        if new:
            seed_second_moments(self.optimizers, new, grads, divisor, self.found_inf)
        self.optimizers.step(self.found_inf, divisor, grads)
        for buffer, before in zip(self._statistics, self._before, strict=True):
            buffer.copy_(torch.where(self.found_inf > 0, before, buffer))
        self.grad_norm = norm if self.scaler is None else norm / self.scaler.value
        if self.scaler is not None:
            self.scaler.update(self.found_inf)
        if self.ema is not None:
            self.ema.update(self.found_inf)
        self._skipped.add_(self.found_inf)
        self.skipped_in_a_row.mul_(self.found_inf)
        return self.grad_norm

    def _divisor(self, norm: Tensor) -> Tensor | None:
        """Return the divisor that unscales and clips: S max(1, (norm / S) / clip) = max(S, norm / clip), with S the loss scale."""
        scale = None if self.scaler is None else self.scaler.value
        if self.max_grad_norm is None:
            return scale
        ratio = norm / self.max_grad_norm
        return ratio.clamp_(min=1.0) if scale is None else torch.maximum(ratio, scale)

    def state_dict(self) -> dict[str, Any]:
        return {"skipped_updates": int(self.skipped_updates), "skipped_in_a_row": int(self.skipped_in_a_row)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.skipped_updates.fill_(state["skipped_updates"])
        self.skipped_in_a_row.fill_(state["skipped_in_a_row"])


def total_norm(grads: list[Tensor | None]) -> Tensor:
    """Return the Euclidean norm of all gradients, [] on the device."""
    norms = torch._foreach_norm([grad for grad in grads if grad is not None])
    return torch.linalg.vector_norm(torch.stack(norms))
