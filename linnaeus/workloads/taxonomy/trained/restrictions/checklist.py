"""Read a checklist: a list of the taxa to which predictions are restricted, such as the species list of a GBIF download or a file of names.

These columns of a table are read; case, spaces and punctuation of the header are ignored:

    ranks           the ranks of the model, such as family, genus, species
    rank            taxonRank, rank
    name            canonicalName, scientificName, acceptedScientificName, scientific name, taxon name, taxon, name, species

A file without such a header is a list of names: each line is a name, or the names are in one column, whichever has more taxa of the
model."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, counted, quoted
from linnaeus.workloads.taxonomy.manifest.columns import plain_name
from linnaeus.workloads.taxonomy.manifest.labels.ranks import DEFAULT_RANKS, RANK_ORDER
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import clean_name, is_null
from linnaeus.workloads.taxonomy.manifest.tables.table import Table, read_table
from linnaeus.workloads.taxonomy.trained.restrictions.restriction import Listed, Restriction, Row, of_rows
from linnaeus.workloads.taxonomy.trained.restrictions.taxon_index import TaxonIndex, spaced
from linnaeus.workloads.taxonomy.trained.restrictions.zipped_table import unpacked_table
from linnaeus.workloads.taxonomy.tree.lineages import distinct_lineages, lineage_text

NAMES = ("canonicalname", "scientificname", "acceptedscientificname", "taxonname", "taxon", "name", "species")
RANKS = ("taxonrank", "rank")
HEAD, LARGEST = 1 << 20, 64 << 20  # most bytes that are read: to find the header; of a list without a header
DELIMITERS = ",\t;"


def read_checklist(path: Path, index: TaxonIndex) -> tuple[Restriction, list[str]]:
    """Return the restriction to the taxa that a file lists, and lines of text about rows that were not used.

    Raise `ConfigError` for a file that cannot be read, and for a file that lists no taxon of the model."""
    source = f"--checklist {path}"
    check_file(path, "--checklist", "a file of names")
    with unpacked_table(path, "--checklist") as table:
        rows, notes = _rows(table, index)
    return of_rows(index, rows, source), notes


def _rows(path: Path, index: TaxonIndex) -> tuple[list[Row], list[str]]:
    """Return the rows of a table or of a list of names, and lines of text about rows that are not used."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return _named_rows(path, index)
    lines = _lines(path, HEAD)
    delimiter = max(DELIMITERS, key=lines[0].count) if lines else ","
    header = lines[0].split(delimiter) if lines else []
    if len(header) > 1 and _columns(header, index):
        return _named_rows(path, index)
    lines = _lines(path, LARGEST)[bool(_columns(header, index)) :]
    return _line_rows(lines, delimiter, index), []


def check_file(path: Path, key: str, wanted: str) -> None:
    """Raise `ConfigError` if a file does not exist. `key`: start of the message. `wanted`: text for the message, such as "a file of
    names"."""
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(f"{key}: {quoted(str(path), 200)} {problem}; give {wanted}")


def _lines(path: Path, most: int) -> list[str]:
    """Return the lines that are not blank from the first `most` bytes of a text file, which may be a .gz file.

    If the file is longer than `most` bytes, ignore the rest; but raise `ConfigError` if `most` is `LARGEST`. Also raise `ConfigError` if
    the file cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"--checklist: {quoted(str(path), 200)} cannot be read ({error})") from None
    if len(data) > most and most == LARGEST:
        raise ConfigError(
            f"--checklist: {quoted(str(path), 200)} is larger than {LARGEST >> 20} MB and has no header with a column of names"
        )
    utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = data.decode("utf-16" if utf16 else "utf-8-sig", "ignore" if len(data) > most else "strict")
    except UnicodeDecodeError:
        text = data.decode("windows-1252", "replace")
    return [line for line in text.splitlines() if line.strip()]


def _columns(header: Sequence[str], index: TaxonIndex, more: Sequence[str] = ()) -> dict[str, str]:
    """Return the columns to read, as normalised name (`plain_name`) -> name in `header`; {} if no column has names of taxa.

    `more`: normalised names of further columns to read."""
    known = {*NAMES, *map(plain_name, index.tree.ranks)}
    plain = {plain_name(name.strip().strip('"')): name.strip().strip('"') for name in reversed(header)}
    if not known & set(plain):
        return {}
    return {name: plain[name] for name in (*RANKS, *more, *sorted({*known, *DEFAULT_RANKS})) if name in plain}


def _named_rows(path: Path, index: TaxonIndex) -> tuple[list[Row], list[str]]:
    """Return the rows of a checklist that is a table with a header, and lines of text about rows that are not used."""
    rows, notes = table_rows(path, index, "--checklist")
    return [row for _, row in rows], notes


def table_rows(path: Path, index: TaxonIndex, key: str, more: Sequence[str] = ()) -> tuple[list[tuple[Mapping[str, str], Row]], list[str]]:
    """Return the distinct rows of a table with a header that have a name, each as (normalised column name -> cell, `Row`), and lines of
    text about rows that are not used.

    `key`: start of error messages. `more`: normalised names of further columns to read, where the table has them; in these only "" is null,
    since NA may be a name, such as the country code of Namibia. Raise `ConfigError` for a
    table that cannot be read, and for one without a column of names."""
    columns: dict[str, str] = {}

    def choose(header: Sequence[str]) -> list[str]:
        columns.update(_columns(header, index, more))
        if not columns:
            raise ConfigError(f"{key}: {quoted(str(path), 200)} has no column of names; name one scientificName")
        return [*columns.values()]

    table = read_table(path, choose, key=key)
    notes = [*table.notes, *(f"{counted(count, 'row')} of {path.name} left out: {reason}" for reason, count in table.excluded.items())]
    lineage = [rank for rank in RANK_ORDER if rank in index.tree.ranks or (rank in DEFAULT_RANKS and rank in columns)]
    rows = [(cells, _row(cells, index, lineage)) for cells in _distinct(table, columns, more)]
    if unnamed := sum(not row.names for _, row in rows):
        notes.append(f"{counted(unnamed, 'row')} of {path.name} left out: no name")
    return [(cells, row) for cells, row in rows if row.names], notes


def _distinct(table: Table, columns: dict[str, str], more: Sequence[str]) -> list[dict[str, str]]:
    """Return the distinct rows of a table, each as normalised column name -> cell; null cells are left out.

    `columns`: normalised name -> name in the table. `more`: normalised names of the columns in which only "" is null."""
    values = {plain: table.columns[name] for plain, name in columns.items()}
    codes, _ = distinct_lineages(np.stack([column.codes for column in values.values()], 1))
    rows = []
    for row in codes.tolist():
        cells = {plain: spaced(column.values[code]) for (plain, column), code in zip(values.items(), row, strict=True)}
        rows.append({plain: cell for plain, cell in cells.items() if cell and (plain in more or not is_null(cell))})
    return rows


def _row(cells: dict[str, str], index: TaxonIndex, lineage: Sequence[str]) -> Row:
    """Return the names by which a row of a table is matched with a taxon of the model. The first name that the model has is used.

    The order is: the cell of the model's finest rank; the cell of the rank that `taxonRank` states; the cells of name columns. A row with
    neither a stated rank nor a name column uses its finest filled rank. In other rows coarser ranks are not used: if the model lacks a
    species, its genus would allow all species of the genus. `lineage`: ranks of the model and of the table, coarse to fine."""
    ranks = [plain_name(rank) for rank in index.tree.ranks]
    own = next((cells[name].lower() for name in RANKS if name in cells), None)
    texts = [cells[name] for name in NAMES if name in cells and name not in ranks]
    filled = [r for r, rank in enumerate(ranks) if clean_name(cells.get(rank, ""))]
    rank = ranks.index(own) if own in ranks else None
    further = [rank] if rank is not None else filled[-1:] if own is None and not texts else []
    coarser = {index.tree.ranks[r]: cells[ranks[r]] for r in filled}
    names = []
    for r in [len(ranks) - 1, *further]:
        if r in filled:
            above = lineage[: lineage.index(ranks[r]) + 1] if ranks[r] in lineage else ranks[: r + 1]
            names.append(Listed(cells[ranks[r]], r, lineage_text(cells.get(one, "") for one in above), coarser))
    names += [Listed(text, rank, coarser=coarser) for text in texts]
    return Row(next((text for text in (*texts, *(name.name for name in names))), ""), tuple(names))


def _line_rows(lines: Sequence[str], delimiter: str, index: TaxonIndex) -> list[Row]:
    """Return a row for each line of a list of names. The name is the whole line, or a cell in one column: whichever gives most taxa of the
    model."""
    whole = [spaced(line.strip().strip('"')) for line in lines]
    cells = [next(csv.reader([line], delimiter=delimiter), []) for line in lines]
    candidates = [whole] + [[spaced(row[i]) if i < len(row) else "" for row in cells] for i in range(max(map(len, cells), default=0))]
    best = max(candidates, key=lambda column: sum(len(index.nodes(name)) == 1 for name in column))
    return [Row(name or text, (Listed(name),) if name else ()) for name, text in zip(best, whole, strict=True)]
