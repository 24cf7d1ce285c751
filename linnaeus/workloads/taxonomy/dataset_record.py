"""The record of the data a run was trained on: counts, densities, class indices and the tree, as files anyone can read.

`process_and_save_dataset_metadata(source, directory, draws)` writes

    dataset.json         rows, label and null density per rank, metadata density per component, what was left out and why, fingerprint
    class_indices.json   rank -> lineage id -> class index
    class_counts.csv     rank, class, name, lineage id, training rows, validation rows, positions of an epoch drawn from the training rows
    taxonomy.json        the tree, as `TaxonomyTree.from_dict` reads it

and `load_dataset_metadata(directory)` reads them back.
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
    """What the files hold. `counts[split][r]` is int64 [C_r], rows per class; `facts` is the content of dataset.json."""

    tree: TaxonomyTree
    counts: dict[str, tuple[np.ndarray, ...]]
    drawn: tuple[np.ndarray, ...]  # per rank float64 [C_r]: positions of an epoch, on average; the training rows where sampling is natural
    facts: Mapping[str, Any]

    @property
    def class_indices(self) -> dict[str, dict[str, int]]:
        """rank -> lineage id -> class index."""
        ranks = self.tree.ranks
        return {rank: {lineage: c for c, lineage in enumerate(self.tree.lineage_ids(rank))} for rank in ranks}


def process_and_save_dataset_metadata(source: Source, directory: Path | str, draws: np.ndarray | None = None) -> DatasetRecord:
    """Count the source, write the four files into `directory` (made if need be), each whole or not at all, and return the record.
    `draws` float64: how often an epoch draws each training row on average; None: once."""
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
    """The record a run left. Raises ConfigError where it is not there, or belongs to another version or to another tree."""
    directory = Path(directory)
    try:
        facts = json.loads((directory / "dataset.json").read_text(encoding="utf-8"))
        tree = TaxonomyTree.from_dict(json.loads((directory / "taxonomy.json").read_text(encoding="utf-8")))
        rows = list(csv.DictReader(io.StringIO((directory / "class_counts.csv").read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory}: no readable record of a dataset: {error}") from error
    if facts.get("version") != VERSION or facts.get("taxonomy_fingerprint") != tree.fingerprint():
        raise ConfigError(f"{directory}: dataset.json and taxonomy.json do not belong together; save the record again")
    counts = {split: tuple(np.zeros(size, dtype=np.int64) for size in tree.sizes) for split in SPLITS}
    drawn = tuple(np.zeros(size) for size in tree.sizes)
    for row in rows:
        rank, number = tree.ranks.index(row["rank"]), int(row["class"])
        for split in SPLITS:
            counts[split][rank][number] = int(row[split])
        drawn[rank][number] = float(row["drawn"])
    return DatasetRecord(tree, counts, drawn, facts)


def class_counts(source: Source) -> dict[str, tuple[np.ndarray, ...]]:
    """Rows per class: split -> per rank int64 [C_r]."""
    return {
        split: tuple(_bincount(source.labels[source.split == side, r], size) for r, size in enumerate(source.tree.sizes))
        for split, side in SPLITS.items()
    }


def drawn_counts(source: Source, draws: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """Per rank float64 [C_r]: positions of an epoch that each class has on average, to three decimals."""
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
    """bool [N] per component, and for the quantities that refine one: where it is known."""
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
