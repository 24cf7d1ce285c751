"""Optimizers of other packages behind the interface of `fused.py`: those that plugins register, and timm's (`optimizer=timm`).

Such an optimizer creates its state in its first step, so its state is read from it when a checkpoint is made and written into it when
one is loaded. Whether an update is skipped is read on the host, because an unknown state cannot be selected back on the device: on a GPU
this costs a device sync per update.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.config.schema_optimization import TimmOptimizerConfig
from linnaeus.errors import ConfigError
from linnaeus.optim.fused import BaseOptimizer
from linnaeus.optim.param_groups import ParamGroup

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


class ForeignOptimizer(BaseOptimizer):
    """Any `torch.optim.Optimizer`. `state`: parameter name -> its state, `param_groups[i]` -> changed values of a group (step counts)."""

    def __init__(self, kind: str, groups: Sequence[ParamGroup], make: Make) -> None:
        """`make` receives torch parameter groups: dicts with `params` and `weight_decay`."""
        super().__init__(kind, groups)
        self.optimizer = make([{"params": group.tensors, "weight_decay": group.weight_decay} for group in groups])
        if len(self.optimizer.param_groups) != len(self.groups):
            raise ConfigError(f"optimizer.name={kind}: it must keep the parameter groups that it is given")
        self._initial = [dict(group) for group in self.optimizer.param_groups]

    @property
    def state(self) -> dict[str, dict[str, Any]]:  # type: ignore[override]
        """Return the live state; `ConfigError` for values that a checkpoint cannot hold."""
        found = {name: dict(self.optimizer.state.get(p, {})) for name, p in zip(self.names, self.params, strict=True)}
        for i, (group, initial) in enumerate(zip(self.optimizer.param_groups, self._initial, strict=True)):
            found[f"param_groups[{i}]"] = {k: v for k, v in group.items() if k not in ("params", "lr") and initial.get(k, group) is not v}
        for name, kept in found.items():
            for word, value in kept.items():
                if not isinstance(value, (Tensor, bool, int, float, str, type(None))):
                    raise ConfigError(
                        f"optimizer.name={self.kind}: {name} has {word} of type {type(value).__name__}, which cannot be saved"
                    )
        return found

    @state.setter
    def state(self, value: Any) -> None:
        """Ignore the empty state that `BaseOptimizer` sets."""

    def check(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Accept any state of the same parameters: it is created anew from `saved`."""

    def load(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Write a saved state into the optimizer."""
        for name, p in zip(self.names, self.params, strict=True):
            self.optimizer.state[p] = {k: v.to(p.device).clone() if isinstance(v, Tensor) else v for k, v in saved[name].items()}
        for i, group in enumerate(self.optimizer.param_groups):
            group.update(saved[f"param_groups[{i}]"])

    def step(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        assert divisor is None, "gradients are divided before they come here"
        if found_inf.item():
            return
        for group, scale in zip(self.optimizer.param_groups, self.lr_scales, strict=True):
            group["lr"] = lr * scale
        self.optimizer.step()


def timm_optimizer(config: TimmOptimizerConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return a timm optimizer over torch parameter groups. Raise `ConfigError` for an unknown name or option."""
    from timm.optim import create_optimizer_v2, list_optimizers

    known = [str(name) for name in list_optimizers()]
    if config.opt not in known:
        close = difflib.get_close_matches(config.opt, known, 3)
        hint = f"did you mean {', '.join(close)}?" if close else f"timm has {', '.join(known)}"
        raise ConfigError(f"optimizer.opt is {config.opt!r}, which timm does not have; {hint}")
    try:
        return create_optimizer_v2(groups, opt=config.opt, lr=config.lr, weight_decay=config.weight_decay, **config.options)
    except TypeError as error:
        raise ConfigError(f"optimizer.options={config.options}: {config.opt} does not accept them ({error})") from None
