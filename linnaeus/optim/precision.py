"""The numeric precision of a run: float32, float64, or autocast to bf16 or fp16, the last with loss scaling.

The autocast context is made once and entered for each micro-batch; float32 has a null context. The loss scale follows the rule of
`torch.amp.GradScaler` and uses its kernel, with one `found_inf` for the whole update: torch's GradScaler lets one of two optimizers
step while the other skips, and reads every gradient twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class GradScaler:
    """The loss scale, float32 [] on the device: doubled after `INTERVAL` consecutive applied updates, halved by a skipped update."""

    INITIAL, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000

    def __init__(self, device: torch.device) -> None:
        self.value = torch.full((), self.INITIAL, device=device)
        self.growth_tracker = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, found_inf: Tensor) -> None:
        """Adjust the scale after an update; `found_inf`, float32 [] on the device, is 1 if it was skipped. Does not wait for it."""
        torch._amp_update_scale_(self.value, self.growth_tracker, found_inf, self.GROWTH, self.BACKOFF, self.INTERVAL)

    def state_dict(self) -> dict[str, Any]:
        return {"scale": float(self.value), "growth_tracker": int(self.growth_tracker)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value.fill_(state["scale"])
        self.growth_tracker.fill_(state["growth_tracker"])


class Precision:
    """`name`: a value of `trainer.precision`. `scaler`: the loss scale for fp16, None otherwise."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.dtype = torch.float64 if name == "float64" else torch.float32  # of parameters, losses and task weights
        self.scaler = GradScaler(device) if name == "fp16" else None
        self._context: Any = torch.autocast(device.type, AUTOCAST[name]) if name in AUTOCAST else contextlib.nullcontext()
        self._one = torch.ones((), dtype=self.dtype, device=device)

    def autocast(self) -> Any:
        """Return the context of the forward pass. It is the same object each time, so do not nest it."""
        return self._context

    @property
    def loss_scale(self) -> Tensor | None:
        """The factor on the losses before backward, float32 []; None: not scaled."""
        return None if self.scaler is None else self.scaler.value

    def backward(self, losses: Tensor, factors: Tensor | None = None) -> None:
        """Run backward from the sum of `losses` [T] times `factors` [T] (default 1) times the loss scale.

        Without the scale, float16 gradients below 6e-8 would be 0. A non-finite loss makes its gradients NaN (0 x inf), even if they
        would be finite, so every rank detects it in the all-reduced gradient norm without another message."""
        factors = self._one if factors is None else factors
        if self.scaler is not None:
            factors = factors * self.scaler.value
        # Scale in `factors`: a gradient argument to `backward` makes torch import sympy to check its shape (0.25 s of start-up).
        (torch.add(factors, losses.detach(), alpha=0) * losses).sum().backward()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the loss scale. Ignore the state of another precision: a run that changes it (if allowed) starts with a new scale."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)
