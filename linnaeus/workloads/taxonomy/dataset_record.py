"""The record of the data of a run: counts, densities, class indices and the tree, as JSON and CSV files.

dataset.json         rows, label and null density per rank, metadata density per component, excluded rows by reason, fingerprint
class_indices.json   rank -> lineage id -> class index
class_counts.csv     rank, class, name, lineage id, training rows, validation rows, draws of the class per epoch
taxonomy.json        the tree, in the format of `TaxonomyTree.from_dict`
left_out.csv         record, reason and number of each row or range of rows that is not used, if there are any
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.files import to_json, write_atomic
from linnaeus.workloads.taxonomy.left_out import FILE_NAME, LeftOut
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Metadata, Source

SPLITS = {"training": TRAIN, "validation": VALIDATION}
Counts = dict[str, list[np.ndarray]]  # split -> rows per class, int64 [C_r] per rank


def process_and_save_dataset_metadata(source: Source, directory: Path | str, draws: np.ndarray | None = None) -> None:
    """Write the files into `directory`, each atomically. The directory is created if necessary.

    `draws`: float64 [N], mean draws of each training row per epoch; None: 1."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tree = source.tree
    counts = {split: _class_sums(source, side, None) for split, side in SPLITS.items()}
    drawn = [sums.round(3) for sums in _class_sums(source, TRAIN, draws)]
    lineages = {rank: tree.lineage_ids(rank) for rank in tree.ranks}
    indices = {rank: {lineage: c for c, lineage in enumerate(ids)} for rank, ids in lineages.items()}
    if source.excluded:
        LeftOut(source.excluded).write(directory / FILE_NAME)
    write_atomic(directory / "taxonomy.json", to_json(tree.to_dict(), None))
    write_atomic(directory / "class_indices.json", to_json(indices))
    write_atomic(directory / "class_counts.csv", _counts_table(source, lineages, counts, drawn))
    write_atomic(directory / "dataset.json", to_json(_facts(source, counts, drawn)))


def _class_sums(source: Source, side: int, weights: np.ndarray | None) -> list[np.ndarray]:
    """Return the number of rows of a split per class, or the sum of their `weights`, [C_r] per rank."""
    labels = source.labels[source.split == side]
    return [np.bincount(labels[:, r] + 1, weights, minlength=size + 1)[1:] for r, size in enumerate(source.tree.sizes)]


def _facts(source: Source, counts: Counts, drawn: Sequence[np.ndarray]) -> dict[str, Any]:
    per_split = {split: source.split == side for split, side in SPLITS.items()}
    return {
        "version": 1,
        "fingerprint": source.fingerprint,
        "taxonomy_fingerprint": source.tree.fingerprint(),
        "rows": {split: int(rows.sum()) for split, rows in per_split.items()},
        "groups": None if source.group is None else {split: len(np.unique(source.group[rows])) for split, rows in per_split.items()},
        "ranks": {rank: _rank_facts(source, r, per_split, counts, drawn[r]) for r, rank in enumerate(source.tree.ranks)},
        "metadata": {
            name: {split: _share(known[rows]) for split, rows in per_split.items()} for name, known in _known(source.metadata).items()
        },
        "excluded": dict(source.excluded),
        "unreadable": len(source.unreadable),
        "notes": list(source.notes),
    }


def _rank_facts(source: Source, r: int, per_split: Mapping[str, np.ndarray], counts: Counts, drawn: np.ndarray) -> dict[str, Any]:
    known = source.labels[:, r] >= 0
    own = counts["training"][r]
    return {
        "classes": source.tree.sizes[r],
        "label_density": {split: _share(known[rows]) for split, rows in per_split.items()},
        "null": {split: int((~known[rows]).sum()) for split, rows in per_split.items()},
        "rows_per_class": {"smallest": int(own.min()), "median": float(np.median(own)), "largest": int(own.max())},
        "drawn_per_class": {"smallest": float(drawn.min()), "median": float(np.median(drawn)), "largest": float(drawn.max())},
        "classes_validated": int((counts["validation"][r] > 0).sum()),
    }


def _known(metadata: Metadata) -> dict[str, np.ndarray]:
    """Return True where known, bool [N], for each component and for single quantities of a component."""
    known = {f.name: ~np.isnan(getattr(metadata, f.name)) for f in fields(Metadata)}
    components = {"SPATIAL": known["latitude"] & known["longitude"], "TEMPORAL": known["day"], "ELEVATION": known["elevation"]}
    return components | {name: known[name] for name in ("uncertainty", "day", "hour")}


def _share(known: np.ndarray) -> float:
    return float(known.mean()) if len(known) else 0.0


def _counts_table(source: Source, lineages: Mapping[str, Sequence[str]], counts: Counts, drawn: Sequence[np.ndarray]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["rank", "class", "name", "lineage", *SPLITS, "drawn"])
    for r, (rank, ids) in enumerate(lineages.items()):
        rows = zip(source.tree.names[r], ids, *(counts[split][r].tolist() for split in SPLITS), drawn[r].tolist(), strict=True)
        table.writerows((rank, c, *row, f"{draws:.10g}") for c, (*row, draws) in enumerate(rows))
    return text.getvalue()
