"""Define `Inspected`, the records of a source as arrays, which the checks of the doctor read, and `Finding`, a defect and the rows that
have it.

A check is a function `check(records: Inspected) -> list[Finding]`. `checks.CHECKS` lists the checks.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.images.image_files import ImageFiles
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.table import Table
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # error: wrong; warning: probably wrong; note: for information


@dataclass(frozen=True, eq=False)
class Finding:
    """Kind of defect, described in plain words, and the rows that have it. A finding about the whole source has no rows."""

    check: str  # short name of the defect, such as "near duplicates"
    severity: Severity
    rows: np.ndarray  # int64 [K]: rows of `Inspected`, each once
    text: str  # one line
    details: tuple[str, ...] = ()  # one line for each of the K rows; (): `text` applies to all of them
    beside: np.ndarray | None = None  # int64 [K]: for each of the K rows, the row whose photograph is shown beside it
    empty: tuple[str, ...] = ()  # columns whose cells are empty in these rows of the corrected manifest
    leave_out: bool = False  # True: the corrected manifest does not contain these rows


class Places(NamedTuple):
    """K points on the Earth."""

    name: list[str]
    latitude: np.ndarray  # float64 [K], degrees north
    longitude: np.ndarray  # float64 [K], degrees east
    kind: list[str]  # a key of `known_places.KINDS` for each


@dataclass(frozen=True, kw_only=True, eq=False)
class Inspected:
    """N rows of a source as they are written: cells, labels, files, places, dates. Rows that training leaves out are included.

    Numbers are NaN where a cell is empty or unreadable."""

    config: ManifestConfig  # settings of the source, with the names of its columns
    table: Table  # [N]: the columns that were read
    rank_columns: dict[str, str]  # rank -> column, coarse to fine; empty if the labels are ids in a table of taxa
    tree: TaxonomyTree
    labels: np.ndarray  # int64 [N, R] at `tree.ranks`, -1 for null and in rows that are left out
    files: ImageFiles  # of the N rows; `files.names` are the names of the photographs
    sizes: np.ndarray  # int64 [N], bytes; 0 or less: the file cannot be used, a key of `image_files.REASONS`
    split: np.ndarray | None  # int8 [N]: TRAIN, VALIDATION, LEFT_OUT (test) or NO_SIDE; None if no split is given
    latitude: np.ndarray  # float64 [N], degrees north
    longitude: np.ndarray  # float64 [N], degrees east
    uncertainty: np.ndarray  # float64 [N], metres
    elevation: np.ndarray  # float64 [N], metres
    metadata: Metadata  # of the N rows, as training reads them: without impossible values
    date: np.ndarray  # datetime64[D] [N], NaT where unknown; the first day of an interval
    hour: np.ndarray  # float64 [N], hours of the day
    groups: dict[str, Column]  # columns of observations, observers, sites and the like
    ids: dict[str, Column]  # columns that should contain a different value in each row
    places: Places  # to which records without an exact place are georeferenced
    problems: list[str] = field(default_factory=list)  # messages of mistakes with which training would not start
    excluded: dict[str, int] = field(default_factory=dict)  # reason -> number of rows that the reader of the source has left out
    left_out: dict[str, np.ndarray] = field(default_factory=dict)  # reason -> rows (int64) that training leaves out
    missing: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)  # role of a column, reason -> rows (int64) set to missing

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def used(self) -> np.ndarray:
        """Return bool [N], False for the rows that training leaves out. Copies of such rows are not copies of anything in training."""
        used = np.ones(len(self), dtype=bool)
        for rows in self.left_out.values():
            used[rows] = False
        return used

    @cached_property
    def species(self) -> np.ndarray:
        """Return the label of each row at the rank species, int64 [N], -1 for none. Without a rank of this name it is the finest rank."""
        ranks = [rank.lower() for rank in self.tree.ranks]
        if not ranks:
            return np.full(len(self), -1, dtype=np.int64)
        return self.labels[:, ranks.index("species") if "species" in ranks else -1]

    @cached_property
    def row_numbers(self) -> np.ndarray:
        """Return the number by which reports name each row, int64 [N]: that in its file, from 1, where the source is one table."""
        return self.table.row_numbers()


def found(check: str, severity: Severity, rows: np.ndarray, text: str, **remedy: Any) -> list[Finding]:
    """Return a list with one finding about `rows`, bool [N] or int64 [K]; [] if `rows` selects no row. `remedy`: other fields of
    `Finding`."""
    if rows.dtype == bool:
        rows = np.flatnonzero(rows)
    return [Finding(check, severity, rows, text, **remedy)] if len(rows) else []


def cells_text(records: Inspected, finding: Finding, row: int) -> str:
    """Return the cells of row number `row` in the columns `finding.empty`, such as `latitude=0, longitude=0`; "" if `finding.empty` is
    ()."""
    columns = [(name, records.table.columns[name]) for name in finding.empty]
    return ", ".join(f"{name}={column.values[column.codes[row]]}" for name, column in columns)
