"""`Column`: a dictionary-encoded column of a table (distinct values, and a code per row), made cell by cell or from an Arrow array."""

from __future__ import annotations

import contextlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from linnaeus.workloads.taxonomy.arrays.spool import Spool, spooled
from linnaeus.workloads.taxonomy.arrays.text_arrays import numbered, strings
from linnaeus.workloads.taxonomy.arrays.text_lines import BLOCK, TextLines, lines_of

CHUNK = 512  # rows of a CSV that are in memory as Python strings; 65536 rows take twice the time (caches, garbage collection)
UTC = ("+00:00", "Etc/UTC", "GMT")  # synonyms of UTC, whose times Arrow writes with +0000
FEW = 1 << 16  # a column with more distinct cells stores them as bytes, not as Python objects


@dataclass(frozen=True)
class Column:
    """Dictionary-encoded column of N cells: the distinct values, and a code for each cell. The text of cell i is `values[codes[i]]`."""

    codes: np.ndarray  # int32 [N]
    values: Sequence[str]  # the distinct cells, stripped of surrounding spaces; two may be equal if they differed in these spaces

    def cells(self, rows: np.ndarray) -> Iterator[str]:
        """Yield the text of each cell in `rows` (row numbers, or bool [N]). An empty cell gives "row " and the row number, from 1."""
        places = np.flatnonzero(rows) if rows.dtype == bool else rows
        return (self.values[code] or f"row {row + 1}" for row, code in zip(places.tolist(), self.codes[places].tolist(), strict=True))

    def text(self) -> np.ndarray:
        """Return the cells as an array of variable-length strings, [N]."""
        return strings(self.values)[self.codes]


class ColumnBuilder:
    """Builder of a column, to which cells are appended. Each cell takes four bytes, and each distinct text is stored once.

    Texts are first stored as Python strings, of about 200 bytes each. Once there are more than `FEW` distinct texts and most cells are
    distinct, all texts are stored as bytes."""

    def __init__(self, clean: Callable[[str], str] = str.strip) -> None:
        """Start an empty column. `clean`: function from the text of a cell to its value, called once per distinct text."""
        self._clean = clean
        self._number: defaultdict[str, int] = defaultdict()
        self._number.default_factory = self._number.__len__  # a new cell gets the next number
        self._codes = Spool()  # int32
        self._chunk: list[str] = []  # last cells, which have no code yet
        self._lines: Spool | None = None  # the distinct cells of `_codes`, then all further cells; None while there are few
        self._coded = self._distinct = self._further = 0  # numbers of cells in `_codes`, and of distinct and of further cells in `_lines`

    def __len__(self) -> int:
        return self._coded + self._further + len(self._chunk)

    def append(self, cell: str) -> None:
        self._chunk.append(cell)
        if len(self._chunk) >= CHUNK:
            self._finish_chunk()

    def extend(self, cells: Sequence[str]) -> None:
        self._chunk += cells
        if len(self._chunk) >= CHUNK:
            self._finish_chunk()

    def column(self) -> Column:
        """Return the column of all cells that were appended."""
        self._finish_chunk()
        codes = self._codes.array(np.int32)
        if self._lines is None:
            return Column(codes, [self._clean(value) for value in self._number])
        number, values = numbered(TextLines.of_bytes(self._lines.array()))
        if any(self._clean(value) != value for value in values):
            values = TextLines.of(map(self._clean, values))
        return Column(spooled(np.concatenate([number[codes], number[self._distinct :]])), values)

    def _finish_chunk(self) -> None:
        if self._lines is None:
            self._codes.write(array("i", map(self._number.__getitem__, self._chunk)).tobytes())
            self._coded += len(self._chunk)
            if FEW < len(self._number) > self._coded // 2:
                self._lines, self._distinct = Spool(), len(self._number)
                self._lines.write(lines_of(list(self._number)))
                self._number.clear()
        else:
            self._lines.write(lines_of(self._chunk))
            self._further += len(self._chunk)
        self._chunk = []


def from_arrow(column) -> Column:
    """Convert a pyarrow ChunkedArray of numbers, texts or dates to a column.

    Whole numbers that are stored as floats, such as ids of which some are missing, have no exponent. Times of a time zone that is a synonym
    of UTC end in Z."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)  # other programs than pandas write missing numbers as NaN
        with contextlib.suppress(pa.ArrowInvalid):
            column = column.cast(pa.int64())
    if pa.types.is_timestamp(column.type) and column.type.tz in UTC:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    coded = pc.fill_null(column.cast(pa.large_string()), "").combine_chunks().dictionary_encode()
    blocks = (coded.dictionary.slice(i, BLOCK).to_pylist() for i in range(0, len(coded.dictionary), BLOCK))
    values = (value.strip() for block in blocks for value in block)
    codes = spooled(coded.indices.to_numpy(zero_copy_only=False).astype(np.int32))
    return Column(codes, list(values) if len(coded.dictionary) <= FEW else TextLines.of(values))
