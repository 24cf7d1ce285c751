"""Wrap optimizers of other packages in the interface of `BaseOptimizer`.

`TorchOptimizer` is for optimizers of `torch.optim`: Muon, and any with `optimizer.fused=false`. `ExternalOptimizer` is for optimizers of
timm (`optimizer=timm`) and of plugins. An external optimizer creates its state in its first step, so the state is read from the optimizer
for a checkpoint and written into it on a resume. The host reads `found_inf`, because a state of unknown structure cannot be restored on the
device: on a GPU this costs a device sync per update."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.config.contracts import check_arguments, class_name, described
from linnaeus.config.schema_optimization import TimmOptimizerConfig
from linnaeus.errors import ConfigError, one_line
from linnaeus.optim.optimizers import BaseOptimizer
from linnaeus.optim.param_groups import ParamGroup

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


class TorchOptimizer(BaseOptimizer):
    """Wrapper of a `torch.optim` optimizer. Such an optimizer does not itself skip an update if `found_inf` is 1, so the wrapper does.

    On the CPU the wrapper reads `found_inf` before the step, which does not stall there. On other devices it copies parameters and state,
    makes the step, and restores the copies on the device if `found_inf` is 1."""

    def __init__(
        self,
        kind: str,
        groups: Sequence[ParamGroup],
        make: Make,
        initial_state: Callable[[Tensor], dict[str, Tensor]],
        lr_scale: float = 1.0,
    ) -> None:
        """`make`: function that constructs the optimizer from torch's parameter groups. `initial_state`: function that returns the state of
        a parameter before the first step."""
        super().__init__(kind, groups, lr_scale)
        self.optimizer = make([{"params": group.tensors, "weight_decay": group.weight_decay} for group in groups])
        for name, parameter in zip(self.names, self.params, strict=True):
            self.state[name] = initial_state(parameter)
            self.optimizer.state[parameter] = self.state[name]

    def step(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        assert divisor is None, "divide the gradients before the call"
        for torch_group, scale in zip(self.optimizer.param_groups, self.lr_scales, strict=True):
            torch_group["lr"] = lr * scale
        if found_inf.device.type == "cpu":
            if not found_inf.item():
                self.optimizer.step()
            return
        self.step_and_select(found_inf)

    def step_and_select(self, found_inf: Tensor) -> None:
        """Make the step, then restore the previous parameters and state on the device if `found_inf` is 1."""
        tensors = self.params + [tensor for state in self.state.values() for tensor in state.values()]
        before = [tensor.detach().clone() for tensor in tensors]
        self.optimizer.step()
        skip = found_inf.bool()
        for tensor, old in zip(tensors, before, strict=True):
            # A selection, not a blend: NaN x 0 is NaN.
            tensor.copy_(torch.where(skip, old, tensor))


class ExternalOptimizer(BaseOptimizer):
    """Wrapper of any `torch.optim.Optimizer`, whose state has an unknown structure.

    `state`: an entry for each parameter name, and for group number i an entry `param_groups[i]` with the values that the optimizer has
    changed in this group (such as step counts)."""

    def __init__(self, kind: str, groups: Sequence[ParamGroup], make: Make) -> None:
        """`make`: function that constructs the optimizer from torch parameter groups: dicts with `params` and `weight_decay`."""
        super().__init__(kind, groups)
        self.optimizer = make([{"params": group.tensors, "weight_decay": group.weight_decay} for group in groups])
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise ConfigError(f"optimizer.name={kind}: the builder returns {described(self.optimizer)}, not a torch.optim.Optimizer")
        if inspect.unwrap(type(self.optimizer).step) is inspect.unwrap(torch.optim.Optimizer.step):
            raise ConfigError(f"optimizer.name={kind}: {class_name(type(self.optimizer))} does not define step(closure=None)")
        check_arguments(self.optimizer.step, (), f"optimizer.name={kind}: {class_name(type(self.optimizer))}.step")
        if len(self.optimizer.param_groups) != len(self.groups):
            raise ConfigError(f"optimizer.name={kind}: the optimizer must not change the number of parameter groups")
        self._initial = [dict(group) for group in self.optimizer.param_groups]
        self._checked = False  # True after the first step, which has created the state

    @property
    def state(self) -> dict[str, dict[str, Any]]:  # type: ignore[override]
        """Return the state of the optimizer, not copied. Raise `ConfigError` if a value cannot be saved in a checkpoint."""
        found = {name: dict(self.optimizer.state.get(p, {})) for name, p in zip(self.names, self.params, strict=True)}
        for i, (group, initial) in enumerate(zip(self.optimizer.param_groups, self._initial, strict=True)):
            found[f"param_groups[{i}]"] = {k: v for k, v in group.items() if k not in ("params", "lr") and initial.get(k, group) is not v}
        for name, values in found.items():
            for key, value in values.items():
                if not isinstance(value, (Tensor, bool, int, float, str, type(None))):
                    raise ConfigError(f"optimizer.name={self.kind}: {name} has {key} of type {type(value).__name__}, which cannot be saved")
        return found

    @state.setter
    def state(self, value: Any) -> None:
        """Ignore the empty state that `BaseOptimizer.__init__` assigns."""

    def check(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Accept every saved state of the same parameters, because `load` replaces the state."""

    def conversion(self, saved: Mapping[str, Mapping[str, Any]]) -> str:
        """Return "", because `load` converts nothing."""
        return ""

    def load(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the state of the optimizer by `saved`."""
        for name, p in zip(self.names, self.params, strict=True):
            self.optimizer.state[p] = {k: v.to(p.device).clone() if isinstance(v, Tensor) else v for k, v in saved[name].items()}
        for i, group in enumerate(self.optimizer.param_groups):
            group.update(saved[f"param_groups[{i}]"])

    def step(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        assert divisor is None, "divide the gradients before the call"
        if found_inf.item():
            return
        for group, scale in zip(self.optimizer.param_groups, self.lr_scales, strict=True):
            group["lr"] = lr * scale
        self.optimizer.step()
        if not self._checked:
            self._checked = bool(self.state)  # `state` raises an error if the state cannot be saved; hours of training would be lost later


def timm_optimizer(config: TimmOptimizerConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return the timm optimizer `config.opt` for torch's parameter groups.

    Raise `ConfigError` for an unknown name or option, a value that the optimizer does not accept, a device that it does not support, and an
    optimizer that needs second derivatives."""
    from timm.optim import create_optimizer_v2, get_optimizer_info, list_optimizers

    known = [str(name) for name in list_optimizers()]
    if config.opt not in known:
        close = difflib.get_close_matches(config.opt, known, 3)
        hint = f"did you mean {', '.join(close)}?" if close else f"timm has {', '.join(known)}"
        raise ConfigError(f"optimizer.opt is {config.opt!r}, which timm does not have; {hint}")
    if get_optimizer_info(config.opt).second_order:
        raise ConfigError(f"optimizer.opt={config.opt} needs second derivatives, which the program does not compute; use another optimizer")
    try:
        return create_optimizer_v2(groups, opt=config.opt, lr=config.lr, weight_decay=config.weight_decay, **config.options)
    except TypeError as error:
        raise ConfigError(f"optimizer.options={config.options}: {config.opt} does not accept them ({error})") from None
    except (ValueError, AssertionError) as error:  # of a value; of a missing GPU or library
        raise ConfigError(f"optimizer.opt={config.opt} optimizer.options={config.options}: {one_line(error)}") from None
