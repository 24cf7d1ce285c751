"""Compute which parts of a photograph a prediction depends on: activations of the network's last spatial feature map, weighted by
gradients.

The value of a position is the sum over channels of activation x gradient of the log-probability of a taxon, and 0 if the sum is negative
(HiResCAM, Draelos and Carin 2020, arXiv:2011.08891). For a network that averages its last feature map before a linear layer this is
Grad-CAM. The feature map is the output of the last convolution, or the image tokens that the last transformer block reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.models.mformer import Mformer, TransformerStage
from linnaeus.workloads.taxonomy.models.timm_backbone import TimmBackbone
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier

LARGEST = 32  # rows and columns of a heat map


def heat_map(model: TrainedClassifier, image: np.ndarray, metadata: Metadata, rank: int, number: int) -> np.ndarray:
    """Return the heat map of class `number` of the rank with index `rank` on the central square of a photograph, float32 [S, S] from 0 to
    1.

    `image`: pixels as `TrainedClassifier.read` returns. `metadata`: of this photograph. The largest value is 1; all values are 0 if no
    position raises the probability, for example if the class is the only possible one. S is the side of the feature map, at most
    `LARGEST`. The mirrored view of test-time augmentation is left out. Raise `ConfigError` for a network without a spatial feature map."""
    trunk = cast(nn.Module, model.model.trunk)
    with torch.enable_grad(), _recorded(trunk) as found:
        prepared = dict(model.preparation(model.batch([image], *encode(metadata, model.components))))
        prepared["image"].requires_grad_()  # so that the feature maps have gradients even if all weights are frozen
        scores = model.outputs(prepared)["scores"]
        scores = scores if model.possible is None else scores.among(model.possible)
        target = scores.log_probs()[rank][0, number]
        target = target * 0 if _is_certain(model, rank, number) else target  # else the map would be of rounding errors
        maps = [map_ for map_ in found if isinstance(map_, Tensor) and len(map_) == 1]
        gradients = torch.autograd.grad(target, maps, allow_unused=True) if maps else ()
    pairs = [(map_.detach()[0], gradient[0]) for map_, gradient in zip(maps, gradients, strict=True) if gradient is not None]
    grids = [grid for map_, gradient in pairs if (grid := _grid(map_ * gradient, trunk)) is not None]
    used = [grid for grid in grids if grid.any()]  # not the image tokens after the last block if only the class token is read there
    if used or (grids and not any(gradient.any() for _, gradient in pairs)):
        return _scaled((used or grids)[0])
    raise ConfigError("this network has no spatial feature map")


def _is_certain(model: TrainedClassifier, rank: int, number: int) -> bool:
    """Return True if class `number` of the rank with index `rank` has probability 1 on every photograph: all possible leaves are below
    it."""
    tree = model.tree
    leaves = ~tree.has_children[:-1] if model.restriction is None else model.restriction.leaves
    return model.description.head.nulls == "ignore" and bool((tree.paths[np.flatnonzero(leaves), rank] == number).all())


@contextmanager
def _recorded(trunk: nn.Module) -> Iterator[list[Any]]:
    """Yield a list that a forward pass in the `with` block fills with candidates for the last feature map, the best candidate first.

    The candidates are the output of timm's `forward_features`, if `trunk` is a timm model, and then the input of the last block of the
    trunk, if the trunk has blocks."""
    found: list[Any] = []
    backbone = trunk.backbone if isinstance(trunk, TimmBackbone) else None
    blocks = list(getattr(trunk.stages[-1] if isinstance(trunk, Mformer) else backbone, "blocks", ()))
    hooks = [block.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0])) for block in blocks[-1:]]
    if backbone is not None:
        compute = backbone.forward_features

        def record(image: Tensor) -> Any:
            features = compute(image)
            found.insert(0, features)
            return features

        backbone.forward_features = record  # a method, for which torch has no hooks
    try:
        yield found
    finally:
        if backbone is not None:
            del backbone.forward_features
        for hook in hooks:
            hook.remove()


def _grid(product: Tensor, trunk: nn.Module) -> Tensor | None:
    """Return the sums over the channels of `product` as a square [S, S]. `product`: [C, S, S], [S, S, C], or tokens [special + S x S, C].

    Return None for other shapes, and for S = 1."""
    if product.dim() == 3:
        channels = 0 if product.shape[1] == product.shape[2] else 2
        grid = product.sum(channels)
    elif product.dim() == 2:
        special = _special(trunk)
        special = special if math.isqrt(len(product) - special) ** 2 == len(product) - special else 0
        side = math.isqrt(len(product) - special)
        grid = product[special:].sum(1)
        grid = grid.view(side, side) if side * side == len(grid) else grid
    else:
        return None
    return grid if grid.dim() == 2 and grid.shape[0] == grid.shape[1] > 1 else None


def _special(trunk: nn.Module) -> int:
    """Return the number of tokens before the image tokens, such as class tokens, in the last feature map of `trunk`."""
    if isinstance(trunk, Mformer):
        return cast(TransformerStage, trunk.stages[-1]).special
    return int(getattr(trunk.backbone, "num_prefix_tokens", 0))


def _scaled(grid: Tensor) -> np.ndarray:
    """Return `grid` [S, S] with negative values set to 0, divided by its largest value. Average it down to `LARGEST` x `LARGEST` if S is
    larger."""
    heat = grid.float().clamp(min=0)
    if len(heat) > LARGEST:
        heat = F.adaptive_avg_pool2d(heat[None], LARGEST)[0]
    return (heat / heat.max().clamp(min=torch.finfo(heat.dtype).tiny)).cpu().numpy()
