"""Define `PlacePrior`, a model of the taxa at a place and in a season, learned from the places and dates of training photographs.

A network without metadata gives p(taxon | photograph). If photograph and place are independent given the taxon,

    p(taxon | photograph, place)  is proportional to  p(taxon | photograph) p(taxon | place) / p(taxon),

as in Mac Aodha, Cole & Perona 2019, "Presence-only geographical priors for fine-grained image classification". p(taxon | place) is a small
network on the place and the day of the year. p(taxon) is the mean of p(taxon | place) over the training photographs. The weight of a taxon
is (1 - f) p(taxon | place) / p(taxon) + f, where f is `floor`, so the weight is at least f. `linnaeus calibrate --prior` fits the network
and f."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.checkpoint.initial_weights import read_safetensors
from linnaeus.errors import ConfigError
from linnaeus.files import file_digest
from linnaeus.workloads.taxonomy.heads.conditional import ConditionalHead, SiblingScores
from linnaeus.workloads.taxonomy.observations.components import COMPONENTS, column_slices
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

USED = {"SPATIAL": 3, "TEMPORAL": 4}  # component -> its first columns that are read: x, y, z; the season, not the hour
WAVES = (1.0, 2.0, 4.0)  # sines and cosines of the inputs at these frequencies separate near places
WIDTH, BLOCKS = 128, 2
MOST_WIDTH = 4096  # that a file may state


@dataclass(frozen=True)
class PriorRecord:
    """Description of the file of a `PlacePrior`, stored in calibration.json.

    `sha256`: hash of the file. `components`: metadata components that the prior reads. `width`: number of units of a hidden layer. `floor`:
    least weight f of a taxon (see the module docstring), above 0 and at most 1."""

    sha256: str
    components: tuple[str, ...]
    width: int
    floor: float

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> PriorRecord:
        """Return the record from `content`, its dict in calibration.json (`dataclasses.asdict`).

        Raise `ConfigError` if components, width or floor are out of range."""
        record = cls(str(content["sha256"]), tuple(content["components"]), int(content["width"]), float(content["floor"]))
        if not record.components or not set(record.components) <= set(USED) or not 0 < record.width <= MOST_WIDTH:
            raise ConfigError("the calibration has a prior of another program; calibrate again")
        if not 0 < record.floor <= 1:
            raise ConfigError(f"the calibration has a prior with floor {record.floor:g}; calibrate again")
        return record


class PlacePrior(nn.Module):
    """Network that predicts the taxon from place and day of the year. `log_weights` returns log-weights of all T taxa.

    `components`: metadata components that the network reads, a subset of `USED`. `width`: number of units of a hidden layer. `floor`: least
    weight f of a taxon (see the module docstring); with floor 1 all log-weights are 0."""

    columns: Tensor  # int64 [K]: columns that are read, among those of `components`
    component: Tensor  # int64 [K]: the component of each
    mean: Tensor  # float [K]: of the training photographs
    deviation: Tensor  # float [K]
    marginal: Tensor  # float [T]: log p(taxon) at its rank

    def __init__(self, tree: TaxonomyTree, components: Sequence[str], width: int = WIDTH, floor: float = 1.0) -> None:
        super().__init__()
        self.tree, self.components, self.width, self.floor = tree, tuple(components), width, floor
        slices = column_slices(self.components)
        pairs = [(own.start + i, m) for m, (name, own) in enumerate(zip(components, slices, strict=True)) for i in range(USED[name])]
        for name, values in zip(("columns", "component"), zip(*pairs, strict=True), strict=True):
            self.register_buffer(name, torch.tensor(values), persistent=False)
        self.register_buffer("mean", torch.zeros(len(pairs)))
        self.register_buffer("deviation", torch.ones(len(pairs)))
        self.register_buffer("marginal", torch.zeros(tree.offsets[-1]))
        self.first = nn.Linear(len(pairs) * (1 + 2 * len(WAVES)) + len(self.components), width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(BLOCKS))
        self.head = ConditionalHead(width, tree)
        self.head.init_weights()

    def forward(self, meta: Tensor, present: Tensor) -> SiblingScores:
        """Return the scores of all taxa for B photographs, from place and day alone.

        `meta` float [B, F] and `present` bool [B, M]: place and day as `components.encode` returns for the M components of the prior."""
        known = present.index_select(1, self.component)
        x = (meta.index_select(1, self.columns) - self.mean) / self.deviation
        waves = [wave(scale * x) for scale in WAVES for wave in (torch.sin, torch.cos)]
        x = torch.cat([torch.where(known, part, 0.0) for part in (x, *waves)] + [present.to(x.dtype)], 1)
        x = self.first(x)
        for block in self.blocks:
            x = x + block(F.relu(x))
        return self.head(F.relu(x).unsqueeze(1).expand(-1, len(self.tree.ranks), -1))

    def log_weights(self, meta: Tensor, present: Tensor) -> Tensor:
        """Return the log-weights of all taxa, float [B, T]; 0 for a photograph without any component of the prior.

        `meta` and `present` are as in `forward`."""
        ratio = torch.cat(self(meta, present).log_probs(), 1) - self.marginal
        if self.floor < 1:
            mixed = torch.logaddexp(ratio + math.log1p(-self.floor), ratio.new_tensor(math.log(self.floor)))
        else:
            mixed = torch.zeros_like(ratio)
        return torch.where(present.any(1, keepdim=True), mixed, 0.0)


def load_prior(path: Path, record: PriorRecord, tree: TaxonomyTree) -> PlacePrior:
    """Return the prior in the file `path`.

    Raise `ConfigError` if the SHA-256 of the file differs from `record`, or if the prior was trained for other taxa than `tree`. Raise
    `OSError` if the file cannot be read."""
    if file_digest(path) != record.sha256:
        raise ConfigError(f"{path} is not the prior of the calibration (SHA-256); calibrate again")
    prior = PlacePrior(tree, record.components, record.width, record.floor)
    try:
        prior.load_state_dict(read_safetensors(path))
    except RuntimeError:  # other names or shapes
        raise ConfigError(f"{path} is a prior for other taxa; calibrate again") from None
    return prior.eval().requires_grad_(False)


def usable_components(read: Sequence[str]) -> tuple[str, ...]:
    """Return the metadata components that a prior may read: the components in `USED` that the network does not read itself.

    `read`: components that the network reads."""
    return tuple(name for name in COMPONENTS if name in USED and name not in read)
