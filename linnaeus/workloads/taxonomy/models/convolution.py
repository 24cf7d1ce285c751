"""Convolutional stages: the cheap way from pixels to tokens. Norms are over channels, never over the batch (law 3)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.models.residual import Residual


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of [B, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvBlock(nn.Module):
    """A residual block: convolution, norm, two-layer perceptron per pixel.

    With kernel 7, depth-wise, it is ConvNeXt's (Liu et al. 2022); with kernel 3, dense, it is the better one per second of a
    CPU at few channels."""

    def __init__(
        self, width: int, kernel: int, depthwise: bool, expansion: float, scale: float | None, dropout: float, drop_path: float
    ) -> None:
        super().__init__()
        hidden = int(width * expansion)
        self.spatial = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width if depthwise else 1)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.residual = Residual(width, scale, dropout, drop_path)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.mlp(self.norm(self.spatial(x).permute(0, 2, 3, 1)))
        return self.residual(x.permute(0, 2, 3, 1), branch).permute(0, 3, 1, 2)


def downsample(inputs: int, width: int) -> nn.Sequential:
    """Half the size (rounded up), overlapping."""
    return nn.Sequential(ChannelNorm(inputs), nn.Conv2d(inputs, width, 3, stride=2, padding=1))


def stem(width: int, stride: int) -> nn.Sequential:
    """Pixels to the first grid: one overlapping convolution of stride 2, or two for stride 4."""
    assert stride in (2, 4)
    if stride == 2:
        return nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1))
    half = width // 2
    return nn.Sequential(
        nn.Conv2d(3, half, 3, stride=2, padding=1), ChannelNorm(half), nn.GELU(), nn.Conv2d(half, width, 3, stride=2, padding=1)
    )
