"""`TrainedDictionary`: a trained dictionary and the place of its activations, for use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from linnaeus.errors import ConfigError
from linnaeus.workloads.dictionary.model.sparse_dictionary import SparseDictionary
from linnaeus.workloads.dictionary.tapping import find_module

RECORD = "dataset.json"  # description of the activations in the directory of a dictionary run


class Place(NamedTuple):
    """Source of the activations of a dictionary: a module of the model of a run, with the weights of a checkpoint.

    checkpoint: step of the weights whose activations the dictionary was trained on, also if the run has newer or better ones since; or
    best, newest, or None, as `chosen_weights`, if the record has no step. digest: of these weights; None: unknown. channels: as for
    `Tap`."""

    run: Path
    module: str
    checkpoint: str | None = None
    digest: str | None = None
    channels: str = "first"

    def find(self, network: nn.Module) -> nn.Module:
        return find_module(network, self.module)


class TrainedDictionary:
    """Folded dictionary in evaluation mode, whose activities are in the units of the activations. `place`: where these come from; None for
    planted ones. `source`: the file of the weights. `notes`: lines for the user."""

    def __init__(self, dictionary: SparseDictionary, place: Place | None, source: str, notes: Sequence[str] = ()) -> None:
        self.dictionary, self.place, self.source, self.notes = dictionary.folded().eval(), place, source, list(notes)

    @property
    def features(self) -> int:
        return self.dictionary.features

    @torch.no_grad()
    def encode(self, activations: Tensor) -> Tensor:
        """Return the activities [N, F] of activations [N, d]."""
        return self.dictionary.encode(activations.to(self.dictionary.decoder.dtype))

    @torch.no_grad()
    def decode(self, activities: Tensor) -> Tensor:
        """Return the reconstruction [N, d] of activities [N, F]."""
        return self.dictionary.decode(activities)

    def editing(self, scales: Mapping[int, float], reconstruct: bool = False) -> Callable[[Tensor], Tensor]:
        """Return a function of activations [N, d] that multiplies the activities of features by `scales`, by their numbers.

        Without `reconstruct` it changes the activations by the difference, so what the dictionary does not explain stays; without scales it
        then changes nothing. With it, it returns the reconstruction. Raise `ConfigError` for a number that is not a feature."""
        self.check(scales)
        factors = torch.ones(self.features, dtype=self.dictionary.decoder.dtype, device=self.dictionary.decoder.device)
        for number, scale in scales.items():
            factors[number] = scale

        def edit(rows: Tensor) -> Tensor:
            activities = self.encode(rows)
            if reconstruct:
                return self.decode(activities * factors)
            chosen = list(scales)  # the product with these decoder vectors alone
            return rows + ((activities * (factors - 1))[:, chosen] @ self.dictionary.decoder[chosen]).to(rows.dtype)

        return torch.no_grad()(edit)

    def check(self, features: Sequence[int] | Mapping[int, float]) -> None:
        """Raise `ConfigError` if a number in `features` is not that of a feature."""
        for number in features:
            if not 0 <= number < self.features:
                raise ConfigError(f"feature {number} does not exist: the dictionary has the features 0 to {self.features - 1}")
