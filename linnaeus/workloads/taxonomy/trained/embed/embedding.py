"""Compute the features of photographs batch by batch, for the commands `linnaeus embed` and `linnaeus nearest`."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from linnaeus.workloads.taxonomy.trained.journal import Row
from linnaeus.workloads.taxonomy.trained.photograph_list import Inputs
from linnaeus.workloads.taxonomy.trained.reading_ahead import read_batches
from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier


@dataclass(frozen=True)
class Embedded:
    """Features of a batch of B photographs. `features`: float32 [B, width], NaN for a photograph that cannot be read.

    `names`: path of each photograph. `errors`: why a photograph cannot be read; None if it was read."""

    names: Sequence[str]
    features: np.ndarray
    errors: Sequence[str | None]


def embed_batches(model: TrainedClassifier, inputs: Inputs, size: int, threads: int, normalize: bool, done: int = 0) -> Iterator[Embedded]:
    """Yield the features of the photographs in `inputs` in batches of `size`. `threads`: number of threads that read photographs.

    `normalize`: divide each feature vector by its length. `done`: number of photographs to skip at the beginning."""
    for batch in read_batches(model, inputs, size, threads, "embedding", done):
        features = np.full((len(batch), model.width), np.nan, np.float32)
        if batch.good:
            features[batch.good] = model.features(batch.images, batch.metadata, normalize)
        yield Embedded(batch.names, features, batch.errors)


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
