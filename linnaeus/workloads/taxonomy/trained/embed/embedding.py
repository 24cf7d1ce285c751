"""Compute the features of the photographs of a command, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from linnaeus.workloads.taxonomy.trained.photograph_list import Inputs
from linnaeus.workloads.taxonomy.trained.reading_ahead import read_batches
from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier


@dataclass(frozen=True)
class Embedded:
    """B photographs. `features`: float32 [B, width], NaN where there is an error. `errors`: None for photographs that were read."""

    names: Sequence[str]
    features: np.ndarray
    errors: Sequence[str | None]


def embed_batches(model: TrainedClassifier, inputs: Inputs, size: int, threads: int, normalize: bool) -> Iterator[Embedded]:
    """Yield the photographs in batches of `size`. `threads`: that read them."""
    for batch in read_batches(model, inputs, size, threads, "embedding"):
        features = np.full((len(batch), model.width), np.nan, np.float32)
        if batch.good:
            features[batch.good] = model.features(batch.images, batch.metadata, normalize)
        yield Embedded(batch.names, features, batch.errors)
