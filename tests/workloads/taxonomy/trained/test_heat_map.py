"""Heat maps: the place of a change on the photograph, the gradient of the right taxon, and networks without a feature map."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import HeadConfig, MformerConfig, TimmConfig
from linnaeus.workloads.taxonomy.models import build_network
from linnaeus.workloads.taxonomy.trained import heat_map
from linnaeus.workloads.taxonomy.trained.classifier.description import Description
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import metadata_of
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from tests.covering import every_choice

SIDE = 96
NOWHERE = metadata_of(1, {})


def classifier(tree, backbone: str | None, head: str = "linear") -> TrainedClassifier:
    """Return a classifier with random weights: mformer, or a backbone of timm."""
    torch.manual_seed(0)
    model = TimmConfig("timm", 0.0, 0.0, 32, backbone, False, None) if backbone else MformerConfig("mformer", 0.0, 0.0, 32, "micro")
    config = HeadConfig(head, "ignore")
    network = build_network(model, config, [SIDE], tree, ("TEMPORAL",), pretrained=False)
    description = Description(model, config, (SIDE,), ("TEMPORAL",), "none", 10**8)
    return TrainedClassifier(description, tree, InitialWeights("", "", network.state_dict()))


@pytest.mark.parametrize("backbone", [None, "test_vit", "test_convnext", "test_efficientnet"])
def test_a_change_on_the_photograph_is_at_its_place_on_the_map(tree, monkeypatch, backbone):
    """The square is at the upper right. The class token of test_vit reads image tokens before the last result alone."""
    model = classifier(tree, backbone)
    grey = np.full((SIDE, SIDE, 3), 110, np.uint8)
    changed = grey.copy()
    changed[0:32, 64:96] = np.random.default_rng(0).integers(0, 256, (32, 32, 3))
    scaled = heat_map._scaled
    monkeypatch.setattr(heat_map, "_scaled", lambda grid: grid.numpy())
    before, after = (heat_map.heat_map(model, image, NOWHERE, 3, 5) for image in (grey, changed))
    row, column = np.unravel_index(np.abs(after - before).argmax(), after.shape)
    side = len(after)
    assert side > 1 and (row + 0.5) / side < 0.5 < (column + 0.5) / side, (row, column, side)
    assert all(parameter.grad is None for parameter in model.model.parameters())
    found = scaled(torch.from_numpy(after))
    assert found.max() == 1 and found.min() == 0 and not found[after < 0].any()


def test_the_sum_of_a_map_is_the_derivative_of_the_log_probability(tree, monkeypatch):
    """It is that by a factor of the image tokens, which the last block reads; for a taxon and for another one."""
    model = classifier(tree, None)
    image = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    stage = model.model.trunk.stages[-1]
    monkeypatch.setattr(heat_map, "_scaled", lambda grid: grid.numpy())

    def log_probability(factor: float, number: int) -> float:
        def scale(_, inputs):
            tokens = inputs[0].clone()
            tokens[:, stage.special :] *= factor
            return (tokens, *inputs[1:])

        hook = stage.blocks[-1].register_forward_pre_hook(scale)
        with torch.inference_mode():
            batch = model.batch([image], np.zeros((1, 7), np.float32), np.zeros((1, 1), bool))
            found = model.scores(model.preparation(batch)).log_probs()[2][0, number]
        hook.remove()
        return float(found)

    model.model.double()
    model.preparation.dtype = torch.float64
    constants = model.preparation._host
    constants |= {name: value.double() for name, value in constants.items() if value.is_floating_point()}
    for number in (0, 4):
        expected = (log_probability(1 + 1e-4, number) - log_probability(1 - 1e-4, number)) / 2e-4
        assert heat_map.heat_map(model, image, NOWHERE, 2, number).sum() == pytest.approx(expected, rel=1e-4)


def test_a_map_of_channels_last_and_a_large_one(tree):
    trunk = classifier(tree, "test_vit").model.trunk
    map_ = torch.zeros(4, 4, 9)
    map_[1, 3] = 1
    assert heat_map._grid(map_, trunk).argmax() == heat_map._grid(map_.permute(2, 0, 1), trunk).argmax() == 7
    large = torch.zeros(64, 64)
    large[2, 60] = -large.fill_(0.5)[0, 0]
    assert heat_map._scaled(large).shape == (heat_map.LARGEST, heat_map.LARGEST)
    assert not heat_map._scaled(-torch.ones(4, 4)).any()


@every_choice(backbone=[None, "test_vit", "test_convnext"], head=["linear", "conditional", "marginal"])
def test_the_map_of_a_taxon_that_is_certain_is_zero(tree, backbone, head):
    """All possible leaves are below it; rounding errors of a sum over several leaves are not shown."""
    model = classifier(tree, backbone, head)
    image = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    paths = tree.paths[tree.offsets[3] : tree.offsets[4]]  # of the species
    order = int(np.bincount(paths[:, 0]).argmax())
    leaves = np.flatnonzero(paths[:, 0] == order)
    below = model.restricted([tree.lineage_ids(tree.ranks[0])[order]])
    assert len(leaves) > 1 and not heat_map.heat_map(below, image, NOWHERE, 0, order).any()
    assert heat_map.heat_map(below, image, NOWHERE, 3, int(leaves[0])).max() == 1
    only = model.restricted([tree.lineage_ids(tree.ranks[3])[leaves[0]]])
    for rank in range(4):
        found = heat_map.heat_map(only, image, NOWHERE, rank, int(paths[leaves[0], rank]))
        assert not found.any() and found.shape[0] == found.shape[1] > 1
    assert np.array_equal(*(heat_map.heat_map(one, image, NOWHERE, 3, 1) for one in (only.unrestricted(), model)))


class Wrapped(nn.Module):
    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.width = trunk, trunk.width

    def forward(self, image, meta, present):
        return self.trunk(image, meta, present)


def test_a_network_without_a_feature_map_is_refused(tree):
    model = classifier(tree, None)
    model.model.trunk = Wrapped(model.model.trunk)
    with pytest.raises(ConfigError, match="has no spatial feature map"):
        heat_map.heat_map(model, np.zeros((SIDE, SIDE, 3), np.uint8), NOWHERE, 0, 0)
