"""What a residual branch passes through, and how weights begin."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """`x + drop_path(scale * dropout(branch))`, channels last.

    `scale` is LayerScale (Touvron et al. 2021), None for none; stochastic depth (Huang et al. 2016) drops the branch of whole samples. Both
    kinds of dropout draw from torch's global generator, which the loop keys by the position of the micro-batch."""

    def __init__(self, width: int, scale: float | None, dropout: float, drop_path: float) -> None:
        super().__init__()
        self.initial_scale, self.drop_path = scale, drop_path
        self.scale = None if scale is None else nn.Parameter(torch.empty(width))
        self.dropout = nn.Dropout(dropout)

    def init_weights(self) -> None:
        if self.scale is not None and self.initial_scale is not None:
            nn.init.constant_(self.scale, self.initial_scale)

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        branch = self.dropout(branch)
        if self.scale is not None:
            branch = branch * self.scale
        if self.training and self.drop_path > 0:
            keep = 1 - self.drop_path
            kept = branch.new_empty((len(branch),) + (1,) * (branch.dim() - 1)).bernoulli_(keep)
            branch = branch * (kept / max(keep, 1e-3))
        return x + branch


def init_affine(module: nn.Module) -> None:
    """Initialise a linear layer, a convolution or a norm; leave anything else.

    Weights are truncated normal of variance 1 / inputs of a unit, which keeps the variance of activations at any width (the
    usual 0.02 suits width 768 and up and starves narrow nets)."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        std = module.weight[0].numel() ** -0.5
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
