"""Read the number of training photographs of each class from the class_counts.csv of a run or a bundle."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.trained.classifier.bundle import COUNTS, checked_file, is_bundle
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


def training_counts(path: Path, tree: TaxonomyTree) -> list[np.ndarray] | None:
    """Return the number of training photographs of each class, per rank int64 [C_r]; None if there is no class_counts.csv.

    `path`: run directory or bundle. `tree`: taxa of its model. Raise `ConfigError` if the file does not have the classes of `tree`."""
    file = checked_file(path, COUNTS) if is_bundle(path) else path / COUNTS
    if file is None or not file.is_file():
        return None
    found: dict[str, dict[str, int]] = {rank: {} for rank in tree.ranks}
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                found[row["rank"]][row["lineage"]] = int(row["training"])
        return [np.array([found[rank][lineage] for lineage in tree.lineage_ids(rank)], dtype=np.int64) for rank in tree.ranks]
    except (OSError, KeyError, ValueError, TypeError, csv.Error):
        raise ConfigError(f"{file} does not have a number for each class of the model; remove it, or export again") from None
