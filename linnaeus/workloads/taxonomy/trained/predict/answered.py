"""`Answered`: all predictions of a `linnaeus predict` command. Each output format is written from an `Answered`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.manifest.tables.table import Column
    from linnaeus.workloads.taxonomy.trained.batches.journal import Row
    from linnaeus.workloads.taxonomy.trained.predict.sequences import Sequences
    from linnaeus.workloads.taxonomy.tree import TaxonomyTree

UNCALIBRATED = "not calibrated"
KINDS = ("blank", "human", "vehicle", "unknown")  # classes of camera traps that are not animals; all their ranks have the same name


@dataclass(frozen=True)
class Answered:
    """Predictions of N photographs, with a description of the model and with columns of the manifest. `rows` can be iterated once."""

    rows: Iterator[Row]
    tree: TaxonomyTree
    head: Mapping[str, Any]  # description of the model: model (path of the weights), sha256 and taxa (hash of the tree)
    classifier: str  # name of the model, for tables of several classifiers
    started: str  # time of the first start of the command, such as 2026-05-01T16:10:00Z
    columns: Mapping[str, Column] = field(default_factory=dict)  # name in `Format.columns` -> column of the manifest
    sequences: Sequences | None = None  # a row is a sequence; None: a photograph
    calibrated: bool = False  # the model is calibrated, so that the answers have a stated precision

    def photographs(self, row: int) -> range:
        """Return the positions of the photographs of row `row`: one photograph, or, if rows are sequences, all photographs of the
        sequence."""
        return range(row, row + 1) if self.sequences is None else self.sequences.photographs(row)

    @property
    def described(self) -> str:
        """Return the name of the model, and that it is not calibrated, for formats without a place for remarks."""
        return self.classifier if self.calibrated else f"{self.classifier} ({UNCALIBRATED})"

    @cached_property
    def nodes(self) -> dict[tuple[str, str, str | None], int]:
        """Return a dict from (rank, lineage, key) of each taxon to its node in the tree."""
        found, node = {}, 0
        for r, rank in enumerate(self.tree.ranks):
            keys = self.tree.keys[r] if self.tree.keys else (None,) * self.tree.sizes[r]
            for lineage, key in zip(self.tree.lineage_ids(rank), keys, strict=True):
                found[rank, lineage, key] = node
                node += 1
        return found

    def node(self, rank: str, taxon: Mapping[str, Any]) -> int:
        """Return the node of `taxon` in the tree. `taxon`: entry of a row, a dict with `lineage` and, if taxa have keys, `key`."""
        return self.nodes[rank, taxon["lineage"], taxon.get("key")]

    def names(self, node: int) -> dict[str, str]:
        """Return a dict from rank to name for a node and its ancestors, coarse to fine."""
        tree = self.tree
        return {tree.ranks[r]: tree.names[r][c] for r, c in enumerate(tree.paths[node].tolist()) if c >= 0}

    def cell(self, column: str, row: int) -> str:
        """Return the cell of the manifest in a column, for the photograph at position `row`; "" if the manifest does not have the
        column."""
        found = self.columns.get(column)
        return "" if found is None else found.values[found.codes[row]]


def answer_of(row: Row) -> dict[str, Any] | None:
    """Return the answer for a photograph as a dict of rank, name, lineage, probability and, if taxa have keys, key; None if there is no
    answer.

    For a calibrated model this is the rolled-up answer (the finest taxon that is confident enough). Without calibration it is the finest
    taxon of the predicted path."""
    if row["calibrated"]:
        taxon = row["answer"]
        return None if taxon is None else {**taxon, "probability": probability(taxon)}
    if not row["path"]:
        return None
    rank, taxon = list(row["path"].items())[-1]
    return {"rank": rank, **taxon, "probability": probability(taxon)}


def probability(taxon: Mapping[str, Any]) -> float:
    """Return the probability of a taxon, at most 1. In float32 a probability can be 1 + 1e-7, which the schemas of some formats refuse."""
    return min(float(taxon["probability"]), 1.0)


def kind_of(names: Mapping[str, str]) -> str:
    """Return the kind of a taxon: "blank", "human", "vehicle" or "unknown" if all ranks have this name, otherwise "animal".

    `names`: rank -> name of the taxon and its ancestors, as `Answered.names` returns."""
    distinct = set(names.values())
    return distinct.pop() if len(distinct) == 1 and distinct <= set(KINDS) else "animal"


def open_text(path: Path) -> IO[str]:
    """Open a text file to write UTF-8. A byte of a file name that is not UTF-8 is written as `\\udcXX`, as in JSON."""
    return open(path, "w", encoding="utf-8", errors="backslashreplace", newline="")
