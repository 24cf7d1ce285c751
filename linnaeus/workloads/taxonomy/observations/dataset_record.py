"""Write files that describe the data of a run: numbers of rows, shares of labels and metadata, class indices and the tree.

dataset.json         rows, share of labels and nulls per rank, share of known metadata per component, excluded rows by reason, fingerprint
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
from linnaeus.workloads.taxonomy.observations.left_out import FILE_NAME, LeftOut
from linnaeus.workloads.taxonomy.observations.source import TRAIN, VALIDATION, Metadata, Source

SPLITS = {"training": TRAIN, "validation": VALIDATION}
Counts = dict[str, list[np.ndarray]]  # split -> rows per class, int64 [C_r] per rank


def process_and_save_dataset_metadata(source: Source, directory: Path | str, draws: np.ndarray | None = None) -> None:
    """Write dataset.json, class_indices.json, class_counts.csv, taxonomy.json and, if rows are left out, left_out.csv into `directory`.

    Each file is written atomically. The directory is created if it does not exist.

    `draws`: float64 [N], mean number of times that each training row is drawn per epoch; None: each row is drawn once."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tree = source.tree
    counts = _class_counts(source)
    drawn = counts["training"] if draws is None else _class_draws(source, draws)
    lineages = {rank: tree.lineage_ids(rank) for rank in tree.ranks}
    indices = {rank: {lineage: c for c, lineage in enumerate(ids)} for rank, ids in lineages.items()}
    if source.excluded:
        LeftOut(source.excluded).write(directory / FILE_NAME)
    write_atomic(directory / "taxonomy.json", to_json(tree.to_dict(), None))
    write_atomic(directory / "class_indices.json", to_json(indices))
    write_atomic(directory / "class_counts.csv", _counts_table(source, lineages, counts, drawn))
    write_atomic(directory / "dataset.json", to_json(_facts(source, counts, drawn)))


def _class_counts(source: Source) -> Counts:
    """Return the number of rows of each class: split -> per rank [C_r]."""
    counts: Counts = {split: [] for split in SPLITS}
    for r, size in enumerate(source.tree.sizes):
        number = source.split * np.int64(size + 1) + source.labels[:, r] + 1  # 0: a missing label of a training row
        of_splits = np.bincount(number, minlength=len(SPLITS) * (size + 1)).reshape(len(SPLITS), size + 1)
        for split, side in SPLITS.items():
            counts[split].append(of_splits[side, 1:])
    return counts


def _class_draws(source: Source, draws: np.ndarray) -> list[np.ndarray]:
    """Return the sum of `draws` over the training rows of each class, per rank [C_r]. `draws`: float64 [N], draws of each training row per
    epoch."""
    rows = source.split == TRAIN
    sums = [np.bincount(source.labels[rows, r] + 1, draws, minlength=size + 1)[1:] for r, size in enumerate(source.tree.sizes)]
    return [own.round(3) for own in sums]


def _facts(source: Source, counts: Counts, drawn: Sequence[np.ndarray]) -> dict[str, Any]:
    per_split = {split: source.split == side for split, side in SPLITS.items()}
    return {
        "version": 1,
        "fingerprint": source.fingerprint,
        "taxonomy_fingerprint": source.tree.fingerprint(),
        "rows": {split: int(rows.sum()) for split, rows in per_split.items()},
        "groups": None if source.group is None else {split: len(np.unique(source.group[rows])) for split, rows in per_split.items()},
        "ranks": {rank: _rank_facts(source, r, counts, drawn[r]) for r, rank in enumerate(source.tree.ranks)},
        "metadata": {
            name: {split: _share(known[rows]) for split, rows in per_split.items()}
            for name, known in known_metadata(source.metadata).items()
        },
        "excluded": dict(source.excluded),
        "unreadable": len(source.unreadable),
        "notes": list(source.notes),
    }


def _rank_facts(source: Source, r: int, counts: Counts, drawn: np.ndarray) -> dict[str, Any]:
    rows = {split: int((source.split == side).sum()) for split, side in SPLITS.items()}
    known = {split: int(own[r].sum()) for split, own in counts.items()}
    own = counts["training"][r]
    return {
        "classes": source.tree.sizes[r],
        "label_density": {split: known[split] / count if count else 0.0 for split, count in rows.items()},
        "null": {split: count - known[split] for split, count in rows.items()},
        "rows_per_class": {"smallest": int(own.min()), "median": float(np.median(own)), "largest": int(own.max())},
        "drawn_per_class": {"smallest": float(drawn.min()), "median": float(np.median(drawn)), "largest": float(drawn.max())},
        "classes_validated": int((counts["validation"][r] > 0).sum()),
    }


def known_metadata(metadata: Metadata) -> dict[str, np.ndarray]:
    """Return name -> bool [N], True where the value is known. The names are the metadata components and the quantities uncertainty, day and
    hour."""
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
