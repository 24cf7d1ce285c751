"""All blocks of a network are found, and neither a stage around them nor a part inside them."""

from collections import Counter

import pytest
import torch
from torch import nn

from linnaeus.workloads import build_workload
from linnaeus.workloads.repeated_blocks import find_repeated_blocks, use_tensor_rates
from linnaeus.workloads.taxonomy.models.classifier import DropPath
from tests import runs

TIMM = {
    "vit_tiny_patch16_224": {"Block": 12},
    "convnext_atto": {"ConvNeXtBlock": 12},
    "resnet18": {"BasicBlock": 8},
    "swin_tiny_patch4_window7_224": {"SwinTransformerBlock": 12},
    "efficientnet_b0": {"InvertedResidual": 15},
    "mixer_s32_224": {"MixerBlock": 8},
    "vit_small_patch16_18x2_224": {"ParallelThingsBlock": 18},
    "vgg11": {},
}
OWN = {
    "": {"ConvBlock": 2, "TransformerBlock": 2},
    "model.size=nano": {"ConvBlock": 4, "TransformerBlock": 6},
    "model.size=small": {"ConvBlock": 6, "TransformerBlock": 7},
    "workload=language model.size=gpt_nano": {"Block": 3},
    "workload=loadout model.size=published model.blocks=2": {"InducedLayer": 3, "ResidualBlock": 2},
}


def counted(blocks: list[nn.Module]) -> dict[str, int]:
    return dict(Counter(type(block).__name__ for block in blocks))


@pytest.mark.parametrize("name", TIMM)
def test_blocks_of_timm_models(name):
    import timm

    with torch.device("meta"):
        model = timm.create_model(name, num_classes=0)
    assert counted(find_repeated_blocks(model)) == TIMM[name]


@pytest.mark.parametrize("choice", OWN)
def test_blocks_of_own_models(choice):
    model = build_workload(runs.composed(choice.split())).build_model()
    blocks = model.repeated_blocks()
    assert counted(blocks) == OWN[choice]
    inside = [part for block in blocks for part in block.modules()]
    assert len(inside) == len(set(inside)), "a block contains another one"
    shared = {id(parameter) for parameter in model.shared_parameters()}
    assert not shared & {id(parameter) for block in blocks for parameter in block.parameters()}


def test_drop_path_with_a_tensor_keeps_the_rate_and_the_mean():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(1, 1), DropPath(0.25), DropPath(0.25))
    use_tensor_rates(layers[:2])
    x = torch.ones(20_000, 1)
    for layer in layers[1:]:
        values, counts = layer(x).unique(return_counts=True)
        assert values.tolist() == pytest.approx([0, 4 / 3]) and abs(counts[0] / 20_000 - 0.25) < 0.02
        assert layer.eval()(x).equal(x)
    assert layers[2].keep is None, "negative control: this one still has a number"
