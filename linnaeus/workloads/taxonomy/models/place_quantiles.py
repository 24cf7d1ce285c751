"""Quantiles of coordinates among the training photographs, an input of the metadata encoder beside the coordinates on the unit sphere.

On the unit sphere 100 km are 0.016. A network does not learn from such small differences of its input: trained on places in a region of
100 km, it named the most frequent species everywhere. Quantiles are spread over -1 to 1 wherever the photographs are: in one park, in
several parks on different continents, or all over the earth (figures: `benchmarks/README.md`, "Places")."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.observations.components import encode

COLUMNS = 3  # of SPATIAL: x, y, z on the unit sphere
INTERVALS = 32  # between the quantiles that are kept of a coordinate
NARROWEST = 1e-6  # of an interval: 6 m on the earth, in units of its radius


class PlaceQuantiles(nn.Module):
    """Map points on the unit sphere, [B, 3], to the quantile of each coordinate, from -1 to 1, [B, 3].

    A quantile is interpolated linearly between the `INTERVALS` + 1 `knots`, so distant points, such as wrong coordinates, are not large
    inputs. The knots are a buffer that is saved with the weights."""

    knots: Tensor  # [3, INTERVALS + 1], ascending

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-1, 1, INTERVALS + 1).repeat(COLUMNS, 1))

    def fit(self, points: np.ndarray) -> None:
        """Set the knots to equidistant quantiles of N points, float [N, 3]. Without points nothing is changed."""
        if len(points):
            shares = np.linspace(0, 1, INTERVALS + 1)
            self.knots.copy_(torch.from_numpy(np.quantile(points.astype(np.float64), shares, axis=0).T))

    def forward(self, points: Tensor) -> Tensor:
        low, high = self.knots[:, :-1], self.knots[:, 1:]
        filled = ((points.unsqueeze(2) - low) / (high - low).clamp(min=NARROWEST)).clamp(0, 1)
        return 2 * filled.mean(2) - 1


def fit_places(model: nn.Module, metadata: Metadata) -> None:
    """Set the knots of every `PlaceQuantiles` of `model` to quantiles of the places in `metadata`, of the training photographs."""
    modules = [module for module in model.modules() if isinstance(module, PlaceQuantiles)]
    if modules:
        features, present = encode(metadata, ["SPATIAL"])
        for module in modules:
            module.fit(features[present[:, 0], :COLUMNS])
