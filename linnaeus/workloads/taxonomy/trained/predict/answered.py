"""`Answered`: all answers of `linnaeus predict`, as the writers of files read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.manifest.table import Column
    from linnaeus.workloads.taxonomy.trained.predict.prediction_journal import Row
    from linnaeus.workloads.taxonomy.tree import TaxonomyTree

KINDS = ("blank", "human", "vehicle", "unknown")  # classes of camera traps that are not animals: the name is that of every rank


@dataclass(frozen=True)
class Answered:
    """Predictions of N photographs, with their model and their manifest. The rows can be read once."""

    rows: Iterator[Row]
    tree: TaxonomyTree
    head: Mapping[str, Any]  # model, sha256 and taxa
    classifier: str  # name of the model, for tables of several classifiers
    started: str  # time of the first start of the command, such as 2026-05-01T16:10:00Z
    columns: Mapping[str, Column] = field(default_factory=dict)  # of the manifest, by the name in `Format.columns`

    @cached_property
    def nodes(self) -> dict[tuple[str, str, str | None], int]:
        """Return (rank, lineage, key) -> node of the tree."""
        found, node = {}, 0
        for r, rank in enumerate(self.tree.ranks):
            keys = self.tree.keys[r] if self.tree.keys else (None,) * self.tree.sizes[r]
            for lineage, key in zip(self.tree.lineage_ids(rank), keys, strict=True):
                found[rank, lineage, key] = node
                node += 1
        return found

    def node(self, rank: str, taxon: Mapping[str, Any]) -> int:
        """Return the node of a taxon of a row."""
        return self.nodes[rank, taxon["lineage"], taxon.get("key")]

    def names(self, node: int) -> dict[str, str]:
        """Return rank -> name for a node and those above it, coarse to fine."""
        tree = self.tree
        return {tree.ranks[r]: tree.names[r][c] for r, c in enumerate(tree.paths[node].tolist()) if c >= 0}

    def cell(self, column: str, row: int) -> str:
        """Return a cell of the manifest, "" if it does not have the column."""
        found = self.columns.get(column)
        return "" if found is None else found.values[found.codes[row]]


def answer_of(row: Row) -> dict[str, Any] | None:
    """Return the answer for a photograph: rank, name, lineage, probability and perhaps key. None if there is no taxon.

    It is the rolled-up answer of a calibrated model, otherwise the finest taxon of the path."""
    if row["calibrated"]:
        taxon = row["answer"]
        return None if taxon is None else {**taxon, "probability": probability(taxon)}
    if not row["path"]:
        return None
    rank, taxon = list(row["path"].items())[-1]
    return {"rank": rank, **taxon, "probability": probability(taxon)}


def probability(taxon: Mapping[str, Any]) -> float:
    """Return the probability of a taxon, at most 1: the sum of a softmax in float32 can be 1 + 1e-7, which schemas refuse."""
    return min(float(taxon["probability"]), 1.0)


def kind_of(names: Mapping[str, str]) -> str:
    """Return the kind of a taxon of these `Answered.names`: one of `KINDS`, or animal."""
    distinct = set(names.values())
    return distinct.pop() if len(distinct) == 1 and distinct <= set(KINDS) else "animal"


def open_text(path: Path) -> IO[str]:
    """Open a file for text in UTF-8. A byte of a file name that is not UTF-8 is written as `\\udcXX`, which is its form in JSON."""
    return open(path, "w", encoding="utf-8", errors="backslashreplace", newline="")
