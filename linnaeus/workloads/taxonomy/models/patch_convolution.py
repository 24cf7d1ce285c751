"""Compute the convolution of an image into patches, whose stride is its kernel size, as a matrix product.

Convolution kernels are slow for the 3 channels of an image: on an H200 in bf16, the gradient of the 16 x 16 weights of ViT-S took 6 % of an
update with 256 images, and the layer 9 %. On a CPU the product is faster too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGE_CHANNELS = 4  # at most; with more, convolution kernels are as fast


class PatchConv2d(nn.Conv2d):
    """Convolution whose stride is its kernel size, without padding. Parameters are those of `nn.Conv2d`, results too, up to rounding."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, out_channels, H // kernel height, W // kernel width] of x [B, C, H, W], with the channels last in memory."""
        (height, width), (rows, columns) = x.shape[2:], self.kernel_size
        if height % rows or width % columns:  # the convolution leaves out the rest of the image
            return super().forward(x)
        grid = x.unflatten(3, (width // columns, columns)).unflatten(2, (height // rows, rows))
        patches = grid.permute(0, 2, 4, 1, 3, 5).flatten(3)
        return F.linear(patches, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def replace_patch_convolutions(network: nn.Module) -> None:
    """Replace the convolutions of `network` that divide an image into patches by `PatchConv2d` with the same parameters."""
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Conv2d and _divides_an_image(child):
                setattr(parent, name, _with_parameters_of(child))


def _divides_an_image(layer: nn.Conv2d) -> bool:
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding in ((0, 0), "valid")
    return plain and layer.stride == layer.kernel_size and layer.in_channels <= IMAGE_CHANNELS


def _with_parameters_of(layer: nn.Conv2d) -> PatchConv2d:
    kernel: Any = layer.kernel_size
    with torch.device("meta"):
        new = PatchConv2d(layer.in_channels, layer.out_channels, kernel, kernel, bias=layer.bias is not None)
    new.weight, new.bias = layer.weight, layer.bias
    return new.train(layer.training)
