"""The optimizers: each updates a list of parameters from a list of gradients, or skips the update if `found_inf` is 1.

The fused optimizers call torch's fused kernels (`torch._fused_adamw_`, `torch._fused_sgd_`) directly on lists made once, not through
`torch.optim`. The arithmetic is the same to the bit (tested). It saves the import of `torch._dynamo` (about 1 s of start-up, 900
modules) and the bookkeeping per step (0.60 of a plain loop on a tiny MLP, 0.71 with `torch.optim`). The kernels read `found_inf` on the
device; if it is 1 they do not change parameters or moments. They divide the gradients by `grad_scale`, which combines the loss scale
and the clipping in one pass. `TorchOptimizer` gives any `torch.optim` optimizer the same behaviour: Muon, and `optimizer.fused=false`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.optim.param_groups import ParamGroup

State = dict[str, dict[str, Tensor]]  # parameter name -> name in the optimizer state -> tensor


class BaseOptimizer:
    """Base class: parameters in the order of their groups, the slice of each group, and state by parameter name."""

    native = False  # True: the kernel divides by `divisor` itself
    beta2: float | None = None  # decay of the second moment; None if the optimizer does not have one

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
        """Make one update at learning rate `lr`, or none if `found_inf`, float [] on the device, is 1.

        `grads` has an entry per parameter, None if it has no gradient; `complete`: none of them is None. `divisor` is None unless
        `native`: other optimizers receive gradients that are divided already."""
        raise NotImplementedError

    def check(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise `ConfigError` if the state of a parameter in `saved` has other tensors or other shapes."""
        for name, tensors in self.state.items():
            if set(tensors) != set(saved[name]):
                raise ConfigError(
                    f"optimizer: the saved state of {name} has {sorted(saved[name])}, not {sorted(tensors)}; resume with the same optimizer"
                )
            for key, tensor in tensors.items():
                if tensor.shape != saved[name][key].shape:
                    shapes = f"{tuple(saved[name][key].shape)}, not {tuple(tensor.shape)}"
                    raise ConfigError(f"optimizer: the saved {key} of {name} has shape {shapes}; resume with the same model")

    def load(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Copy the state of the parameters of this optimizer from `saved`, which may contain others."""
        for name, tensors in self.state.items():
            for key, tensor in tensors.items():
                tensor.copy_(saved[name][key])


class FusedAdamW(BaseOptimizer):
    """AdamW (Loshchilov and Hutter 2019), one kernel call per group. Counts steps per parameter, in one flat tensor on the device."""

    native = True

    def __init__(self, groups: Sequence[ParamGroup], betas: tuple[float, float], eps: float, lr_scale: float = 1.0) -> None:
        super().__init__("adamw", groups, lr_scale)
        self.betas, self.eps, self.beta2 = betas, eps, betas[1]
        self.steps = torch.zeros(len(self.params), device=self.params[0].device)
        self.step_views = list(self.steps.unbind())
        self.exp_avgs = [torch.zeros_like(p) for p in self.params]
        self.exp_avg_sqs = [torch.zeros_like(p) for p in self.params]
        self.step_increments: dict[tuple[bool, ...], Tensor] = {}
        for name, step, m, v in zip(self.names, self.step_views, self.exp_avgs, self.exp_avg_sqs, strict=True):
            self.state[name] = {"step": step, "exp_avg": m, "exp_avg_sq": v}
        self.lists = [(self.params[s], s, self.exp_avgs[s], self.exp_avg_sqs[s], self.step_views[s]) for s in self.slices]

    def step(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        increments: Any = 1 if complete else self._step_increments(grads)
        self.steps.add_(increments)
        for (params, part, exp_avgs, exp_avg_sqs, steps), scale, group in zip(self.lists, self.lr_scales, self.groups, strict=True):
            lists = (params, grads[part], exp_avgs, exp_avg_sqs, steps)
            params, group_grads, exp_avgs, exp_avg_sqs, steps = lists if complete else _with_gradient(lists, lists[1])
            torch._fused_adamw_(
                params,
                group_grads,
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
        self.steps.sub_(found_inf if complete else found_inf * increments)

    def _step_increments(self, grads: list[Tensor | None]) -> Tensor:
        """Return 1 for each parameter with a gradient, else 0. Cached by pattern: one copy to the device at the first use of each."""
        pattern = tuple(grad is not None for grad in grads)
        if pattern not in self.step_increments:
            self.step_increments[pattern] = torch.tensor(pattern, dtype=self.steps.dtype).to(self.steps.device)
        return self.step_increments[pattern]


class FusedSGD(BaseOptimizer):
    """SGD with momentum as `torch.optim.SGD` defines it (weight decay is L2, added to the gradient), one kernel call per group."""

    native = True

    def __init__(self, groups: Sequence[ParamGroup], momentum: float, nesterov: bool) -> None:
        super().__init__("sgd", groups)
        self.momentum, self.nesterov = momentum, nesterov
        # Buffers start at 0, so the first one is 0 * momentum + gradient: equal to torch's first step, without a special case.
        self.buffers = [torch.zeros_like(p) for p in self.params] if momentum else []
        self.state = {name: {} for name in self.names}
        for name, buffer in zip(self.names, self.buffers, strict=False):
            self.state[name]["momentum_buffer"] = buffer

    def step(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        for part, scale, group in zip(self.slices, self.lr_scales, self.groups, strict=True):
            lists = (self.params[part], grads[part], self.buffers[part])
            params, group_grads, buffers = lists if complete else _with_gradient(lists, lists[1])
            torch._fused_sgd_(
                params,
                group_grads,
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
    """Wrapper of a `torch.optim` optimizer that does not support `found_inf`.

    On CPU it reads `found_inf` before the step, which does not stall there. On other devices it copies parameters and state, makes the
    step, and restores the copies on the device if `found_inf` is 1."""

    def __init__(
        self,
        kind: str,
        groups: Sequence[ParamGroup],
        make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        initial_state: Callable[[Tensor], dict[str, Tensor]],
        lr_scale: float = 1.0,
    ) -> None:
        """`make` constructs the optimizer from torch parameter groups; `initial_state` returns the state of a parameter at step 0."""
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
        """Make the step, then restore parameters and state on the device if `found_inf` is 1."""
        tensors = self.params + [tensor for state in self.state.values() for tensor in state.values()]
        before = [tensor.detach().clone() for tensor in tensors]
        self.optimizer.step()
        skip = found_inf.bool()
        for tensor, old in zip(tensors, before, strict=True):
            # A selection, not a blend: NaN x 0 is NaN.
            tensor.copy_(torch.where(skip, old, tensor))


def _with_gradient(lists: tuple[list[Any], ...], grads: list[Any]) -> tuple[list[Any], ...]:
    """Return each list reduced to the indices at which `grads` is not None; an empty list stays empty."""
    indices = [i for i, grad in enumerate(grads) if grad is not None]
    return tuple([values[i] for i in indices] if values else [] for values in lists)
