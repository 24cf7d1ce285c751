"""Read a CSV or Parquet table into dictionary-encoded columns (`Column`), without Python objects for the rows.

A CSV with unbalanced quotes is an error with the number of the line: an opening quote that is not closed would make the following lines
part of its cell.

The cells of a CSV may be separated by commas, tabs or semicolons (recognised in its header, which is the second line if the first is
Excel's `sep=;`). It may be a plain or a .gz file, in UTF-8 (with or without a byte order mark) or UTF-16 with a byte order mark; lines that
are not UTF-8 are read as windows-1252. In tab-separated tables, such as downloads from iNaturalist and GBIF, quotes have no meaning, since
names can contain quotes. Parquet needs pyarrow, which is imported only to read Parquet.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Literal, Protocol

import numpy as np

from linnaeus.errors import ConfigError, list_some, one_line, quoted
from linnaeus.reporting.formatting import shorten
from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.taxonomy.manifest.tables.column import CHUNK, Column, ColumnBuilder, from_arrow
from linnaeus.workloads.taxonomy.manifest.tables.mixed_encoding import Utf8Lines
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut

LONGEST_CELL = 1 << 20  # characters; real description columns exceed the csv module's default of 131072
LONGEST_LINE = 1 << 24  # characters; a compressed file of a few kilobytes can contain a line larger than the memory
LONGEST_VALUE = 4096  # characters of a cell that is used; no path and no name of a taxon is longer
SEPARATOR = re.compile(r'"?sep=.?"?', re.IGNORECASE)  # first line of a table for Excel: the separator of the cells
UNEVEN = "a different number of cells than the header"


@dataclass(frozen=True)
class Table:
    """Selected columns of a table of N rows."""

    columns: dict[str, Column]
    decimal_comma: bool = False  # True: numbers may be written 43,5, as in semicolon-separated tables
    excluded: LeftOut = field(default_factory=LeftOut)  # rows that are left out
    notes: tuple[str, ...] = ()  # lines for the user
    numbers: np.ndarray | None = None  # int64 [N]: number of each row in its file, from 1; None: 1 to N

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())).codes)

    def take(self, rows: np.ndarray) -> Table:
        """Return the table with only `rows`, int64 [M]."""
        columns = {name: Column(column.codes[rows], column.values) for name, column in self.columns.items()}
        return replace(self, columns=columns, numbers=self.row_numbers()[rows])

    def row_numbers(self) -> np.ndarray:
        """Return the number of each row in its file, from 1, int64 [N]."""
        return np.arange(1, len(self) + 1) if self.numbers is None else self.numbers


class TableFile(Protocol):
    """Table that is not a file on disk, such as a member of an archive. `str(table_file)` is its name in messages."""

    @property
    def name(self) -> str: ...

    @property
    def suffix(self) -> str: ...

    @property
    def size(self) -> int: ...  # bytes

    def open(self, mode: Literal["rb"]) -> IO[bytes]: ...


def read_table(
    path: Path | TableFile, choose: Callable[[Sequence[str]], Sequence[str]], key: str = "data.path", whole: bool = False
) -> Table:
    """Return the columns of a table that `choose` selects from its header.

    Raise `ConfigError` if the file cannot be read as a table or has no rows; with `whole` also for a row that cannot be used. `key`:
    configuration key of the path, for messages."""
    if isinstance(path, Path) and not os.path.isfile(path):  # unlike Path.is_file, False for a name that is too long
        problem = "is a folder" if os.path.isdir(path) else "is not a file" if os.path.exists(path) else "does not exist"
        if not path.is_absolute() and problem == "does not exist":
            problem += f" in the current folder, {quoted(os.getcwd(), 200)}"
        raise ConfigError(f"{key}: {quoted(str(path), 200)} {problem}; choose a CSV or Parquet {_kind(key)}")
    if isinstance(path, Path) and path.suffix.lower() in (".parquet", ".pq"):
        table = _read_parquet(path, choose, key)
    else:
        table = _read_text(path, choose, key)
    table = without_long_values(table, path.name)
    if len(table) == 0 or (whole and table.excluded):
        reasons = list_some([f"{reason} ({count})" for reason, count in table.excluded.items()])
        problem = "has a header but no rows; choose a file with rows"
        if reasons:
            rows = "rows that cannot be used" if len(table) else "no row that can be used"
            problem = f"has {rows}: {reasons}; a cell that contains the separator needs quotes"
        raise ConfigError(f"{key}: {quoted(str(path), 200)} {problem}")
    return table


def without_long_values(table: Table, name: str = "") -> Table:
    """Return the table without the rows that have a cell of more than `LONGEST_VALUE` characters.

    The rows left out are added to `excluded`: by their numbers in the file `name`, or, if `name` is "", by their cell in the column
    `path`."""
    long = np.zeros(len(table), dtype=bool)
    for column in table.columns.values():
        lengths = np.fromiter(map(len, column.values), dtype=np.int64, count=len(column.values))
        long |= (lengths > LONGEST_VALUE)[column.codes]
    if not long.any():
        return table
    reason = f"a cell of more than {LONGEST_VALUE} characters"
    short = {n: Column(c.codes, [v if len(v) <= LONGEST_VALUE else "" for v in c.values]) for n, c in table.columns.items()}
    excluded = LeftOut(table.excluded)
    if name:
        excluded.add_rows(reason, table.row_numbers()[long], name)
    else:
        excluded.add(reason, table.columns["path"].cells(long))
    return replace(table, columns=short, excluded=excluded).take(np.flatnonzero(~long))


def _kind(key: str) -> str:
    return "manifest" if key == "data.path" else "table"


def _read_text(path: Path | TableFile, choose: Callable[[Sequence[str]], Sequence[str]], key: str) -> Table:
    try:
        with path.open("rb") as stored, _unpacked(stored, path) as file:
            start = file.read(4)
        if start in (b"PK\x03\x04", b"\xd0\xcf\x11\xe0"):  # of .xlsx and .ods, and of .xls
            raise ConfigError(f"{key}: {quoted(str(path), 200)} is a workbook of a spreadsheet, or another archive; save the table as CSV")
        utf16 = start[:2] in (b"\xff\xfe", b"\xfe\xff")
        encoding = "utf-16" if utf16 else "utf-8-sig"
        for mixed in (False,) if utf16 else (False, True):
            with contextlib.suppress(UnicodeDecodeError):
                return _read_csv(path, encoding, mixed, choose, key)
    except (csv.Error, UnicodeError, OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{key}: {quoted(str(path), 200)} cannot be read as CSV: {error}") from error
    raise ConfigError(f"{key}: {quoted(str(path), 200)} is not text in UTF-8, UTF-16 or windows-1252; save it as UTF-8")


def _unpacked(stored: IO[bytes], path: Path | TableFile) -> IO[bytes]:
    """Return a file object with the content of the opened file `path`, decompressed if its name ends in .gz."""
    return gzip.open(stored) if path.suffix == ".gz" else stored  # type: ignore[return-value]


def _lines(file: io.TextIOWrapper) -> Iterator[str]:
    """Yield the lines of a file. Raise `csv.Error` for a line longer than `LONGEST_LINE`."""
    for line in iter(partial(file.readline, LONGEST_LINE), ""):
        if len(line) == LONGEST_LINE:
            raise csv.Error(f"a line has more than {LONGEST_LINE} characters")
        yield line


def _read_csv(path: Path | TableFile, encoding: str, mixed: bool, choose: Callable[[Sequence[str]], Sequence[str]], key: str) -> Table:
    """Return the columns of a table of text. `mixed`: True reads the lines that are not UTF-8 as windows-1252."""
    csv.field_size_limit(LONGEST_CELL)
    size = path.stat().st_size if isinstance(path, Path) else path.size
    with (
        path.open("rb") as stored,
        _unpacked(stored, path) as unpacked,
        Utf8Lines(unpacked) as converted,
        io.TextIOWrapper(io.BufferedReader(converted) if mixed else unpacked, encoding=encoding, newline="") as file,
        PreparationProgress(f"reading {shorten(path.name, 20)}", size, f"{size / 1e6:.0f} MB") as progress,
    ):
        lines = _lines(file)
        first = next(lines, "")
        above = int(SEPARATOR.fullmatch(first.rstrip("\r\n")) is not None)
        first = next(lines, "") if above else first
        delimiter = max(",\t;", key=first.count)
        plain = delimiter == "\t"
        everything = chain(["\n"] * above, [first], lines)  # an empty line keeps the numbers of the lines
        reader = csv.reader(everything, delimiter=delimiter, quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL, strict=True)
        header = [_unquote(name) for name in next(islice(reader, above, None), [])]
        if not any(header):
            raise ConfigError(f"{key}: {quoted(str(path), 200)} is empty; its first line must name the columns")
        wanted = _positions(header, choose(header), key)
        rows = checked_rows(reader, delimiter, len(header), path, key)
        columns, uneven = number_columns(rows, wanted, len(header), lambda: progress.add(stored.tell() - progress.done))
    notes = tuple(converted.notes(path.name))
    excluded = LeftOut()
    excluded.add_rows(UNEVEN, uneven, path.name)
    count = len(uneven) + len(next(iter(columns.values())).codes) if columns else 0
    numbers = np.delete(np.arange(1, count + 1), uneven - 1) if len(uneven) else None
    return Table(columns, decimal_comma=delimiter == ";", excluded=excluded, notes=notes, numbers=numbers)


def checked_rows(reader, delimiter: str, width: int, path: Path | TableFile, key: str) -> Iterator[list[str]]:
    """Yield the rows of a csv reader. Raise `ConfigError` with the number of the line if quotes are unbalanced. `width`: cells of a full
    row."""
    last = reader.line_num
    try:
        for row in reader:
            if reader.line_num != last + 1 and _swallows_lines(row, delimiter, width):
                raise csv.Error(f"a quoted cell contains whole rows, up to line {reader.line_num}")
            last = reader.line_num
            yield row
    except csv.Error as error:
        raise ConfigError(
            f"{key}: {quoted(str(path), 200)}, line {last + 1}: {error}; correct the quotes: each needs a partner, and one inside a "
            "quoted cell is doubled"
        ) from error


def _swallows_lines(row: Sequence[str], delimiter: str, width: int) -> bool:
    """Return True if a cell of a row probably contains whole rows, because a quote is not closed.

    The row is cut at the line breaks in the cell. Return True if one of the middle lines has `width` cells, like the header, and is
    `_alike`, or if both the first and the last line have `width` cells."""
    for place, cell in enumerate(row):
        lines = re.split(r"\r\n|\r|\n", cell)
        if len(lines) == 1:
            continue
        parsed = [(line.split(delimiter), next(csv.reader([line], delimiter=delimiter), [])) for line in lines]
        if any(len(cells) == width and _alike(cells, row, place) for pair in parsed[1:-1] for cells in pair):
            return True
        counts = [{len(cells) for cells in pair} for pair in parsed]
        if width - place in counts[0] and width - (len(row) - place - 1) in counts[-1]:
            return True
    return False


def _alike(cells: Sequence[str], row: Sequence[str], place: int) -> bool:
    """Return True if the cells of a line may be those of a row: False if a cell of `row` is a number or ends like the name of a file, and
    the cell below it is neither empty nor of that kind. The cell at `place` is not compared."""
    pairs = [(own, other) for column, (own, other) in enumerate(zip(row, cells, strict=False)) if column != place]
    return all(not _sort_of(own) or not other.strip() or _sort_of(own) == _sort_of(other) for own, other in pairs)


def _sort_of(cell: str) -> str:
    """Return "number" for a number, "file" for a text that ends like the name of a file, otherwise ""."""
    text = _unquote(cell).strip()
    if re.fullmatch(r"[-+]?\d+([.,]\d+)?", text):
        return "number"
    return "file" if re.search(r"\w\.[A-Za-z]\w{1,4}$", text) else ""


def number_columns(
    reader: Iterator[list[str]], wanted: dict[str, int], width: int, advanced: Callable[[], None]
) -> tuple[dict[str, Column], np.ndarray]:
    """Return the columns `wanted` (name -> position) of the rows with `width` cells, and the numbers of the other rows, from 1, int64 [U].

    Blank lines do not count as rows. `advanced` is called after each chunk of rows."""
    columns = {name: ColumnBuilder(_unquote) for name in wanted}
    uneven, read = array("q"), 0
    while chunk := list(islice(reader, CHUNK)):
        rows = [row for row in chunk if len(row) == width]
        if len(rows) < len(chunk):
            chunk = [row for row in chunk if row]
            uneven.extend(read + i for i, row in enumerate(chunk, 1) if len(row) != width)
        read += len(chunk)
        cells = list(zip(*rows, strict=True)) or [()] * width
        for name, position in wanted.items():
            columns[name].extend(cells[position])
        advanced()
    return {name: column.column() for name, column in columns.items()}, np.array(uneven, dtype=np.int64)


def _positions(header: Sequence[str], names: Sequence[str], key: str) -> dict[str, int]:
    """Return name -> index in the header for each of `names`, which must be in the header.

    Raise `ConfigError` for a name that occurs twice in the header. `key`: configuration key of the table, for messages."""
    for name in names:
        if header.count(name) > 1:
            raise ConfigError(f"{key}: the {_kind(key)} has {header.count(name)} columns named {quoted(name)}; rename one")
    return {name: header.index(name) for name in dict.fromkeys(names)}


def _unquote(cell: str) -> str:
    """Return a cell stripped of spaces and of one pair of enclosing quotes."""
    cell = cell.strip()
    if '"' not in cell:
        return cell
    if len(cell) >= 2 and cell[0] == cell[-1] == '"' and '"' not in cell[1:-1].replace('""', ""):
        return cell[1:-1].replace('""', '"').strip()
    return cell


def _read_parquet(path: Path, choose: Callable[[Sequence[str]], Sequence[str]], key: str) -> Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError(f"{key}: reading {path.name} needs pyarrow; run `pip install pyarrow`, or use a CSV") from error
    try:
        file = pq.ParquetFile(path)
        wanted = _positions(file.schema_arrow.names, choose(file.schema_arrow.names), key)
        return Table({name: from_arrow(file.read(columns=[name]).column(name)) for name in wanted})  # one column at a time is in memory
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise ConfigError(f"{key}: {quoted(str(path), 200)} cannot be read as Parquet: {one_line(error)}") from error
