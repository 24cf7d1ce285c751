"""Make the result of `linnaeus nearest`, a table of similar photographs, and write it as CSV or JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from linnaeus.errors import ConfigError, counted
from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.embed.cosine_search import QUERIES, nearest, neighbours, pairs
from linnaeus.workloads.taxonomy.trained.embed.embedding import Embedded, embed_batches
from linnaeus.workloads.taxonomy.trained.embed.feature_files import replacing
from linnaeus.workloads.taxonomy.trained.embed.feature_index import FeatureIndex
from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import Inputs


class Matches(NamedTuple):
    """Table of the results of a search. Each row has a value per column; `rows` can be iterated once."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


def check_model(index: FeatureIndex, model: TrainedClassifier, key: str = "INDEX") -> None:
    """Raise `ConfigError` if another model computed the features of an index. `key`: start of the error message."""
    if index.head.fingerprint != model.fingerprint():
        raise ConfigError(
            f"{key}: {index.path} has features of another model, {index.head.model} ({index.head.fingerprint[:12]}, not "
            f"{model.fingerprint()[:12]}); write it again with `linnaeus embed`"
        )


def nearest_ones(index: FeatureIndex, model: TrainedClassifier, inputs: Inputs, count: int, size: int, threads: int) -> Matches:
    """Return a table of the `count` nearest photographs of an index for each photograph of `inputs`.

    A photograph that cannot be read has one row, with the reason in `error`. Rows are computed during the iteration, in batches of `size`
    photographs."""
    return Matches(("photograph", "number", "nearest", "cosine", "error"), _nearest_rows(index, model, inputs, count, size, threads))


def _nearest_rows(
    index: FeatureIndex, model: TrainedClassifier, inputs: Inputs, count: int, size: int, threads: int
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `nearest_ones`. A pass over the index is slow, so at least `QUERIES` photographs are collected before each pass."""
    held: list[Embedded] = []
    for batch in embed_batches(model, inputs, size, threads, normalize=True):
        held.append(batch)
        if sum(len(one.names) for one in held) >= QUERIES:
            yield from _rows_of(held, index, model.device, count)
            held = []
    if held:
        yield from _rows_of(held, index, model.device, count)


def _rows_of(held: Sequence[Embedded], index: FeatureIndex, device: torch.device, count: int) -> Iterator[tuple[Any, ...]]:
    features = np.concatenate([one.features for one in held])
    errors = [error for one in held for error in one.errors]
    good = np.array([error is None for error in errors])
    found = nearest(torch.from_numpy(features[good]).to(device), index, count)
    rows = zip(found.cosine.tolist(), found.row.tolist(), strict=True)
    for name, error in zip(chain.from_iterable(one.names for one in held), errors, strict=True):
        if error is not None:
            yield name, None, None, None, error
            continue
        for number, (cosine, row) in enumerate(zip(*next(rows), strict=True), 1):
            yield name, number, index.names[row], cosine, None


def duplicates(index: FeatureIndex, above: float, device: torch.device) -> Matches:
    """Return a table of the pairs of photographs of an index whose cosine is at least `above`, in descending order of cosine.

    Raise `ConfigError` as `pairs` does."""
    with PreparationProgress("comparing", len(index), counted(len(index), "photograph")) as progress:
        found = pairs(index, above, device, progress.add)
    rows = ((index.names[int(a)], index.names[int(b)], float(cosine)) for a, b, cosine in zip(*found, strict=True))
    return Matches(("photograph", "other", "cosine"), rows)


def odd_ones(index: FeatureIndex, count: int, device: torch.device) -> Matches:
    """Return a table of all photographs of an index with the mean cosine to the `count` nearest other photographs, in ascending order of
    mean cosine."""
    means, first = [], []
    with PreparationProgress("comparing", len(index), counted(len(index), "photograph")) as progress:
        for found in neighbours(index, count, device, progress.add):
            means.append(found.cosine.mean(1).cpu())
            first.append(found.row[:, 0].cpu())
    mean, nearest_one = torch.cat(means), torch.cat(first)
    order = mean.argsort(stable=True).tolist()
    rows = ((index.names[row], float(mean[row]), index.names[int(nearest_one[row])]) for row in order)
    return Matches(("photograph", "mean_cosine", "nearest"), rows)


def write_matches(out: Path, matches: Matches) -> int:
    """Write a table to a .csv file, or to a .json file as a list of objects. Return the number of rows.

    Raise `ConfigError` if the file cannot be written."""
    rows = Counted(matches.rows)
    try:
        with replacing(out) as temporary, open(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            if out.suffix.lower() == ".csv":
                table = csv.writer(file, lineterminator="\n")
                table.writerow(matches.columns)
                table.writerows(rows)
            else:
                objects = (json.dumps(dict(zip(matches.columns, row, strict=True)), ensure_ascii=False) for row in rows)
                file.writelines(f"{',' if number else '['}\n {text}" for number, text in enumerate(objects))
                file.write("\n]\n" if rows.count else "[]\n")
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror}); choose another file") from None
    return rows.count


class Counted:
    """Iterable over rows that counts the rows. `count`: number of rows that were iterated so far."""

    def __init__(self, rows: Iterator[tuple[Any, ...]]) -> None:
        self.rows, self.count = rows, 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for row in self.rows:
            self.count += 1
            yield row
