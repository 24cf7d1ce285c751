"""`Source`: the data of the taxonomy workload, as a tree, arrays of observations, and a reader of photographs.

Data packages (`biota`, `manifest`) build one `Source`; dataset, dataset record, metrics and report read only that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.text_arrays import Names
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

TRAIN, VALIDATION = 0, 1


class ImageReader(Protocol):
    """A reader of photographs by observation number. Loader workers are forks of the process: it must open files in `read`."""

    def read(self, samples: np.ndarray) -> list[np.ndarray]:
        """Return RGB images uint8 [H, W, 3] of the observation numbers `samples`, int64 [B]; sizes may differ.

        Raise `UndecodableImage` for a photograph that can never be read, `OSError` for one that may be readable later."""


class UndecodableImage(Exception):
    """A photograph whose bytes are not an image. `sample`: its observation number; the message is the reason."""

    def __init__(self, sample: int, reason: str) -> None:
        super().__init__(reason)
        self.sample = sample


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """Place and time of N observations: one float32 array [N] per quantity, NaN where unknown; 0.0 is a valid value."""

    latitude: np.ndarray  # degrees north
    longitude: np.ndarray  # degrees east
    uncertainty: np.ndarray  # of the coordinates, in metres
    day: np.ndarray  # fraction of the year in [0, 1)
    hour: np.ndarray  # hours in [0, 24)
    elevation: np.ndarray  # metres

    def take(self, rows: np.ndarray | slice) -> Metadata:
        """Return the metadata of the given rows."""
        return Metadata(**{name: values[rows] for name, values in vars(self).items()})


@dataclass(frozen=True)
class Source:
    """The observations 0..N-1 of both splits."""

    tree: TaxonomyTree
    ids: Names  # [N]: stable names of the observations (file path, or generator index)
    labels: np.ndarray  # int64 [N, R]: class index at each of `tree.ranks` (coarse to fine), -1 for null
    metadata: Metadata
    split: np.ndarray  # int8 [N]: TRAIN or VALIDATION
    images: ImageReader
    fingerprint: str  # hash of all of the above that determines a batch
    weight: np.ndarray | None = None  # float32 [N]: weights in the training loss, mean 1 over the training rows; None: all 1
    group: np.ndarray | None = None  # int64 [N]: groups that the split keeps together
    excluded: dict[str, int] = field(default_factory=dict)  # reason -> number of rows left out; a `LeftOut` has their names, too
    notes: tuple[str, ...] = ()  # lines printed at the start and saved with the run
    unreadable: tuple[tuple[str, str], ...] = ()  # name and reason of each missing or empty file

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an array of another length than `ids`, and labels that are not classes of the tree."""
        n, ranks = len(self.ids), len(self.tree.ranks)
        arrays = {"split": self.split, "weight": self.weight, "group": self.group}
        arrays |= {f"metadata.{f.name}": getattr(self.metadata, f.name) for f in fields(self.metadata)}
        for name, array in arrays.items():
            if array is not None and np.shape(array) != (n,):
                raise ConfigError(f"Source.{name} has the shape {np.shape(array)}; it must be ({n},), one value for each of `ids`")
        if self.labels.shape != (n, ranks) or self.labels.dtype.kind != "i":
            raise ConfigError(f"Source.labels is {self.labels.dtype} {self.labels.shape}; it must be int64 ({n}, {ranks})")
        for rank, size, column in zip(self.tree.ranks, self.tree.sizes, self.labels.T, strict=True):
            if n and not -1 <= column.min() <= column.max() < size:
                raise ConfigError(f"Source.labels of {rank} are {column.min()} to {column.max()}; they must be from -1 to {size - 1}")
