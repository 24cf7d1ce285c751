"""The part of an update after backward: norm, finite check, clipping, optimizers, loss scale, average, counts.

All of it is decided on the device: the update is skipped there when the gradient is not finite, and the host reads nothing but
at log boundaries. After DDP's all-reduce the gradient is the same on all processes, and so is its norm, and so is the decision.
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
    """`grad_norm`: of the last update, before clipping. `skipped_updates`, `skipped_in_a_row`: how many updates were skipped as
    not finite, in all and since the last applied one. All float tensors [] on the device."""

    def __init__(
        self,
        optimizers: Optimizers,
        max_grad_norm: float | None = None,
        scaler: GradScaler | None = None,
        ema: EMA | None = None,
        statistics: Sequence[Tensor] = (),
        growth: Growth | None = None,
    ) -> None:
        """`statistics`: buffers that forward passes change (batch norm's); a skipped update leaves them as they were before it. What
        `growth` connects stays connected even so."""
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
        """Call before the first forward of the update `number`, counted from 1; without growth it need not be known."""
        self._number = number
        if self._statistics:
            torch._foreach_copy_(self._before, self._statistics)

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """Make one update from the gradients of the parameters, at the learning rate that was set; returns `grad_norm`.

        Skipped where the norm is not finite: then parameters, moments, step counts and averages keep their bits."""
        grads = self.optimizers.gradients()
        new = self.growth.connect(self._number, grads) if self.growth is not None else []
        norm = total_norm(grads)
        zero = norm - norm  # NaN where the norm is infinite or NaN, and NaN is not itself; a number would cost 3 us as an operand
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
        """Unscaling and clipping as one division: by S max(1, (norm / S) / clip) = max(S, norm / clip), S the loss scale."""
        scale = None if self.scaler is None else self.scaler.value
        if self.max_grad_norm is None:
            return scale
        over = norm / self.max_grad_norm
        return over.clamp_(min=1.0) if scale is None else torch.maximum(over, scale)

    def state_dict(self) -> dict[str, Any]:
        return {"skipped_updates": int(self.skipped_updates), "skipped_in_a_row": int(self.skipped_in_a_row)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.skipped_updates.fill_(state["skipped_updates"])
        self.skipped_in_a_row.fill_(state["skipped_in_a_row"])


def total_norm(grads: list[Tensor | None]) -> Tensor:
    """The Euclidean norm over all gradients, [] on the device."""
    norms = torch._foreach_norm([grad for grad in grads if grad is not None])
    return torch.linalg.vector_norm(torch.stack(norms))
