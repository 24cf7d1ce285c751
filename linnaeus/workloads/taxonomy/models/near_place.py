"""Coordinates relative to the training photographs, an input of the metadata encoder beside the coordinates on the unit sphere.

On the unit sphere 100 km are 0.016. A network does not learn from such small differences of its input: trained on places in a region of
100 km, it named the most frequent species everywhere. Relative to the centre and the spread of the training photographs, the same network
came within 2 points of the best possible accuracy (figures: `benchmarks/README.md`, "Places in a small region")."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.observations.components import encode

COLUMNS = 3  # of SPATIAL: x, y, z on the unit sphere
SPREADS = 4.0  # spread / median distance from the centre: most photographs are in the range where `NearPlace` is almost linear
QUANTILES = (0.5, 0.9, 1.0)  # of the distances; a later one is used if more than half of the photographs are from one place
SMALLEST = 1e-5  # of a quantile that is used: 64 m on the earth, in units of its radius


class NearPlace(nn.Module):
    """Map points on the unit sphere, [B, 3], to their displacement from `centre` in units of `spread`, limited to length 1, [B, 3].

    A displacement d becomes d / sqrt(1 + |d|^2), so that distant points, such as wrong coordinates, are not large inputs. Both buffers are
    saved with the weights."""

    centre: Tensor  # [3]
    spread: Tensor  # []

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.register_buffer("spread", torch.ones(()))

    def fit(self, points: np.ndarray) -> None:
        """Set the centre to the median of N points, float [N, 3], per coordinate, and the spread to four times their median distance from
        it. Without points nothing is changed."""
        if not len(points):
            return
        centre = np.median(points.astype(np.float64), axis=0)
        distances = np.quantile(np.linalg.norm(points - centre, axis=1), QUANTILES)
        self.centre.copy_(torch.from_numpy(centre))
        self.spread.fill_(SPREADS * float(next((own for own in distances if own >= SMALLEST), SMALLEST)))

    def forward(self, points: Tensor) -> Tensor:
        displacement = (points - self.centre) / self.spread
        return displacement * torch.rsqrt(1 + displacement.square().sum(1, keepdim=True))


def fit_places(model: nn.Module, metadata: Metadata) -> None:
    """Set centre and spread of every `NearPlace` of `model` to those of the places in `metadata`, of the training photographs."""
    modules = [module for module in model.modules() if isinstance(module, NearPlace)]
    if modules:
        features, present = encode(metadata, ["SPATIAL"])
        for module in modules:
            module.fit(features[present[:, 0], :COLUMNS])
