"""Define `Optimizers`, which combines all optimizers of a run in one object, and the fused AdamW and SGD.

The fused optimizers call torch's fused kernels (`torch._fused_adamw_`, `torch._fused_sgd_`) directly on lists made once, not through
`torch.optim`. The arithmetic is the same to the bit (tested). This saves the import of `torch._dynamo` (about 1 s of start-up, 900 modules)
and the bookkeeping per step (0.60 of the time of a plain loop on a tiny MLP, 0.71 with `torch.optim`). The kernels read `found_inf` on the
device; if it is 1 they do not change parameters or moments. They divide the gradients by `grad_scale`, which combines the loss scale and
the clipping in one pass."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.optim.param_groups import ParamGroup, describe_groups

State = dict[str, dict[str, Tensor]]  # parameter name -> name in the optimizer state -> tensor


class BaseOptimizer(ABC):
    """Base class of the optimizers in this package: parameters in the order of their groups, and the optimizer state by parameter name.

    `slices`: for each group the range of indices of its parameters in `params`."""

    native = False  # True: the kernel divides by `divisor` itself
    number = 0  # of the update that the next `step` makes, counted from 1; an optimizer that rounds at random draws by it
    beta2: float | None = None  # decay of the second moment; None if the optimizer does not have one

    def __init__(self, kind: str, groups: Sequence[ParamGroup], lr_scale: float = 1.0) -> None:
        self.kind, self.groups = kind, list(groups)
        self.params = [tensor for group in groups for tensor in group.tensors]
        self.names = [name for group in groups for name in group.names]
        self.lr_scales = [lr_scale * group.lr_scale for group in groups]
        self.slices = _slices(len(group.names) for group in groups)
        self.state: State = {}

    @abstractmethod
    def step(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        """Make one update at learning rate `lr`. Make none if `found_inf`, float [] on the device, is 1.

        `grads`: an entry for each parameter, None for a parameter without a gradient. `complete`: True if no entry is None. `divisor`:
        number, float [] on the device, by which this method must divide the gradients; always None if `native` is False, because the
        gradients are then already divided."""

    def check(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise `ConfigError` if `saved`, the saved state by parameter name, has other tensors or shapes than the state of this
        optimizer."""
        for name, tensors in self.state.items():
            if set(tensors) != set(saved[name]):
                raise ConfigError(
                    f"optimizer: the saved state of {name} has {sorted(saved[name])}, not {sorted(tensors)}; use the same one"
                )
            for key, tensor in tensors.items():
                if tensor.shape != saved[name][key].shape:
                    shapes = f"{tuple(saved[name][key].shape)}, not {tuple(tensor.shape)}"
                    raise ConfigError(f"optimizer: the saved {key} of {name} has shape {shapes}; resume with the same model")

    def load(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Copy the state of this optimizer's parameters from `saved`, which may also contain the state of other parameters."""
        for name, tensors in self.state.items():
            for key, tensor in tensors.items():
                tensor.copy_(saved[name][key])

    def conversion(self, saved: Mapping[str, Mapping[str, Any]]) -> str:
        """Return the change of precision that `load` would make in the moments, such as "float32 to bfloat16"; "" for none."""
        pairs = [(saved[name][key].dtype, tensor.dtype) for name, tensors in self.state.items() for key, tensor in tensors.items()]
        return next((f"{old} to {new}".replace("torch.", "") for old, new in pairs if old != new), "")


class FusedAdamW(BaseOptimizer):
    """AdamW (Loshchilov and Hutter 2019), with one kernel call per parameter group.

    The number of steps of each parameter is an entry of one flat tensor on the device."""

    native = True

    def __init__(self, groups: Sequence[ParamGroup], betas: tuple[float, float], eps: float, lr_scale: float = 1.0) -> None:
        super().__init__("adamw", groups, lr_scale)
        self.betas, self.eps, self.beta2 = betas, eps, betas[1]
        self.steps = torch.zeros(len(self.params), device=self.params[0].device)
        self.step_views = list(self.steps.unbind())
        self.exp_avgs, self.exp_avg_sqs = self._new_moments()
        self.step_increments: dict[tuple[bool, ...], Tensor] = {}
        for name, step, m, v in zip(self.names, self.step_views, self.exp_avgs, self.exp_avg_sqs, strict=True):
            self.state[name] = {"step": step, "exp_avg": m, "exp_avg_sq": v}
        self.lists = [(self.params[s], s, self.exp_avgs[s], self.exp_avg_sqs[s], self.step_views[s]) for s in self.slices]

    def _new_moments(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the first and the second moments of `params`, zeros in their shapes."""
        return [torch.zeros_like(p) for p in self.params], [torch.zeros_like(p) for p in self.params]

    def step(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        increments: Any = 1 if complete else self._step_increments(grads)
        self.steps.add_(increments)
        self._move(grads, complete, lr, found_inf, divisor)
        self.steps.sub_(found_inf if complete else found_inf * increments)

    def _move(self, grads: list[Any], complete: bool, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        """Update moments and parameters. The arguments are those of `step`."""
        for number, (params, part, exp_avgs, exp_avg_sqs, steps) in enumerate(self.lists):
            lists = (params, grads[part], exp_avgs, exp_avg_sqs, steps)
            self._call_kernel(lists if complete else with_gradient(lists, lists[1]), number, lr, found_inf, divisor)

    def _call_kernel(self, lists: tuple[list[Any], ...], number: int, lr: float, found_inf: Tensor, divisor: Tensor | None) -> None:
        """Call the kernel for parameters of group `number`. lists: parameters, gradients, first and second moments, numbers of steps."""
        params, grads, exp_avgs, exp_avg_sqs, steps = lists
        torch._fused_adamw_(
            params,
            grads,
            exp_avgs,
            exp_avg_sqs,
            [],
            steps,
            lr=lr * self.lr_scales[number],
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.groups[number].weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
            found_inf=found_inf,
        )

    def _step_increments(self, grads: list[Tensor | None]) -> Tensor:
        """Return a tensor on the device with 1 for each parameter with a gradient and 0 for each other parameter.

        The tensor is cached for each pattern of missing gradients."""
        pattern = tuple(grad is not None for grad in grads)
        if pattern not in self.step_increments:
            self.step_increments[pattern] = torch.tensor(pattern, dtype=self.steps.dtype).to(self.steps.device)
        return self.step_increments[pattern]


class FusedSGD(BaseOptimizer):
    """SGD with momentum as in `torch.optim.SGD` (weight decay is L2, added to the gradient), with one kernel call per parameter group."""

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
            params, group_grads, buffers = lists if complete else with_gradient(lists, lists[1])
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


class Optimizers:
    """All optimizers of a run as one object, with one step, one learning rate, one `found_inf`, and one state by parameter name.

    A run may have two optimizers (Muon for hidden matrices, AdamW for the rest). They share `found_inf`, so either both skip an update or
    neither does. `lr`: learning rate of a group with `lr_scale` 1; the training loop sets it before each step (`LRSchedule.at`). `number`:
    number of the update that the next step makes, counted from 1; the `Update` sets it. `converted`: the change of precision of the moments
    in the last `load_state_dict`; "" for none. `notes`: lines to log at the start of a run."""

    def __init__(self, name: str, optimizers: Sequence[BaseOptimizer], notes: Sequence[str] = ()) -> None:
        self.name, self.lr, self.number, self.converted = name, 0.0, 0, ""
        self.optimizers = list(optimizers)
        self.params = [p for optimizer in self.optimizers for p in optimizer.params]
        self._zero = torch.zeros((), device=self.params[0].device)
        self._slices = _slices(len(optimizer.params) for optimizer in self.optimizers)
        # The kernels divide by a float32 number, which would lose digits in float64.
        narrow = all(p.dtype != torch.float64 for p in self.params)
        self._native = [optimizer.native and narrow for optimizer in self.optimizers]
        kinds = [optimizer.kind for optimizer in self.optimizers for _ in optimizer.groups]
        self.notes = [*notes, *describe_groups([group for optimizer in self.optimizers for group in optimizer.groups], kinds)]

    def gradients(self) -> list[Tensor | None]:
        """Return the gradients in the order of `params`; None for a parameter without a gradient."""
        return [p.grad for p in self.params]

    def optimizer_of(self, index: int) -> tuple[BaseOptimizer, dict[str, Tensor]]:
        """Return the optimizer that updates `params[index]`, and the state of this optimizer for that parameter, not copied.

        Raise `IndexError` if no optimizer updates the parameter."""
        for optimizer, part in zip(self.optimizers, self._slices, strict=True):
            if part.start <= index < part.stop:
                return optimizer, optimizer.state[optimizer.names[index - part.start]]
        raise IndexError(index)

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    def step(self, found_inf: Tensor | None = None, divisor: Tensor | None = None, grads: list[Tensor | None] | None = None) -> None:
        """Make one update with the gradients divided by `divisor` (None: 1), or skip the update if `found_inf` is 1. Call this under
        `torch.no_grad()`.

        A skipped update leaves parameters, moments and step counts unchanged to the bit. `found_inf`, `divisor`: float tensors [] on the
        device; the host does not wait for the device. The division is in place: afterwards `p.grad` is the divided gradient, except after a
        skipped update. `grads`: the result of `gradients()`, if the caller has it already."""
        grads = self.gradients() if grads is None else grads
        found_inf = self._zero if found_inf is None else found_inf
        complete = all([grad is not None for grad in grads])
        for optimizer, part, native in zip(self.optimizers, self._slices, self._native, strict=True):
            own_grads = grads[part]
            if divisor is not None and not native:
                torch._foreach_div_([grad for grad in own_grads if grad is not None], divisor)
            optimizer.number = self.number
            optimizer.step(own_grads, complete, self.lr, found_inf, divisor if native else None)

    def state_dict(self) -> dict[str, Any]:
        """Return {"optimizer": name, "state": {parameter name: {"exp_avg": tensor, ...}}}. The tensors are not copied."""
        return {"optimizer": self.name, "state": {name: dict(state) for o in self.optimizers for name, state in o.state.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy the saved `state` into the optimizers. Raise `ConfigError` if `state` belongs to another optimizer or to other
        parameters."""
        if state["optimizer"] != self.name:
            raise ConfigError(f"optimizer.name={self.name}: the saved state is of {state['optimizer']}; resume with that one")
        own = {name for optimizer in self.optimizers for name in optimizer.state}
        _check_names(own, set(state["state"]))
        for optimizer in self.optimizers:
            optimizer.check(state["state"])
        for optimizer in self.optimizers:
            self.converted = self.converted or optimizer.conversion(state["state"])
            optimizer.load(state["state"])


def _slices(sizes: Iterable[int]) -> list[slice]:
    """Return the slices that cut a sequence into consecutive parts of these sizes."""
    return [slice(start, end) for start, end in pairwise([0, *accumulate(sizes)])]


def with_gradient(lists: tuple[list[Any], ...], grads: list[Any]) -> tuple[list[Any], ...]:
    """Return a copy of each of `lists` with only the indices at which `grads` is not None. An empty list stays empty."""
    indices = [i for i, grad in enumerate(grads) if grad is not None]
    return tuple([values[i] for i in indices] if values else [] for values in lists)


def _check_names(own: set[str], saved: set[str]) -> None:
    """Raise `ConfigError` if `saved`, the parameter names in a saved state, differ from `own`, the parameter names of the model."""
    for text, names in (("lacks", sorted(own - saved)), ("has unknown", sorted(saved - own))):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ConfigError(f"optimizer: the saved state {text} parameters: {', '.join(names[:3])}{more}; resume with the same model")
