"""Define `DictionarySet`: one dictionary, or several that are trained on the same activations in one pass (`model.frontier`).

The dictionaries have no common parameters. Each dictionary is a task of the run. A dictionary gets the weights that it would get in a run
with this dictionary alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError
from linnaeus.workloads.base import Model
from linnaeus.workloads.dictionary.model.config import DictionaryConfig, PenalisedConfig
from linnaeus.workloads.dictionary.model.sparse_dictionary import Reconstruction, SparseDictionary
from linnaeus.workloads.dictionary.model.variants import build_dictionary


class DictionarySet(Model):
    """Dictionaries of the same activations. `model(batch)` returns a list with one `Reconstruction` for each dictionary.

    batch: as for `SparseDictionary`."""

    def __init__(self, dictionaries: Sequence[SparseDictionary]) -> None:
        super().__init__()
        self.dictionaries = nn.ModuleList(dictionaries)
        self.exact_counts = all(dictionary.exact_counts for dictionary in dictionaries)
        for dictionary in dictionaries:
            dictionary.scratch = dictionaries[0].scratch

    def __getitem__(self, number: int) -> SparseDictionary:
        found = self.dictionaries[number]
        assert isinstance(found, SparseDictionary)
        return found

    def __len__(self) -> int:
        return len(self.dictionaries)

    def forward(self, batch: Batch) -> list[Reconstruction]:
        return [dictionary(batch) for dictionary in self.dictionaries]

    def after_update(self, skipped: Tensor) -> None:
        for number in range(len(self)):
            self[number].after_update(skipped)

    def shared_parameters(self) -> list[nn.Parameter]:
        """Return [decoder, bias] of the first dictionary, because the list must not be empty. No parameter is really shared by several
        tasks."""
        return self[0].shared_parameters()

    def repeated_blocks(self) -> list[nn.Module]:
        """Return []: the dictionaries do not follow each other."""
        return []

    @property
    def no_decay(self) -> set[str]:
        """Return the names of all parameters: none has weight decay, which would shrink the activities."""
        return {name for name, _ in self.named_parameters()}

    def flops_per_sample(self) -> float:
        return sum(self[number].flops_per_sample() for number in range(len(self)))


def frontier_key(config: DictionaryConfig) -> str:
    """Return the name of the setting that differs between the dictionaries of `model.frontier`: "sparsity" for a variant with a penalty,
    otherwise "k"."""
    return "sparsity" if isinstance(config, PenalisedConfig) else "k"


def members(config: DictionaryConfig) -> dict[str, DictionaryConfig]:
    """Return {name: settings} of the dictionaries to train: one for each value of `model.frontier`, such as `k16`; without values, one
    named `dictionary`.

    Raise `ConfigError` if a value is listed twice."""
    if not config.frontier:
        return {"dictionary": config}
    key = frontier_key(config)
    found = {f"{key}{value:g}": dataclasses.replace(config, **cast(Any, {key: value})) for value in config.frontier}
    if len(found) < len(config.frontier):
        raise ConfigError(f"model.frontier is {config.frontier}; list each value of {key} once")
    return found


def build_dictionary_set(config: DictionaryConfig, width: int, seed: int) -> DictionarySet:
    """Return new dictionaries on the CPU for activations of `width` dimensions, one for each of `members(config)`.

    All start from equal weights, which are a function of `seed`. Raise `ConfigError` for settings that `check_settings` refuses."""
    return DictionarySet([build_dictionary(member, width, seed) for member in members(config).values()])
