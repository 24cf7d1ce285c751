"""Test the matrix product that replaces the convolution of an image into patches."""

import pytest
import torch
from torch import nn

from linnaeus.workloads.taxonomy.models.patch_convolution import PatchConv2d, replace_patch_convolutions


def replaced(layer):
    network = nn.Sequential(layer)
    replace_patch_convolutions(network)
    return network[0]


def results(layer, x):
    """Return the output and the gradients of image, weight and bias."""
    x = x.clone().requires_grad_()
    y = layer(x)
    (y * torch.arange(y.numel(), dtype=y.dtype).view_as(y).sin()).sum().backward()
    found = [y.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]
    layer.zero_grad()
    return found


@pytest.mark.parametrize("kernel, bias", [(4, True), ((4, 2), False)])
@pytest.mark.parametrize("size", [(8, 12), (9, 13)], ids=["whole patches", "with a rest"])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_equals_the_convolution(kernel, bias, size, memory):
    layer = nn.Conv2d(3, 5, kernel, kernel, bias=bias, dtype=torch.float64)
    new = replaced(layer)
    assert type(new) is PatchConv2d and new.weight is layer.weight and new.bias is layer.bias
    x = torch.randn(2, 3, *size, dtype=torch.float64).contiguous(memory_format=memory)
    for found, expected in zip(results(new, x), results(layer, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


OTHERS = {
    "overlapping": nn.Conv2d(3, 5, 4, stride=2),
    "padded": nn.Conv2d(3, 5, 4, stride=4, padding=1),
    "dilated": nn.Conv2d(3, 5, 4, stride=4, dilation=2),
    "grouped": nn.Conv2d(4, 8, 4, stride=4, groups=2),
    "of many channels": nn.Conv2d(96, 5, 2, stride=2),
    "transposed": nn.ConvTranspose2d(3, 5, 4, stride=4),
}


@pytest.mark.parametrize("layer", OTHERS.values(), ids=OTHERS)
def test_leaves_other_layers(layer):
    assert replaced(layer) is layer


@pytest.mark.parametrize("name, count", [("test_vit", 1), ("convnext_atto", 1), ("resnet10t", 0)])
def test_timm_models(tree, make_config, name, count):
    from linnaeus.workloads.taxonomy.models import build_classifier

    model = build_classifier(make_config(backbone=name, image_size=32), tree, ())
    assert sum(isinstance(module, PatchConv2d) for module in model.modules()) == count
