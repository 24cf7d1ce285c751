"""Write the section of the model card with the clades (taxa with all taxa below them) in which the model is least often right."""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.trained_models import validation_folder

FEWEST = 10  # validation photographs of a clade that is listed
MOST = 5  # clades in the list


def validated_classes(run: Path, source: str) -> list[dict[str, str]]:
    """Return a row for each class from the validation of a run at a checkpoint; [] if its step was not validated. `source`: path of the
    checkpoint, as for `validation_folder`."""
    folder = validation_folder(run, source)
    if folder is None or not (folder / "val-classes.csv").is_file():
        return []
    with open(folder / "val-classes.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def weak_clades(tree: TaxonomyTree, classes: Sequence[Mapping[str, str]]) -> str:
    """Return a section in Markdown with the clades whose share of right answers at the finest rank is lowest, and below that of all
    photographs. Return "" if there are none.

    The clades are of the finest rank, above that of the answers, at which clades of `FEWEST` or more labelled validation photographs have
    half of all of them. `classes`: result of `validated_classes`."""
    finest = len(tree.ranks) - 1
    own = [row for row in classes if row["rank"] == tree.ranks[finest]]
    if len(own) != tree.sizes[finest]:
        return ""
    count, right = (np.array([int(row[name]) for row in own]) for name in ("count", "right"))
    for rank in range(finest - 1, -1, -1) if finest else [0]:
        above = tree.ancestors(finest, np.arange(len(own)), rank)
        total, hits = (np.bincount(above[above >= 0], values[above >= 0], tree.sizes[rank]) for values in (count, right))
        listed = np.flatnonzero(total >= FEWEST)
        if len(listed) >= 2 and 2 * total[listed].sum() >= count.sum():
            share = hits[listed] / total[listed]
            order = [i for i in np.lexsort((-total[listed], share)) if share[i] < right.sum() / count.sum()][:MOST]
            rows = [(tree.names[rank][listed[i]], int(total[listed[i]]), 100 * share[i]) for i in order]
            return _section(tree.ranks[rank], tree.ranks[finest], rows) if rows else ""
    return ""


def _section(rank: str, finest: str, rows: Sequence[tuple[str, int, float]]) -> str:
    lines = "".join(f"\n| {escaped_markdown(name)} | {count:,} | {share:.1f} |" for name, count, share in rows)
    about = f"Lowest shares of right {finest} on the validation photographs of the run, for each {rank} with {FEWEST} or more of them."
    return f"## Weak taxa\n\n{about}\n\n| {rank} | photographs | {finest} right, % |\n|---|---:|---:|{lines}"


def escaped_markdown(text: str) -> str:
    """Return `text` with the characters escaped that have a meaning in Markdown, in its tables, or in HTML."""
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", html.escape(text, quote=False))
