"""What a taxonomy source delivers: a tree, a table of observations in arrays, and a way to read the photographs.

Sources (`biota`, `manifest`) build one `Source`; the dataset, the record, the metrics and the report read nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from linnaeus.workloads.taxonomy.tree import TaxonomyTree

TRAIN, VALIDATION = 0, 1


class ImageReader(Protocol):
    """Reads photographs by observation number. Picklable; opens files lazily in each worker."""

    def read(self, samples: np.ndarray) -> list[np.ndarray]:
        """uint8 [H, W, 3] RGB for each observation number in `samples` (int64 [B]); sizes may differ between photographs.

        Raises `UndecodableImage` for one that can never be read, `OSError` for one that may be readable later."""
        ...


class UndecodableImage(Exception):
    """A photograph whose bytes are not an image: `sample` is its observation number, the text says why."""

    def __init__(self, sample: int, reason: str) -> None:
        super().__init__(reason)
        self.sample = sample


@dataclass(frozen=True)
class Metadata:
    """Where and when, one float32 array [N] per quantity, NaN where it is not known (0.0 is a valid value everywhere)."""

    latitude: np.ndarray  # degrees north
    longitude: np.ndarray  # degrees east
    uncertainty: np.ndarray  # metres, of the coordinates
    day: np.ndarray  # fraction of the year in [0, 1)
    hour: np.ndarray  # hours in [0, 24)
    elevation: np.ndarray  # metres


@dataclass(frozen=True)
class Source:
    """Observations 0..N-1 of both splits."""

    tree: TaxonomyTree
    ids: np.ndarray  # [N] unicode, stable names of the observations (file path, or generator index)
    labels: np.ndarray  # int64 [N, R]: class index at each of `tree.ranks` (coarse to fine), -1 where null
    metadata: Metadata
    split: np.ndarray  # int8 [N]: TRAIN or VALIDATION
    images: ImageReader
    fingerprint: str  # hash of everything above that determines a batch
    weight: np.ndarray | None = None  # float32 [N], of each row in the training loss, mean 1 over the training rows; None: all 1
    group: np.ndarray | None = None  # int64 [N], the group column the split keeps together
    excluded: dict[str, int] = field(default_factory=dict)  # reason -> rows left out, for the report
    notes: tuple[str, ...] = ()  # one line each, printed at start and kept with the run
    unreadable: tuple[tuple[str, str], ...] = ()  # name and reason of each photograph found missing or empty while building
