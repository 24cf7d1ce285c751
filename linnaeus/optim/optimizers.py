"""All optimizers of a run behind one object: one step, one learning-rate scale, one `found_inf`, one state by parameter name.

A run may have two (Muon for the hidden matrices, AdamW for the rest); they share `found_inf`, so that one never steps while the
other skips. The loop sets the learning rate before each step (`LRSchedule.at`); a group multiplies it by its `lr_scale`.
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
    """`lr` is the learning rate of a group with `lr_scale` 1, set by the loop; `notes` are lines for the start of a run."""

    def __init__(self, name: str, optimizers: Sequence[BaseOptimizer], notes: Sequence[str] = ()) -> None:
        self.name, self.lr = name, 0.0
        self.optimizers = list(optimizers)
        self.params = [p for member in self.optimizers for p in member.params]
        self._zero = torch.zeros((), device=self.params[0].device)
        self._bounds: list[slice] = []
        start = 0
        for member in self.optimizers:
            self._bounds.append(slice(start, start + len(member.params)))
            start += len(member.params)
        # Above float32 a float32 divisor would cost digits, so the kernels' own division is for float32 and below.
        narrow = all(p.dtype != torch.float64 for p in self.params)
        self._native = [member.native and narrow for member in self.optimizers]
        kinds = [member.kind for member in self.optimizers for _ in member.groups]
        self.notes = [*notes, *describe_groups([group for member in self.optimizers for group in member.groups], kinds)]

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next step; a group multiplies it by its `lr_scale`."""
        self.lr = lr

    def gradients(self) -> list[Tensor | None]:
        """The gradients as they stand, in the order of `params`."""
        return [p.grad for p in self.params]

    def optimizer_of(self, place: int) -> tuple[BaseOptimizer, dict[str, Tensor]]:
        """The optimizer of `params[place]`, and what it keeps for it: the live tensors."""
        for member, where in zip(self.optimizers, self._bounds, strict=True):
            if where.start <= place < where.stop:
                return member, member.state[member.names[place - where.start]]
        raise IndexError(place)

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self, found_inf: Tensor | None = None, divisor: Tensor | None = None, grads: list[Tensor | None] | None = None) -> None:
        """One update with the gradients divided by `divisor`, or none at all where `found_inf` is 1: then parameters, moments
        and step counts keep their bits. Both are float tensors [] on the device; nothing here waits for it. The division is
        done in place: `p.grad` holds the divided gradient afterwards, except after a skipped update."""
        grads = self.gradients() if grads is None else grads
        found_inf = self._zero if found_inf is None else found_inf
        complete = all([grad is not None for grad in grads])
        for member, where, native in zip(self.optimizers, self._bounds, self._native, strict=True):
            own = grads[where]
            if divisor is not None and not native:
                torch._foreach_div_([grad for grad in own if grad is not None], divisor)
            member.step(own, complete, self.lr, found_inf, divisor if native else None)

    def state_dict(self) -> dict[str, Any]:
        """{"optimizer": name, "state": {parameter name: {"exp_avg": tensor, ...}}}; the tensors are the live ones."""
        return {"optimizer": self.name, "state": {name: dict(kept) for m in self.optimizers for name, kept in m.state.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a state in. Raises ConfigError when it belongs to another optimizer or other parameters."""
        if state["optimizer"] != self.name:
            raise ConfigError(f"optimizer.name={self.name}: the saved state is of {state['optimizer']}; resume with that one")
        own = {name: kept for optimizer in self.optimizers for name, kept in optimizer.state.items()}
        _check_names(own, state["state"])
        for optimizer in self.optimizers:
            optimizer.check(state["state"])
        for optimizer in self.optimizers:
            optimizer.load(state["state"])


def _check_names(own: Mapping[str, Mapping[str, Tensor]], saved: Mapping[str, Mapping[str, Tensor]]) -> None:
    for text, names in (("lacks", sorted(set(own) - set(saved))), ("has unknown", sorted(set(saved) - set(own)))):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ConfigError(f"optimizer: the saved state {text} parameters: {', '.join(names[:3])}{more}; resume with the same model")
