"""`DropPath`: stochastic depth, with a rate that can be a tensor so that blocks with different rates share one compiled graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): in training, set whole samples of x [B, ...] to 0 with probability `rate`, and divide the
    others by 1 - `rate` if `scaled`.

    Random numbers are drawn from torch's global generator, which the loop seeds for each micro-batch by its position. At rate 0 none are
    drawn, unless the rate is a tensor."""

    keep: Tensor | None  # float32 [], 1 - rate; None: the rate is a number of Python

    def __init__(self, rate: float, scaled: bool = True) -> None:
        super().__init__()
        self.rate, self.scaled = rate, scaled
        self.register_buffer("keep", None, persistent=False)

    def use_tensor(self, device: torch.device) -> None:
        """Keep the rate in a tensor on `device`, from which a compiled graph reads it. A number of Python would be a constant of the graph,
        and the rates, which grow with depth, would each need a graph of their own."""
        self.keep = torch.tensor(1 - self.rate, device=device)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        shape = (len(x),) + (1,) * (x.dim() - 1)
        if self.keep is not None:
            kept = (torch.rand(shape, device=x.device) < self.keep).to(x.dtype)
            return x * (kept / self.keep.clamp(min=1e-3).to(x.dtype)) if self.scaled else x * kept
        if self.rate == 0:
            return x
        keep = 1 - self.rate
        kept = x.new_empty(shape).bernoulli_(keep)
        return x * (kept / max(keep, 1e-3)) if self.scaled else x * kept


def use_tensor_rates(network: nn.Module) -> None:
    """Keep the rates of all `DropPath` modules of `network` in tensors, if any of them is above 0. See `DropPath.use_tensor`."""
    modules = [module for module in network.modules() if isinstance(module, DropPath)]
    if any(module.rate > 0 for module in modules):
        device = next(network.parameters()).device
        for module in modules:
            module.use_tensor(device)
