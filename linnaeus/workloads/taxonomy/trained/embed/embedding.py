"""Compute the features of photographs batch by batch, for the commands `linnaeus embed` and `linnaeus nearest`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from linnaeus.workloads.taxonomy.trained.photograph_list import Inputs
from linnaeus.workloads.taxonomy.trained.reading_ahead import read_batches
from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier


@dataclass(frozen=True)
class Embedded:
    """Batch of B photographs. `features`: float32 [B, width], NaN for a photograph that cannot be read.

    `errors`: why a photograph cannot be read; None if it was read."""

    names: Sequence[str]
    features: np.ndarray
    errors: Sequence[str | None]


def embed_batches(model: TrainedClassifier, inputs: Inputs, size: int, threads: int, normalize: bool) -> Iterator[Embedded]:
    """Yield the features of photographs in batches of `size`. `threads`: number of threads that read them.

    `normalize`: divide each feature vector by its length."""
    for batch in read_batches(model, inputs, size, threads, "embedding"):
        features = np.full((len(batch), model.width), np.nan, np.float32)
        if batch.good:
            features[batch.good] = model.features(batch.images, batch.metadata, normalize)
        yield Embedded(batch.names, features, batch.errors)
