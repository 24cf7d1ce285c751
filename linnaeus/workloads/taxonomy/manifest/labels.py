"""Where a manifest's labels come from: columns of names, one per taxonomic rank, or ids in a table of taxa (`data.taxonomy`).

An id may be of any rank: one of a genus labels the genus and what is coarser, and the species is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.manifest.cleaning import is_null, labelled, read_codes
from linnaeus.workloads.taxonomy.manifest.columns import Columns
from linnaeus.workloads.taxonomy.manifest.table import Table
from linnaeus.workloads.taxonomy.manifest.taxa import Taxa
from linnaeus.workloads.taxonomy.manifest.taxon_ranks import USUAL, tree_ranks
from linnaeus.workloads.taxonomy.manifest.taxon_table import read_taxa


class RowLabels(NamedTuple):
    """What `TaxonomyTree.from_codes` takes, and notes."""

    ranks: tuple[str, ...]
    names: list[np.ndarray]
    codes: np.ndarray
    keys: list[np.ndarray]
    notes: list[str]


class Labels(Protocol):
    def lacking(self, table: Table, takes_part: np.ndarray) -> dict[str, np.ndarray]:
        """Reason -> bool [N]: the rows that have no label, among those that take part, bool [N]. Raises ConfigError for too many."""
        ...

    def read(self, table: Table) -> RowLabels:
        """The labels of rows that lack none."""
        ...


def labels_of(columns: Columns, config: ManifestConfig) -> Labels:
    """Reads the table of taxa, if there is one. Raises ConfigError where it cannot be read, or names no rank that can be used."""
    if columns.taxon is None:
        return NameLabels(columns)
    path = Path(str(config.taxonomy)).expanduser()
    taxa = read_taxa(path)
    return IdLabels(taxa, path.name, columns.taxon, tree_ranks(taxa.ranks, config.ranks), config)


@dataclass(frozen=True)
class NameLabels:
    """Names at each rank."""

    columns: Columns

    def lacking(self, table: Table, takes_part: np.ndarray) -> dict[str, np.ndarray]:
        return {"no label at any rank": takes_part & ~labelled(table, self.columns)}

    def read(self, table: Table) -> RowLabels:
        names, codes, notes = read_codes(table, self.columns)
        return RowLabels(tuple(self.columns.ranks), names, codes, [], notes)


@dataclass(frozen=True, eq=False)
class IdLabels:
    """Ids in a table of taxa."""

    taxa: Taxa
    file: str
    column: str
    ranks: tuple[str, ...]
    config: ManifestConfig

    def lacking(self, table: Table, takes_part: np.ndarray) -> dict[str, np.ndarray]:
        column = table.columns[self.column]
        null = np.array([is_null(v) for v in column.values], dtype=bool)[column.codes]
        unknown = (self._taxon(table) < 0) & ~null & takes_part
        self._check_unknown(column.text()[unknown], int(takes_part.sum()))
        return {f"no {self.column!r}": takes_part & null, self._unknown_reason(column.text()[unknown]): unknown}

    def read(self, table: Table) -> RowLabels:
        given = self._taxon(table)
        taxon = self.taxa.accepted[given]
        distinct, row = np.unique(taxon, return_inverse=True)
        below = self.taxa.rows_below(distinct, np.bincount(row))
        self._check_conflicts(below)
        placed = self.taxa.place(distinct, below, self.ranks)
        notes = [*self.taxa.notes, f"{len(self.taxa.ids)} taxa, {np.count_nonzero(below)} of them used"]
        notes += [line for c in (*self.taxa.conflicts, *placed.conflicts) if (line := c.line(below))]
        synonyms = int((given != taxon).sum())
        notes += [f"{synonyms} rows name a synonym and are given its accepted taxon"] if synonyms else []
        notes += self._depths(placed.codes[row]) + self._other_ranks(below)
        return RowLabels(self.ranks, placed.names, placed.codes[row], placed.ids, [f"{self.file}: {note}" for note in notes])

    def _taxon(self, table: Table) -> np.ndarray:
        """int64 [N]: number of each row's taxon; -1 for null and unknown ids."""
        column = table.columns[self.column]
        return np.array([self.taxa.number.get(v, -1) for v in column.values], dtype=np.int64)[column.codes]

    def _check_unknown(self, unknown: np.ndarray, rows: int) -> None:
        if len(unknown) <= self.config.max_bad_fraction * rows:
            return
        whole = str(unknown[0]).removesuffix(".0")
        like = f"{whole!r} is" if whole in self.taxa.number else f"there are {', '.join(map(repr, self.taxa.ids[:3]))}, ..."
        raise ConfigError(
            f"data.max_bad_fraction: {len(unknown)} of {rows} rows have a {self.column!r} that is not in the table of taxa {self.file!r}, "
            f"more than {self.config.max_bad_fraction:g}: {_counted(unknown)}; {like}; check data.taxon_column and data.taxonomy"
        )

    def _unknown_reason(self, unknown: np.ndarray) -> str:
        return f"a {self.column!r} that is not in the table of taxa ({_counted(unknown)})"

    def _check_conflicts(self, below: np.ndarray) -> None:
        for conflict in self.taxa.conflicts:
            if conflict.fix is not None and (line := conflict.line(below, used=True)):
                raise ConfigError(f"data.taxonomy: {self.file!r} has {line}; {conflict.fix}")

    def _depths(self, codes: np.ndarray) -> list[str]:
        """How many rows are labelled down to which rank, where not all are labelled down to the same."""
        finest = np.where(codes >= 0, np.arange(codes.shape[1]), -1).max(axis=1)
        count = np.bincount(finest + 1, minlength=len(self.ranks) + 1)
        down = [f"{rank} {n}" for rank, n in zip(("none", *self.ranks), count.tolist(), strict=True) if n]
        return [f"rows labelled down to {', '.join(down)}"] if len(down) > 1 else []

    def _other_ranks(self, below: np.ndarray) -> list[str]:
        if self.config.ranks is not None:
            return []
        used = np.bincount(self.taxa.rank[below > 0], minlength=len(self.taxa.ranks))
        left = [(rank, int(n)) for rank, n in zip(self.taxa.ranks, used, strict=True) if n and rank and rank not in self.ranks]
        shown = ", ".join(f"{rank} ({n} taxa)" for rank, n in sorted(left, key=lambda other: -other[1])[:8])
        return [f"ranks other than {', '.join(USUAL)} are not predicted unless data.ranks names them: {shown}"] if left else []


def _counted(values: np.ndarray) -> str:
    distinct, count = np.unique(values, return_counts=True)
    order = np.argsort(-count, kind="stable")
    shown = ", ".join(f"{str(distinct[i])!r} ({count[i]} rows)" for i in order[:3])
    return shown + (f" and {len(distinct) - 3} more" if len(distinct) > 3 else "")
