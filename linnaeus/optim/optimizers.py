"""All optimizers of a run as one object, with one step, one learning rate, one `found_inf` and one state by parameter name.

A run may have two optimizers (Muon for hidden matrices, AdamW for the rest). They share `found_inf`, so both skip an update or neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.optim.fused import BaseOptimizer
from linnaeus.optim.param_groups import describe_groups


class Optimizers:
    """`lr`: learning rate of a group with `lr_scale` 1, set by the loop (`LRSchedule.at`). `notes`: lines to log at the start of a run."""

    def __init__(self, name: str, optimizers: Sequence[BaseOptimizer], notes: Sequence[str] = ()) -> None:
        self.name, self.lr = name, 0.0
        self.optimizers = list(optimizers)
        self.params = [p for optimizer in self.optimizers for p in optimizer.params]
        self._zero = torch.zeros((), device=self.params[0].device)
        self._slices: list[slice] = []
        start = 0
        for optimizer in self.optimizers:
            self._slices.append(slice(start, start + len(optimizer.params)))
            start += len(optimizer.params)
        # The kernels divide by a float32 number, which would lose digits in float64.
        narrow = all(p.dtype != torch.float64 for p in self.params)
        self._native = [optimizer.native and narrow for optimizer in self.optimizers]
        kinds = [optimizer.kind for optimizer in self.optimizers for _ in optimizer.groups]
        self.notes = [*notes, *describe_groups([group for optimizer in self.optimizers for group in optimizer.groups], kinds)]

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next step. Each group multiplies it by its `lr_scale`."""
        self.lr = lr

    def gradients(self) -> list[Tensor | None]:
        """Return the gradients in the order of `params`; None where a parameter has no gradient."""
        return [p.grad for p in self.params]

    def optimizer_of(self, index: int) -> tuple[BaseOptimizer, dict[str, Tensor]]:
        """Return the optimizer of `params[index]` and its state for that parameter, not copied."""
        for optimizer, part in zip(self.optimizers, self._slices, strict=True):
            if part.start <= index < part.stop:
                return optimizer, optimizer.state[optimizer.names[index - part.start]]
        raise IndexError(index)

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self, found_inf: Tensor | None = None, divisor: Tensor | None = None, grads: list[Tensor | None] | None = None) -> None:
        """Make one update with the gradients divided by `divisor`, or skip it if `found_inf` is 1.

        A skipped update leaves parameters, moments and step counts unchanged to the bit. `found_inf` and `divisor` are float tensors []
        on the device; nothing waits for the device. The division is in place: afterwards `p.grad` is the divided gradient, except after
        a skipped update. `grads` is `gradients()`, if the caller has it already."""
        grads = self.gradients() if grads is None else grads
        found_inf = self._zero if found_inf is None else found_inf
        complete = all([grad is not None for grad in grads])
        for optimizer, part, native in zip(self.optimizers, self._slices, self._native, strict=True):
            own_grads = grads[part]
            if divisor is not None and not native:
                torch._foreach_div_([grad for grad in own_grads if grad is not None], divisor)
            optimizer.step(own_grads, complete, self.lr, found_inf, divisor if native else None)

    def state_dict(self) -> dict[str, Any]:
        """Return {"optimizer": name, "state": {parameter name: {"exp_avg": tensor, ...}}}. The tensors are not copied."""
        return {"optimizer": self.name, "state": {name: dict(state) for o in self.optimizers for name, state in o.state.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a saved state. Raise `ConfigError` if it is of another optimizer or of other parameters."""
        if state["optimizer"] != self.name:
            raise ConfigError(f"optimizer.name={self.name}: the saved state is of {state['optimizer']}; resume with that one")
        own = {name for optimizer in self.optimizers for name in optimizer.state}
        _check_names(own, set(state["state"]))
        for optimizer in self.optimizers:
            optimizer.check(state["state"])
        for optimizer in self.optimizers:
            optimizer.load(state["state"])


def _check_names(own: set[str], saved: set[str]) -> None:
    """Raise `ConfigError` if the saved state is not of the same parameters."""
    for text, names in (("lacks", sorted(own - saved)), ("has unknown", sorted(saved - own))):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ConfigError(f"optimizer: the saved state {text} parameters: {', '.join(names[:3])}{more}; resume with the same model")
