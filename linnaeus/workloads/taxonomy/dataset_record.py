"""The record of the data of a run: counts, densities, class indices and the tree, as JSON and CSV files.

`process_and_save_dataset_metadata(source, directory, draws)` writes these files, and `load_dataset_metadata(directory)` reads them:

    dataset.json         rows, label and null density per rank, metadata density per component, excluded rows by reason, fingerprint
    class_indices.json   rank -> lineage id -> class index
    class_counts.csv     rank, class, name, lineage id, training rows, validation rows, draws of the class per epoch
    taxonomy.json        the tree, in the format of `TaxonomyTree.from_dict`
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.files import write_atomic
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Metadata, Source
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

SPLITS = {"training": TRAIN, "validation": VALIDATION}
VERSION = 1


@dataclass(frozen=True)
class DatasetRecord:
    """The content of the files. `counts[split][r]`: int64 [C_r], rows per class. `facts`: the content of dataset.json."""

    tree: TaxonomyTree
    counts: dict[str, tuple[np.ndarray, ...]]
    drawn: tuple[np.ndarray, ...]  # per rank float64 [C_r]: mean draws of each class per epoch; its training rows for natural sampling
    facts: Mapping[str, Any]

    @property
    def class_indices(self) -> dict[str, dict[str, int]]:
        """Return rank -> lineage id -> class index."""
        ranks = self.tree.ranks
        return {rank: {lineage: c for c, lineage in enumerate(self.tree.lineage_ids(rank))} for rank in ranks}


def process_and_save_dataset_metadata(source: Source, directory: Path | str, draws: np.ndarray | None = None) -> DatasetRecord:
    """Write the four files into `directory`, each atomically, and return the record. The directory is created if necessary.

    `draws`: float64 [N], mean draws of each training row per epoch; None: 1."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    drawn = drawn_counts(source, draws)
    record = DatasetRecord(source.tree, class_counts(source), drawn, _facts(source, drawn))
    write_atomic(directory / "taxonomy.json", json.dumps(source.tree.to_dict(), ensure_ascii=False))
    write_atomic(directory / "class_indices.json", json.dumps(record.class_indices, ensure_ascii=False, indent=1))
    write_atomic(directory / "class_counts.csv", _counts_table(record))
    write_atomic(directory / "dataset.json", json.dumps(record.facts, ensure_ascii=False, indent=2) + "\n")
    return record


def load_dataset_metadata(directory: Path | str) -> DatasetRecord:
    """Return the record in `directory`. Raise `ConfigError` for missing or invalid files, another version, or a tree of another record."""
    directory = Path(directory)
    try:
        facts = json.loads((directory / "dataset.json").read_text(encoding="utf-8"))
        tree = TaxonomyTree.from_dict(json.loads((directory / "taxonomy.json").read_text(encoding="utf-8")))
        rows = list(csv.DictReader(io.StringIO((directory / "class_counts.csv").read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory} does not contain a readable dataset record: {error}") from error
    if facts.get("version") != VERSION or facts.get("taxonomy_fingerprint") != tree.fingerprint():
        raise ConfigError(f"{directory}: dataset.json and taxonomy.json are from different records; save the record again")
    counts = {split: tuple(np.zeros(size, dtype=np.int64) for size in tree.sizes) for split in SPLITS}
    drawn = tuple(np.zeros(size) for size in tree.sizes)
    for row in rows:
        rank, number = tree.ranks.index(row["rank"]), int(row["class"])
        for split in SPLITS:
            counts[split][rank][number] = int(row[split])
        drawn[rank][number] = float(row["drawn"])
    return DatasetRecord(tree, counts, drawn, facts)


def class_counts(source: Source) -> dict[str, tuple[np.ndarray, ...]]:
    """Return split -> rows per class, int64 [C_r] per rank."""
    return {
        split: tuple(_bincount(source.labels[source.split == side, r], size) for r, size in enumerate(source.tree.sizes))
        for split, side in SPLITS.items()
    }


def drawn_counts(source: Source, draws: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """Return the mean draws of each class per epoch, to three decimals, float64 [C_r] per rank."""
    labels = source.labels[source.split == TRAIN]
    draws = np.ones(len(labels)) if draws is None else draws
    sums = (np.bincount(labels[:, r] + 1, draws, minlength=size + 1)[1:] for r, size in enumerate(source.tree.sizes))
    return tuple(np.round(drawn, 3) for drawn in sums)


def _bincount(labels: np.ndarray, size: int) -> np.ndarray:
    return np.bincount(labels[labels >= 0], minlength=size).astype(np.int64)


def _facts(source: Source, drawn: Sequence[np.ndarray]) -> dict[str, Any]:
    per_split = {split: source.split == side for split, side in SPLITS.items()}
    return {
        "version": VERSION,
        "fingerprint": source.fingerprint,
        "taxonomy_fingerprint": source.tree.fingerprint(),
        "rows": {split: int(rows.sum()) for split, rows in per_split.items()},
        "groups": None if source.group is None else {split: len(np.unique(source.group[rows])) for split, rows in per_split.items()},
        "ranks": {rank: _rank_facts(source, r, per_split, drawn[r]) for r, rank in enumerate(source.tree.ranks)},
        "metadata": {
            name: {split: _share(known[rows]) for split, rows in per_split.items()} for name, known in _known(source.metadata).items()
        },
        "excluded": dict(source.excluded),
        "unreadable": len(source.unreadable),
        "notes": list(source.notes),
    }


def _rank_facts(source: Source, r: int, per_split: Mapping[str, np.ndarray], drawn: np.ndarray) -> dict[str, Any]:
    known = source.labels[:, r] >= 0
    counts = _bincount(source.labels[per_split["training"], r], source.tree.sizes[r])
    return {
        "classes": source.tree.sizes[r],
        "label_density": {split: _share(known[rows]) for split, rows in per_split.items()},
        "null": {split: int((~known[rows]).sum()) for split, rows in per_split.items()},
        "rows_per_class": {"smallest": int(counts.min()), "median": float(np.median(counts)), "largest": int(counts.max())},
        "drawn_per_class": {"smallest": float(drawn.min()), "median": float(np.median(drawn)), "largest": float(drawn.max())},
        "classes_validated": int((_bincount(source.labels[per_split["validation"], r], source.tree.sizes[r]) > 0).sum()),
    }


def _known(metadata: Metadata) -> dict[str, np.ndarray]:
    """Return True where known, bool [N], for each component and for single quantities of a component."""
    known = {f.name: ~np.isnan(getattr(metadata, f.name)) for f in fields(Metadata)}
    components = {"SPATIAL": known["latitude"] & known["longitude"], "TEMPORAL": known["day"], "ELEVATION": known["elevation"]}
    return components | {name: known[name] for name in ("uncertainty", "day", "hour")}


def _share(known: np.ndarray) -> float:
    return float(known.mean()) if len(known) else 0.0


def _counts_table(record: DatasetRecord) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["rank", "class", "name", "lineage", *SPLITS, "drawn"])
    for r, rank in enumerate(record.tree.ranks):
        lineages = record.tree.lineage_ids(rank)
        for c, name in enumerate(record.tree.names[r]):
            table.writerow(
                [rank, c, name, lineages[c], *(int(record.counts[split][r][c]) for split in SPLITS), f"{record.drawn[r][c]:.10g}"]
            )
    return text.getvalue()
