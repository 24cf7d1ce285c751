"""`Source`: the data of a run, as a tree of taxa, arrays with an entry per observation, and a reader of photographs.

The packages `biota`, `manifest` and `store` build a `Source` from their data. All other code reads only the `Source`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

TRAIN, VALIDATION = 0, 1


class ImageReader(Protocol):
    """Reader of photographs by observation number. Loader workers are forks of the process, so files must be opened in `read`, not in the
    constructor."""

    def read(self, samples: np.ndarray) -> list[np.ndarray]:
        """Return the RGB images of observations, each uint8 [H, W, 3] with its own size. `samples`: int64 [B], the observation numbers.

        Raise `UndecodableImage` for a photograph that can never be read, `OSError` for a photograph that may be readable later."""


class UndecodableImage(Exception):
    """Error for a photograph whose bytes are not an image. `sample`: observation number of the photograph. `reason`: the message."""

    def __init__(self, sample: int, reason: str) -> None:
        super().__init__(reason)
        self.sample = sample


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """Place and time of N observations: one float32 array [N] per quantity, NaN where unknown; 0.0 is a valid value."""

    latitude: np.ndarray  # degrees north
    longitude: np.ndarray  # degrees east
    uncertainty: np.ndarray  # uncertainty of the coordinates in metres
    day: np.ndarray  # fraction of the year in [0, 1)
    hour: np.ndarray  # hours in [0, 24)
    elevation: np.ndarray  # metres

    def take(self, rows: np.ndarray | slice) -> Metadata:
        """Return the metadata of some observations. `rows`: their numbers, int64 [N], or a slice of the numbers."""
        return Metadata(**{name: values[rows] for name, values in vars(self).items()})


@dataclass(frozen=True)
class Source:
    """Data of a run: N observations, for training and validation, with the numbers 0 to N - 1."""

    tree: TaxonomyTree
    ids: Names  # [N]: stable names of the observations (file path, or generator index)
    labels: np.ndarray  # int64 [N, R]: class index at each of `tree.ranks` (coarse to fine), -1 for null
    metadata: Metadata
    split: np.ndarray  # int8 [N]: TRAIN or VALIDATION
    images: ImageReader
    fingerprint: str  # hash of everything above that determines batches
    weight: np.ndarray | None = None  # float32 [N]: weights in the training loss, mean 1 over the training rows; None: all 1
    group: np.ndarray | None = None  # int64 [N]: group of each observation; a group is on one side of the split
    excluded: dict[str, int] = field(default_factory=dict)  # reason -> number of rows that are left out; a `LeftOut` also has their names
    notes: tuple[str, ...] = ()  # lines printed at the start and saved with the run
    unreadable: tuple[tuple[str, str], ...] = ()  # name and reason of each missing or empty file

    def __post_init__(self) -> None:
        """Check the arrays. Raise `ConfigError` for an array that is not as long as `ids`, and for labels outside the tree."""
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
