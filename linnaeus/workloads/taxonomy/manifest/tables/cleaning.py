"""Recognise null cells, clean names of taxa, and count the cells of a manifest that are set to missing (`Tally`)."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, shorten
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names, first_places, strings
from linnaeus.workloads.taxonomy.arrays.text_lines import TextLines
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.table import Table
from linnaeus.workloads.taxonomy.tree.lineages import distinct_lineages, fill_holes, number_column

_NULLS = "- -- ? . na n/a #n/a nan null none nil nat <na> missing undefined unknown unidentified undetermined unassigned indet indet."
NULLS = {*_NULLS.split(), "", "not identified", "not determined", "incertae sedis", r"\n"}  # MySQL exports write \N
_FIRST = "".join(word[:1] + word[:1].upper() for word in NULLS) + "\n"
_MAY_BE_NULL = np.isin(np.arange(256), [ord(letter) for letter in _FIRST]) | (np.arange(256) > 127)  # first byte -> may be a null cell
_UNDETERMINED = re.compile(r".*\bs(?:p|pp)\.?$", re.IGNORECASE)  # "Quercus sp." is not the name of a species


class Tally:
    """Counter of the rows in which cells were changed: for each reason the number of rows and the name of the first row. `names`: [N],
    names of the rows."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.counts: dict[str, int] = {}
        self.first: dict[str, str] = {}

    def add(self, reason: str, rows: np.ndarray, emptied: str = "") -> None:
        """Count the rows where `rows`, bool [N], is True, under `reason`.

        `emptied`: role of the column whose cells are set to missing, such as "date"; "" if no cells are set to missing."""
        if rows.any():
            self.counts[reason] = self.counts.get(reason, 0) + int(rows.sum())
            self.first.setdefault(reason, str(self.names[int(np.argmax(rows))]))

    def refuse(self, role: str, error: ConfigError) -> None:
        """Raise `error`, because no value of the column with this role can be used."""
        raise error

    def notes(self) -> list[str]:
        """Return a line of text for each reason, with the number of rows and the name of the first row."""
        return [f"{reason}: {n} of {len(self.names)} rows, first {shorten(self.first[reason])}" for reason, n in self.counts.items()]


def is_null(cell: str) -> bool:
    """Return True if a cell is empty or a word for a missing value, such as "NA", in any case of letters."""
    return cell.lower() in NULLS


def null_values(values: Sequence[str]) -> np.ndarray:
    """Return bool [V], True for the values that are null (`is_null`). `TextLines` (strings stored as bytes) are decoded only where the
    first byte can begin a null value."""
    if not isinstance(values, TextLines):
        return np.array([is_null(value) for value in values], dtype=bool)
    null = np.zeros(len(values), dtype=bool)
    possible = np.flatnonzero(_MAY_BE_NULL[values.first_bytes()])
    null[possible] = [is_null(value) for value in values[possible]]
    return null


def value_numbers(column: Column) -> np.ndarray:
    """Return the index of each cell's value in `column.values`, int64 [N]; -1 for a null cell. Of equal values, which differed in spaces,
    the index of the first is returned."""
    values = column.values
    first = first_places(values if isinstance(values, TextLines) else strings(values))
    return np.where(null_values(values), -1, first)[column.codes]


def clean_name(cell: str) -> str:
    """Return the name of a taxon with single spaces, in Unicode normalisation form C; "" if the cell is null or undetermined, such as
    "Quercus sp."."""
    name = " ".join(unicodedata.normalize("NFC", cell).split())
    return "" if is_null(name) or _UNDETERMINED.match(name) else name


def has_label(table: Table, ranks: dict[str, str]) -> np.ndarray:
    """Return bool [N]: True where the row has the name of a taxon at some rank."""
    named = np.zeros(len(table), dtype=bool)
    for column in (table.columns[c] for c in ranks.values()):
        named |= np.array([clean_name(value) != "" for value in column.values], dtype=bool)[column.codes]
    return named


def read_codes(table: Table, ranks: dict[str, str], notes: list[str]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the sorted names of each rank, and the label of each row as an index into these names, int32 [N, R], -1 where missing.

    `ranks`: rank -> column, coarse to fine. A missing name between two known ranks is filled in from other rows of the same taxon. Lines
    for the user are appended to `notes`."""
    names, codes = [], np.full((len(table), len(ranks)), -1, dtype=np.int32)
    for r, column in enumerate(table.columns[c] for c in ranks.values()):
        own, number = number_column(np.array([clean_name(v) for v in column.values], dtype=str))
        names.append(own)
        codes[:, r] = number[column.codes]
    unnamed = zip(ranks, (codes < 0).sum(axis=0), strict=True)
    notes += [f"{rank}: {n} of {len(table)} rows without a name" for rank, n in unnamed if n]
    notes += [note for rank, values in zip(ranks, names, strict=True) for note in _case_notes(rank, values)]
    lineages, row_lineage = distinct_lineages(codes)
    filled = fill_holes(lineages)
    changed = int((filled != lineages).any(axis=1)[row_lineage].sum())
    if changed:
        notes.append(
            f"{counted(changed, 'row')} with a taxon but not all its ancestors; the others were filled in from rows of the same taxon"
        )
    return names, filled[row_lineage]


def _case_notes(rank: str, names: np.ndarray) -> list[str]:
    """Return a line about names that differ only in upper and lower case, with up to three examples; [] without such names."""
    _, inverse, count = np.unique([n.casefold() for n in names.tolist()], return_inverse=True, return_counts=True)
    alike = [names[inverse == i].tolist() for i in np.flatnonzero(count > 1)[:3]]
    return [f"{rank}: names that differ only in case are different taxa: {list_some([' / '.join(a) for a in alike])}"] if alike else []
