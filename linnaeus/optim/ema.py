"""Compute the exponential moving average (EMA) of a model's weights. A skipped optimizer update does not change the average.

The decay at the n-th applied update is min(decay, (1 + n) / (10 + n)), so that early averages discard the initial weights quickly. n is
counted on the device because a skipped update is detected there. One fused kernel does the averaging: SGD with weight decay -1 and learning
rate -w moves the average e to e + w (p - e) for a parameter p, and skips if `found_inf` is 1, in one pass without a copy."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.errors import ConfigError


class EMA:
    """Averages of the tensors in `model.state_dict()`. Tensors that are not floating-point, such as batch counts, are copied instead,
    and so are tensors with infinities at the start, such as an attention mask: the average of two infinities would be NaN.

    Create this when the model has its final device, dtype and layout. The model must not replace its tensors afterwards."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        tensors = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if isinstance(tensor, Tensor)}
        sources = list({id(tensor): tensor for tensor in tensors.values()}.values())
        averages = {id(tensor): tensor.detach().clone() for tensor in sources}
        self._averages = {name: averages[id(tensor)] for name, tensor in tensors.items()}
        averageable = [tensor.is_floating_point() and bool(tensor.isfinite().all()) for tensor in sources]
        floating = [tensor for tensor, possible in zip(sources, averageable, strict=True) if possible]
        others = [tensor for tensor, possible in zip(sources, averageable, strict=True) if not possible]
        by_dtype = [[tensor for tensor in floating if tensor.dtype == dtype] for dtype in dict.fromkeys(t.dtype for t in floating)]
        self._float_pairs = [(same, [averages[id(tensor)] for tensor in same]) for same in by_dtype]
        self._other_pair = (others, [averages[id(tensor)] for tensor in others])
        device = sources[0].device
        self._applied = torch.zeros((), device=device)
        self._nine = torch.full((), 9.0, device=device)
        self._weight = torch.zeros((), device=device)

    @torch.no_grad()
    def update(self, found_inf: Tensor) -> None:
        """Update the averages with the weights after an optimizer update. Do nothing if `found_inf`, float32 [] on the device, is 1.

        The host does not wait for the device."""
        self._applied.add_(1).sub_(found_inf)
        # 1 - min(decay, (1 + n) / (10 + n)) = max(1 - decay, 9 / (10 + n)), negated for the kernel.
        torch.div(self._nine, self._applied + 10, out=self._weight).clamp_(min=1.0 - self.decay).neg_()
        for sources, averages in self._float_pairs:
            torch._fused_sgd_(
                averages,
                sources,
                [],
                weight_decay=-1.0,
                momentum=0.0,
                lr=self._weight,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
                found_inf=found_inf,
            )
        if self._other_pair[0]:
            torch._foreach_copy_(self._other_pair[1], self._other_pair[0])

    @contextlib.contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """Return a context manager in which the weights of `model` are replaced by the averages. Afterwards the weights are restored bit
        for bit, also after an exception.

        Values are copied and tensors keep their memory, so compiled graphs and DDP stay valid."""
        own = {name: tensor for name, tensor in model.state_dict().items() if name in self._averages}
        assert own.keys() == self._averages.keys(), "the average was made of another model"
        saved = {name: tensor.detach().clone() for name, tensor in own.items()}
        try:
            _copy(own, self._averages)
            yield
        finally:
            _copy(own, saved)

    def averaged(self) -> dict[str, Tensor]:
        """Return {name in `model.state_dict()`: average}. The averages are not copied. A tied weight appears under each of its names."""
        return dict(self._averages)

    def load_averaged(self, state: Mapping[str, Tensor] | None) -> None:
        """Copy averages from a checkpoint. Raise `ConfigError` if `state` is None, or if names or shapes differ from those of the
        averages."""
        if state is None:
            raise ConfigError("trainer.ema_decay: the checkpoint does not contain averaged weights; resume with trainer.ema_decay=null")
        differing = sorted(self._averages.keys() ^ state.keys())
        differing += [name for name, tensor in self._averages.items() if name in state and state[name].shape != tensor.shape]
        if differing:
            raise ConfigError(f"trainer.ema_decay: the averaged weights in the checkpoint are of another model, see {differing[0]}")
        _copy(self._averages, state)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of applied updates. The averages themselves are saved by `averaged` and loaded by `load_averaged`."""
        return {"applied": float(self._applied)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._applied.fill_(state["applied"])


@torch.no_grad()
def _copy(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, tensor in targets.items():
        tensor.copy_(values[name])
