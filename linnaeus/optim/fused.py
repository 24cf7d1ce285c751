"""The optimizers proper: each takes lists of parameters and gradients and makes one update, or none if `found_inf` is 1.

The fused ones call torch's fused kernels (`torch._fused_adamw_`, `torch._fused_sgd_`) on standing lists instead of going through
`torch.optim`: the same arithmetic to the bit (tested), no import of `torch._dynamo` (about 1 s of start-up, 900 modules) and no
bookkeeping per step (0.60 of a plain loop on a tiny MLP against 0.71 with `torch.optim`). The kernels read `found_inf` on the
device and then leave parameters and moments alone, and divide the gradients by `grad_scale`, which carries the loss scale and
the clipping in one pass. `TorchOptimizer` gives any `torch.optim` optimizer the same behaviour: Muon, and `optimizer.fused=false`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.optim.param_groups import ParamGroup

State = dict[str, dict[str, Tensor]]  # parameter name -> what is kept for it


class BaseOptimizer:
    """State by parameter name, and lists cut at the groups' borders. `native`: divides by `divisor` and heeds `found_inf` itself."""

    native = False
    beta2: float | None = None  # decay of the second moment, where one is kept

    def __init__(self, kind: str, groups: Sequence[ParamGroup], lr_scale: float = 1.0) -> None:
        self.kind, self.groups = kind, list(groups)
        self.params = [tensor for group in groups for tensor in group.tensors]
        self.names = [name for group in groups for name in group.names]
        self.lr_scales = [lr_scale * group.lr_scale for group in groups]
        bounds = [0]
        for group in groups:
            bounds.append(bounds[-1] + len(group.names))
        self.slices = [slice(a, b) for a, b in pairwise(bounds)]
        self.state: State = {}

    def step(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        raise NotImplementedError

    def check(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise `ConfigError` if the state in `saved` is of another optimizer or of parameters of another shape."""
        for name, kept in self.state.items():
            if set(kept) != set(saved[name]):
                raise ConfigError(
                    f"optimizer: the saved state of {name} holds {sorted(saved[name])}, not {sorted(kept)}; resume with the same optimizer"
                )
            for word, tensor in kept.items():
                if tensor.shape != saved[name][word].shape:
                    shapes = f"{tuple(saved[name][word].shape)}, not {tuple(tensor.shape)}"
                    raise ConfigError(f"optimizer: the saved {word} of {name} has shape {shapes}; resume with the same model")

    def load(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Copy the state of this optimizer's parameters out of `saved`."""
        for name, kept in self.state.items():
            for word, tensor in kept.items():
                tensor.copy_(saved[name][word])


class FusedAdamW(BaseOptimizer):
    """AdamW (Loshchilov and Hutter 2019), one kernel per group. Steps are counted per parameter, on the device, in one flat tensor."""

    native = True

    def __init__(self, groups: Sequence[ParamGroup], betas: tuple[float, float], eps: float, lr_scale: float = 1.0) -> None:
        super().__init__("adamw", groups, lr_scale)
        self.betas, self.eps, self.beta2 = betas, eps, betas[1]
        self.steps = torch.zeros(len(self.params), device=self.params[0].device)
        self.step_views = list(self.steps.unbind())
        self.exp_avgs = [torch.zeros_like(p) for p in self.params]
        self.exp_avg_sqs = [torch.zeros_like(p) for p in self.params]
        self.present: dict[tuple[bool, ...], Tensor] = {}
        for name, step, m, v in zip(self.names, self.step_views, self.exp_avgs, self.exp_avg_sqs, strict=True):
            self.state[name] = {"step": step, "exp_avg": m, "exp_avg_sq": v}
        self.lists = [(self.params[s], s, self.exp_avgs[s], self.exp_avg_sqs[s], self.step_views[s]) for s in self.slices]

    def step(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        counted: Any = 1 if complete else self._counted(grads)
        self.steps.add_(counted)
        for (params, where, exp_avgs, exp_avg_sqs, steps), scale, group in zip(self.lists, self.lr_scales, self.groups, strict=True):
            lists = (params, grads[where], exp_avgs, exp_avg_sqs, steps)
            params, own, exp_avgs, exp_avg_sqs, steps = lists if complete else _where_present(lists, lists[1])
            torch._fused_adamw_(
                params,
                own,
                exp_avgs,
                exp_avg_sqs,
                [],
                steps,
                lr=lr * scale,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=group.weight_decay,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
                grad_scale=divisor,
                found_inf=found_inf,
            )
        self.steps.sub_(found_inf if complete else found_inf * counted)

    def _counted(self, grads: list[Tensor | None]) -> Tensor:
        """1 where there is a gradient, kept per pattern: a copy to the device at its first use only."""
        pattern = tuple(grad is not None for grad in grads)
        if pattern not in self.present:
            self.present[pattern] = torch.tensor(pattern, dtype=self.steps.dtype).to(self.steps.device)
        return self.present[pattern]


class FusedSGD(BaseOptimizer):
    """SGD with momentum as `torch.optim.SGD` defines it (weight decay is L2, added to the gradient), one kernel per group."""

    native = True

    def __init__(self, groups: Sequence[ParamGroup], momentum: float, nesterov: bool) -> None:
        super().__init__("sgd", groups)
        self.momentum, self.nesterov = momentum, nesterov
        # From zero the first buffer is 0 * momentum + gradient: torch's own first step, without a special case.
        self.buffers = [torch.zeros_like(p) for p in self.params] if momentum else []
        self.state = {name: {} for name in self.names}
        for name, buffer in zip(self.names, self.buffers, strict=False):
            self.state[name]["momentum_buffer"] = buffer

    def step(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        for where, scale, group in zip(self.slices, self.lr_scales, self.groups, strict=True):
            lists = (self.params[where], grads[where], self.buffers[where])
            params, own, buffers = lists if complete else _where_present(lists, lists[1])
            torch._fused_sgd_(
                params,
                own,
                buffers,
                weight_decay=group.weight_decay,
                momentum=self.momentum,
                lr=lr * scale,
                dampening=0.0,
                nesterov=self.nesterov,
                maximize=False,
                is_first_step=False,
                grad_scale=divisor,
                found_inf=found_inf,
            )


class TorchOptimizer(BaseOptimizer):
    """A `torch.optim` optimizer that knows nothing of `found_inf`: on CPU it is asked first, which is no stall there; elsewhere
    the state is copied, the step taken, and the copy selected back on the device."""

    def __init__(
        self,
        kind: str,
        groups: Sequence[ParamGroup],
        make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        initial: Callable[[Tensor], dict[str, Tensor]],
        lr_scale: float = 1.0,
    ) -> None:
        super().__init__(kind, groups, lr_scale)
        self.optimizer = make([{"params": group.tensors, "weight_decay": group.weight_decay} for group in groups])
        for name, parameter in zip(self.names, self.params, strict=True):
            self.state[name] = initial(parameter)
            self.optimizer.state[parameter] = self.state[name]

    def step(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        assert divisor is None, "gradients are divided before they come here"
        for torch_group, scale in zip(self.optimizer.param_groups, self.lr_scales, strict=True):
            torch_group["lr"] = lr * scale
        if found_inf.device.type == "cpu":
            if not found_inf.item():
                self.optimizer.step()
            return
        self.step_and_select(found_inf)

    def step_and_select(self, found_inf: Tensor) -> None:
        tensors = self.params + [tensor for kept in self.state.values() for tensor in kept.values()]
        before = [tensor.detach().clone() for tensor in tensors]
        self.optimizer.step()
        skip = found_inf.bool()
        for tensor, old in zip(tensors, before, strict=True):
            # Not a blend: NaN x 0 is NaN.
            tensor.copy_(torch.where(skip, old, tensor))


def _where_present(lists: tuple[list[Any], ...], grads: list[Any]) -> tuple[list[Any], ...]:
    """Each list cut down to the places where there is a gradient; an empty list stays one."""
    kept = [i for i, grad in enumerate(grads) if grad is not None]
    return tuple([values[i] for i in kept] if values else [] for values in lists)
