"""Define `TrainedDictionary`, a trained dictionary that encodes and edits activations, and `Place`, the source of these activations."""

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
    """Source of the activations of a dictionary: the output of a module in the network of another run.

    `run`: directory of the other run. `module`: name of the module. `checkpoint`: step of the network weights with which the dictionary was
    trained, even if the other run has newer or better weights now. If no step was recorded, `checkpoint` is best, newest or None, as for
    `chosen_weights`. `digest`: hash of the network weights; None if unknown. `channels`: dimension of the channels, as for `Tap`."""

    run: Path
    module: str
    checkpoint: str | None = None
    digest: str | None = None
    channels: str = "first"

    def find(self, network: nn.Module) -> nn.Module:
        """Return the module `self.module` of `network`. Raise `ConfigError` if it does not exist."""
        return find_module(network, self.module)


class TrainedDictionary:
    """Trained dictionary in evaluation mode, with F features, for activations of d channels.

    In training, the activations were multiplied by a scale. This scale is folded into the weights here, so `encode`, `decode` and `editing`
    use activations in their original units.

    `place`: source of the activations; None for planted (synthetic) activations. `source`: path of the file of weights. `notes`: lines of
    text for the user."""

    def __init__(self, dictionary: SparseDictionary, place: Place | None, source: str, notes: Sequence[str] = ()) -> None:
        self.dictionary, self.place, self.source, self.notes = dictionary.folded().eval(), place, source, list(notes)

    @property
    def features(self) -> int:
        """Return the number of features, F."""
        return self.dictionary.features

    @torch.no_grad()
    def encode(self, activations: Tensor) -> Tensor:
        """Return the activities of all features, [N, F], for N activations [N, d].

        An activity is the coefficient of a feature in the reconstruction."""
        return self.dictionary.encode(activations.to(self.dictionary.decoder.dtype))

    @torch.no_grad()
    def decode(self, activities: Tensor) -> Tensor:
        """Return the reconstruction [N, d] of activities [N, F]."""
        return self.dictionary.decode(activities)

    def editing(self, scales: Mapping[int, float], reconstruct: bool = False) -> Callable[[Tensor], Tensor]:
        """Return a function that maps activations [N, d] to edited activations [N, d], in which the activities of some features are scaled.

        `scales`: number of a feature -> factor. `reconstruct`: True: the function returns the reconstruction from the scaled activities.
        False: it returns the activations plus the change of the reconstruction, which keeps the reconstruction error; with empty `scales`
        it changes nothing. Raise `ConfigError` if a key of `scales` is not the number of a feature."""
        self.check(scales)
        factors = torch.ones(self.features, dtype=self.dictionary.decoder.dtype, device=self.dictionary.decoder.device)
        for number, scale in scales.items():
            factors[number] = scale

        def edit(rows: Tensor) -> Tensor:
            activities = self.encode(rows)
            if reconstruct:
                return self.decode(activities * factors)
            chosen = list(scales)  # only these decoder vectors are multiplied
            return rows + ((activities * (factors - 1))[:, chosen] @ self.dictionary.decoder[chosen]).to(rows.dtype)

        return torch.no_grad()(edit)

    def check(self, features: Sequence[int] | Mapping[int, float]) -> None:
        """Raise `ConfigError` if one of the numbers (or keys) in `features` is not in 0 to F - 1."""
        for number in features:
            if not 0 <= number < self.features:
                raise ConfigError(f"feature {number} does not exist: the dictionary has the features 0 to {self.features - 1}")
