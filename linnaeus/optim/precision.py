"""The number formats of a run: float32, float64, or autocast to bf16 or fp16, the last with a scaled loss.

Contexts are made once and entered again and again, so that float32 pays for nothing. The loss scale follows the rule of
`torch.amp.GradScaler` with its own kernel, but takes the `found_inf` that the whole update agrees on: with two optimizers
GradScaler itself lets one step while the other skips, and it walks over every gradient twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class GradScaler:
    """The loss scale, float32 [] on the device: doubled after `INTERVAL` updates in a row were applied, halved by a skipped one."""

    INITIAL, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000

    def __init__(self, device: torch.device) -> None:
        self.value = torch.full((), self.INITIAL, device=device)
        self.good = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, found_inf: Tensor) -> None:
        """Take the outcome of an update, float32 [] on the device; does not wait for it."""
        torch._amp_update_scale_(self.value, self.good, found_inf, self.GROWTH, self.BACKOFF, self.INTERVAL)

    def state_dict(self) -> dict[str, Any]:
        return {"scale": float(self.value), "good": int(self.good)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value.fill_(state["scale"])
        self.good.fill_(state["good"])


class Precision:
    """`name` is a `trainer.precision`. `scaler` is None but for fp16."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.dtype = torch.float64 if name == "float64" else torch.float32  # of parameters, losses and task weights
        self.scaler = GradScaler(device) if name == "fp16" else None
        self._context: Any = torch.autocast(device.type, AUTOCAST[name]) if name in AUTOCAST else contextlib.nullcontext()
        self._one = torch.ones((), dtype=self.dtype, device=device)

    def autocast(self) -> Any:
        """The context to run forward in; the same object each time, so never inside itself."""
        return self._context

    @property
    def loss_scale(self) -> Tensor | None:
        """What losses are multiplied by before backward, float32 []; None: nothing."""
        return None if self.scaler is None else self.scaler.value

    def backward(self, losses: Tensor, factors: Tensor | None = None) -> None:
        """Backward from the sum of `losses` [T] times `factors` [T] (1 by default), scaled: float16 gradients below 6e-8 would be lost
        without. A loss that is not finite makes its factor and with it its gradients NaN (0 x inf), also where the gradient
        alone would be finite, so that all processes see it in the common gradient norm without a message of its own."""
        factors = self._one if factors is None else factors
        if self.scaler is not None:
            factors = factors * self.scaler.value
        # All in the factors: a gradient handed to `backward` makes torch import sympy to check its shape (0.25 s of start-up).
        (torch.add(factors, losses.detach(), alpha=0) * losses).sum().backward()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A state of another precision is no error: a run that changes it (if allowed) starts with a fresh scale."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)
