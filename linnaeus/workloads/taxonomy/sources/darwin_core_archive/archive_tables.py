"""Read the tables of a Darwin Core Archive into dictionary-coded columns."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linnaeus.errors import ConfigError, list_some, one_line, quoted, shorten
from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.taxonomy.manifest.columns import plain_name
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.mixed_encoding import Utf8Lines
from linnaeus.workloads.taxonomy.manifest.tables.table import LONGEST_CELL, LONGEST_LINE, UNEVEN, checked_rows, number_columns
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_descriptor import DataFile
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_members import Archive
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.occurrences import concatenated

KEY = "(id)"  # name of the column with the id of the core record, by which tables are joined
_BLOCK = 1 << 16  # characters that are read at once
_TERMS = (  # terms that are recognised in any case of letters in tables without a descriptor
    *("scientificName", "taxonRank", "specificEpithet", "occurrenceID", "occurrenceStatus", "eventDate", "eventTime", "associatedMedia"),
    *("decimalLatitude", "decimalLongitude", "coordinateUncertaintyInMeters", "minimumElevationInMeters", "accessURI", "gbifID"),
    *("recordedBy", "eventID"),
)
_SPELLING = {plain_name(term): term for term in _TERMS}
_KEYS = ("gbifid", "coreid", "id", "occurrenceid")  # columns used as KEY in tables without a descriptor; the first that exists


class DataRows(NamedTuple):
    """Rows of a table of an archive, as columns, with the rows that were left out and notes."""

    columns: dict[str, Column]  # term -> column; KEY -> column of ids
    size: int  # number of rows
    left_out: LeftOut  # rows with a wrong number of cells
    notes: list[str]  # lines for the user


def describe(archive: Archive, name: str, kind: str) -> DataFile:
    """Return the description of a table in an archive without a descriptor, from the header of the table. `kind`: type of the rows, such as
    "Occurrence"."""
    with archive.open(name) as file, archive.reading():
        first = file.readline(_BLOCK)
    encoding = "utf-16" if first[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    line = first.decode(encoding, errors="replace").lstrip("\ufeff").rstrip("\r\n")
    delimiter = max("\t,;", key=line.count)
    header = next(csv.reader([line], delimiter=delimiter), [])
    columns = {_SPELLING.get(plain_name(cell), cell.strip()): i for i, cell in reversed(list(enumerate(header))) if cell.strip()}
    plain = {plain_name(cell): i for i, cell in enumerate(header)}
    key = next((plain[k] for k in _KEYS if k in plain), None)
    quote = '"' if delimiter != "\t" or line.startswith('"') else ""
    return DataFile(
        (name,), kind, dict(reversed(columns.items())), {}, key, encoding, delimiter, "\n", quote, header_lines=1, checked=False
    )


def read_rows(archive: Archive, file: DataFile, terms: Sequence[str]) -> DataRows:
    """Return the rows of a table with the columns `terms` and the column of ids (`KEY`). Empty cells get the defaults of the descriptor.

    Raise `ConfigError` for a table that differs from its description or cannot be read."""
    if not file.names:
        raise ConfigError(f"data.path: the descriptor does not name the file of its {file.kind or 'core'} rows; correct meta.xml")
    parts = [_read_part(archive, file, name, terms) for name in file.names]
    count, columns = sum(part.size for part in parts), parts[0].columns
    if len(parts) > 1:
        columns = {term: concatenated([part.columns[term] for part in parts]) for term in columns}
    for term in terms:
        if term in file.defaults:
            columns[term] = _with_default(columns.get(term), file.defaults[term], count)
    left_out = LeftOut()
    for part in parts:
        left_out.include(part.left_out)
    return DataRows(columns, count, left_out, [note for part in parts for note in part.notes])


def _with_default(column: Column | None, default: str, count: int) -> Column:
    if column is None:
        return Column(np.zeros(count, dtype=np.int32), [default])
    return Column(column.codes, [value or default for value in column.values])


def _read_part(archive: Archive, file: DataFile, name: str, terms: Sequence[str]) -> DataRows:
    """Return the rows of one file of a table. If the file is not in the encoding of its description, it is read as UTF-8, and
    the lines that are not UTF-8 as windows-1252.

    Raise `ConfigError` if the file cannot be read in these encodings."""
    encoding = "utf-8-sig" if file.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else file.encoding
    try:
        try:
            return _read_encoded(archive, file, name, terms, encoding)
        except UnicodeDecodeError:
            found = _read_encoded(archive, file, name, terms, "utf-8-sig", mixed=True)
            return found if encoding == "utf-8-sig" else found._replace(notes=[*found.notes, f"{name} is not {file.encoding}, but UTF-8"])
    except (LookupError, UnicodeError) as error:
        raise ConfigError(f"data.path: {quoted(name)} cannot be read in the encoding {quoted(file.encoding)}: {one_line(error)}") from error


def _read_encoded(archive: Archive, file: DataFile, name: str, terms: Sequence[str], encoding: str, mixed: bool = False) -> DataRows:
    """Return the rows of one file of a table. `mixed`: True reads the lines that are not UTF-8 as windows-1252."""
    size = archive.size(name)
    with (
        archive.open(name) as raw,
        archive.reading(),
        Utf8Lines(raw) as converted,
        io.TextIOWrapper(io.BufferedReader(converted) if mixed else raw, encoding=encoding, newline="") as text,
        PreparationProgress(f"reading {shorten(name, 20)}", size, f"{size / 1e6:.0f} MB") as progress,
    ):
        start = text.read(_BLOCK)
        file, notes = _as_it_is(file, name, start)
        rows = _rows(_lines(text, start, file.end), file, name)
        header = list(islice(rows, file.header_lines))
        if not file.header_lines and _is_header(start, file):
            header = [next(rows)]
            notes.append(f"the first line of {name} is a header, although the descriptor does not name it")
        width = _check_header(header[0], file, name, notes) if header else _width(start, file)
        wanted = {term: file.columns[term] for term in terms if term in file.columns} | ({KEY: file.key} if file.key is not None else {})
        columns, uneven = number_columns(rows, wanted or {"": 0}, width, lambda: progress.add(raw.tell() - progress.done))
    count = len(next(iter(columns.values())).codes)
    if len(uneven) and not count:
        raise ConfigError(f"data.path: no row of {quoted(name)} has the {width} cells of its header or its descriptor; download it again")
    left_out = LeftOut()
    left_out.add_rows(UNEVEN, uneven, name)
    return DataRows(columns, count, left_out, [*notes, *converted.notes(name)])


def _lines(text: io.TextIOWrapper, start: str, end: str) -> Iterator[str]:
    """Yield the lines of a file without their `end`. `start`: beginning of the file, already read from `text`.

    Raise `ConfigError` for a line of more than `LONGEST_LINE` characters."""
    rest, block = "", start
    while block:
        parts = (rest + block).split(end)
        rest = parts.pop()
        yield from parts
        if len(rest) > LONGEST_LINE:
            raise ConfigError(f"data.path: a line has more than {LONGEST_LINE} characters; correct linesTerminatedBy in meta.xml")
        block = text.read(_BLOCK)
    if rest:
        yield rest


def _rows(lines: Iterator[str], file: DataFile, name: str) -> Iterator[list[str]]:
    """Yield the cells of each line; an empty list for a blank line."""
    if not file.quote:
        for line in lines:
            line = line.removesuffix("\r")
            yield line.split(file.delimiter) if line else []
        return
    csv.field_size_limit(LONGEST_CELL)
    whole = (line.removesuffix("\r").replace("\r", " ").replace("\n", " ") + "\n" for line in lines)
    reader = csv.reader(whole, delimiter=file.delimiter, quotechar=file.quote, strict=True)
    yield from checked_rows(reader, file.delimiter, _needed(file), Path(name), "data.path")


def _as_it_is(file: DataFile, name: str, start: str) -> tuple[DataFile, list[str]]:
    """Return the description of a file with the separators that the file really has, and a line of text for each separator that was
    changed.

    `start`: the beginning of the file. Raise `ConfigError` if the first line has too few columns with every separator."""
    notes = []
    if file.end not in start:
        end = next((end for end in ("\n", "\r") if end in start), file.end)
        if end != file.end:
            notes.append(f"the lines of {name} end with {end!r} instead of {file.end!r}")
            file = replace(file, end=end)
    if _width(start, file) < _needed(file):
        for delimiter in "\t,;|":
            other = replace(file, delimiter=delimiter)
            if _width(start, other) >= _needed(file):
                notes.append(f"the cells of {name} are separated by {delimiter!r} instead of {file.delimiter!r}")
                return other, notes
        raise ConfigError(f"data.path: {quoted(name)} has {_width(start, file)} columns, fewer than the {_needed(file)} of its descriptor")
    if len(file.quote) > 1 or (file.quote and len(file.delimiter) > 1):
        raise ConfigError(f"data.path: quoted cells need a separator of one character, not {quoted(file.delimiter)}; correct meta.xml")
    return file, notes


def _needed(file: DataFile) -> int:
    return 1 + max([*file.columns.values(), file.key or 0])


def _width(start: str, file: DataFile) -> int:
    """Return the number of cells of the first line. `start`: the beginning of the file."""
    line = next((line for line in start.split(file.end) if line.strip()), "").removesuffix("\r")
    if file.quote and len(file.delimiter) == 1 == len(file.quote):
        return len(next(csv.reader([line.replace("\r", " ").replace("\n", " ")], delimiter=file.delimiter, quotechar=file.quote), []))
    return len(line.split(file.delimiter))


def _is_header(start: str, file: DataFile) -> bool:
    """Return True if the first line is a header: most of its cells are the terms of their columns. `start`: the beginning of the file."""
    cells = start.split(file.end, 1)[0].split(file.delimiter)
    same = [i < len(cells) and plain_name(cells[i].strip(file.quote or None)) == plain_name(t) for t, i in file.columns.items()]
    return sum(same) * 2 > len(same)


def _check_header(header: Sequence[str], file: DataFile, name: str, notes: list[str]) -> int:
    """Return the number of columns of a header. Append a line to `notes` if the header has none of the terms of the description.

    Raise `ConfigError` if header and descriptor have a term in different columns."""
    names = [plain_name(cell) for cell in header]
    for term, index in file.columns.items() if file.checked else ():
        plain = plain_name(term)
        if index < len(names) and names[index] != plain and names.count(plain) == 1 and plain != "id":
            raise ConfigError(f"data.path: column {index + 1} of {quoted(name)} is {quoted(header[index])}, and {quoted(term)} in meta.xml")
    if file.checked and len(names) > 1 and not set(names) & {plain_name(term) for term in file.columns}:
        notes.append(f"the first line of {name} is left out as its header, although it has none of the terms: {list_some(header, 4)}")
    return len(header)
