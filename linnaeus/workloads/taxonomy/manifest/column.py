"""`Column`: the cells of a table at one position, as numbers of distinct values; and how it is made, cell by cell or from Arrow."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from linnaeus.workloads.taxonomy.text_arrays import numbered, strings
from linnaeus.workloads.taxonomy.text_lines import BLOCK, TextLines, lines_of

CHUNK = 512  # rows of a CSV in memory as Python strings; 65536 take twice the time (caches, garbage collection)
FEW = 1 << 16  # distinct cells of a column that are Python objects


@dataclass(frozen=True)
class Column:
    """A column of N cells, `values[codes]`. `codes` is int32 [N]; `values` are stripped of spaces and distinct before stripping."""

    codes: np.ndarray
    values: Sequence[str]

    def cells(self, rows: np.ndarray) -> Iterator[str]:
        """Yield the cells of `rows`, numbers or bool [N]; the number of the row, from 1, in place of an empty one."""
        places = np.flatnonzero(rows) if rows.dtype == bool else rows
        return (self.values[code] or f"row {row + 1}" for row, code in zip(places.tolist(), self.codes[places].tolist(), strict=True))

    def text(self) -> np.ndarray:
        """Return the cells as an array of strings [N], each with its own length."""
        return strings(self.values)[self.codes]


class ColumnBuilder:
    """A column that grows cell by cell. A cell takes four bytes, and once the memory of its text.

    Distinct cells are Python objects, of 200 bytes each, up to `FEW`. If most cells are distinct then, they become lines of bytes."""

    def __init__(self, clean: Callable[[str], str] = str.strip) -> None:
        """`clean`: the function from a distinct cell to its value."""
        self._clean = clean
        self._number: defaultdict[str, int] = defaultdict()
        self._number.default_factory = self._number.__len__  # a new cell gets the next number
        self._codes = array("i")
        self._chunk: list[str] = []  # cells without a code
        self._lines: bytearray | None = None  # first the distinct cells of `_codes`, then each further cell
        self._distinct = self._further = 0  # number of these

    def __len__(self) -> int:
        return len(self._codes) + self._further + len(self._chunk)

    def append(self, cell: str) -> None:
        self._chunk.append(cell)
        if len(self._chunk) >= CHUNK:
            self._finish_chunk()

    def extend(self, cells: Sequence[str]) -> None:
        self._chunk += cells
        if len(self._chunk) >= CHUNK:
            self._finish_chunk()

    def column(self) -> Column:
        """Return the column."""
        self._finish_chunk()
        codes = np.array(self._codes, dtype=np.int32)
        if self._lines is None:
            return Column(codes, [self._clean(value) for value in self._number])
        number, values = numbered(TextLines.of_bytes(np.frombuffer(self._lines, np.uint8)))
        if any(self._clean(value) != value for value in values):
            values = TextLines.of(map(self._clean, values))
        return Column(np.concatenate([number[codes], number[self._distinct :]]), values)

    def _finish_chunk(self) -> None:
        if self._lines is None:
            self._codes.extend(map(self._number.__getitem__, self._chunk))
            if FEW < len(self._number) > len(self._codes) // 2:
                self._lines, self._distinct = bytearray(lines_of(list(self._number))), len(self._number)
                self._number.clear()
        else:
            self._lines += lines_of(self._chunk)
            self._further += len(self._chunk)
        self._chunk = []


def from_arrow(column) -> Column:
    """Return a ChunkedArray of pyarrow, of numbers, texts or dates, as a column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    coded = pc.fill_null(column.cast(pa.large_string()), "").combine_chunks().dictionary_encode()
    blocks = (coded.dictionary.slice(i, BLOCK).to_pylist() for i in range(0, len(coded.dictionary), BLOCK))
    values = (value.strip() for block in blocks for value in block)
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    return Column(codes, list(values) if len(coded.dictionary) <= FEW else TextLines.of(values))
