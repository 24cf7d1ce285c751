"""Compute the features of photographs batch by batch, for the commands `linnaeus embed` and `linnaeus nearest`."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from linnaeus.workloads.taxonomy.trained.batches.journal import Row
from linnaeus.workloads.taxonomy.trained.batches.parallel_batches import computed
from linnaeus.workloads.taxonomy.trained.batches.reading_ahead import ReadBatch
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import Inputs


@dataclass(frozen=True)
class Embedded:
    """Features of a batch of B photographs. `features`: float32 [B, width], NaN for a photograph that cannot be read.

    `names`: path of each photograph. `errors`: why a photograph cannot be read; None if it was read."""

    names: Sequence[str]
    features: np.ndarray
    errors: Sequence[str | None]


def embed_batches(model: TrainedClassifier, inputs: Inputs, size: int, threads: int, normalize: bool, done: int = 0) -> Iterator[Embedded]:
    """Yield the features of the photographs in `inputs`, in batches of at most `size`. `threads`: number of cores that are used.

    `normalize`: divide each feature vector by its length. `done`: number of photographs to skip at the beginning."""

    def features_of(part: ReadBatch) -> Embedded:
        features = np.full((len(part), model.width), np.nan, np.float32)
        if part.good:
            features[part.good] = model.features(part.images, part.metadata, normalize)
        return Embedded(part.names, features, part.errors)

    return computed(model, inputs, size, threads, "embedding", features_of, done)


def to_rows(batch: Embedded) -> list[Row]:
    """Return a batch as rows (dicts) for a `Journal`: the path of each photograph, and its features or the reason why it cannot be read.

    `from_rows` restores the features bit for bit."""
    texts = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in batch.features]
    return [
        {"photograph": name} | ({"features": text} if error is None else {"error": error})
        for name, text, error in zip(batch.names, texts, batch.errors, strict=True)
    ]


def from_rows(rows: Iterable[Row], size: int, width: int) -> Iterator[Embedded]:
    """Yield the photographs in `rows` (made by `to_rows`) in batches of `size`. `width`: number of features of a photograph."""
    rows = iter(rows)
    while block := list(itertools.islice(rows, size)):
        features = np.full((len(block), width), np.nan, np.float32)
        for own, row in zip(features, block, strict=True):
            if "features" in row:
                own[:] = np.frombuffer(base64.b64decode(row["features"]), "<f4")
        yield Embedded([row["photograph"] for row in block], features, [row.get("error") for row in block])
