"""Compute where a network looked: activations of its last spatial feature map, weighted by their gradients.

A position has the sum over channels of activation times gradient of the log-probability of a taxon, 0 if this is negative (HiResCAM,
Draelos and Carin 2020, arXiv:2011.08891). For a network that averages its last map before a linear layer this is Grad-CAM. The map is the
result of the last convolution, or the image tokens that the last transformer block reads.
"""

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
from linnaeus.workloads.taxonomy.components import encode
from linnaeus.workloads.taxonomy.models.mformer import Mformer, TransformerStage
from linnaeus.workloads.taxonomy.models.timm_backbone import TimmBackbone
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier

LARGEST = 32  # rows and columns of a heat map


def heat_map(model: TrainedClassifier, image: np.ndarray, metadata: Metadata, rank: int, number: int) -> np.ndarray:
    """Return the heat map of class `number` of the rank with index `rank`, float32 [S, S] from 0 to 1, of the central square.

    `image`: as `TrainedClassifier.read` returns it, with the metadata of this photograph. The largest value is 1, or all are 0 if nothing
    on the photograph raises the probability. S is the side of the feature map, at most `LARGEST`. The mirrored view of test-time
    augmentation is left out. Raise `ConfigError` for a network without a spatial feature map."""
    trunk = cast(nn.Module, model.model.trunk)
    with torch.enable_grad(), _recorded(trunk) as found:
        prepared = dict(model.preparation(model.batch([image], *encode(metadata, model.components))))
        prepared["image"].requires_grad_()  # so that the feature maps have gradients even if all weights are frozen
        scores = model.outputs(prepared)["scores"]
        scores = scores if model.possible is None else scores.among(model.possible)
        target = scores.log_probs()[rank][0, number]
        maps = [map_ for map_ in found if isinstance(map_, Tensor) and len(map_) == 1]
        gradients = torch.autograd.grad(target, maps, allow_unused=True) if maps else ()
    for map_, gradient in zip(maps, gradients, strict=True):
        grid = None if gradient is None else _grid((map_ * gradient).detach()[0], trunk)
        if grid is not None:
            return _scaled(grid)
    raise ConfigError("this network has no spatial feature map")


@contextmanager
def _recorded(trunk: nn.Module) -> Iterator[list[Any]]:
    """Return a context manager whose value is a list of candidates for the last feature map, the best one first.

    A forward pass in the `with` block fills the list. It then contains the output of timm's `forward_features`, if the trunk is a timm
    model, followed by the input of the last block of the trunk, if the trunk has blocks."""
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
    """Return the sums over channels of a feature map [C, S, S], [S, S, C] or [special + S x S, C] as a square [S, S].

    None for other shapes, for a map of one position, and for one that has no effect, such as the image tokens beside the class token after
    the last block."""
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
    square = grid.dim() == 2 and grid.shape[0] == grid.shape[1] > 1
    return grid if square and bool(grid.any()) else None


def _special(trunk: nn.Module) -> int:
    """Return the number of tokens before the image tokens."""
    if isinstance(trunk, Mformer):
        return cast(TransformerStage, trunk.stages[-1]).special
    return int(getattr(trunk.backbone, "num_prefix_tokens", 0))


def _scaled(grid: Tensor) -> np.ndarray:
    """Return the positive values of [S, S] with a largest value of 1, of at most `LARGEST` rows and columns."""
    heat = grid.float().clamp(min=0)
    if len(heat) > LARGEST:
        heat = F.adaptive_avg_pool2d(heat[None], LARGEST)[0]
    return (heat / heat.max().clamp(min=torch.finfo(heat.dtype).tiny)).cpu().numpy()
