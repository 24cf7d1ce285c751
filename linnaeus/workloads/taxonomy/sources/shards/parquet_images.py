"""`ParquetImages`: read image files from a column of Parquet files.

Parquet compresses groups of rows. To read a photograph, its whole group must be read (100 rows in most data sets of Hugging Face). The
groups read last stay in memory. No file stays open between two reads. A pickled copy for another process has no groups in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.workloads.taxonomy.arrays.text_arrays import Names
from linnaeus.workloads.taxonomy.images.image_files import LARGEST_FILE, MISSING, TOO_LARGE, ImageFiles, retry
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage

KEPT = 256 << 20  # bytes of groups that each process keeps in memory
MEASURED = 1 << 30  # if a column has more bytes, photographs are not read at the start for their sizes; means of their groups are used


class ParquetImages(ImageFiles):
    """N image files in the column `column`, such as `image.bytes`, of Parquet files."""

    def __init__(self, files: Sequence[str], column: str, names: Names, rows: np.ndarray) -> None:
        """Take N names and, for each, a row int64 [4]: index in `files`, row group, row within the group, and size in bytes."""
        self.files, self.column, self.names, self.rows = list(files), column, names, rows
        self._groups: dict[tuple[int, int], Any] = {}

    @classmethod
    def of(cls, files: Sequence[str], column: str, names: Names) -> ParquetImages:
        """Return the images in all rows of the files, with the given names. Raise an error of pyarrow if the files cannot be read."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        opened = [pq.ParquetFile(path) for path in files]
        measure = sum(_column(file.metadata.row_group(g), column).total_uncompressed_size for file, g in _groups(opened)) <= MEASURED
        rows = []
        for number, file in enumerate(opened):
            for group in range(file.num_row_groups):
                info = file.metadata.row_group(group)
                sizes = np.full(info.num_rows, max(1, _column(info, column).total_uncompressed_size // max(1, info.num_rows)))
                if measure:
                    lengths = pc.fill_null(pc.binary_length(_cells(file, group, column)), MISSING)
                    sizes = lengths.to_numpy().astype(np.int64)
                places = np.arange(info.num_rows)
                rows.append(np.stack([np.full_like(places, number), np.full_like(places, group), places, sizes], axis=1))
        return cls(files, column, names, np.concatenate(rows))

    def sizes(self) -> np.ndarray:
        return np.where(self.rows[:, 3] > LARGEST_FILE, TOO_LARGE, self.rows[:, 3])

    def take(self, rows: np.ndarray) -> ParquetImages:
        return ParquetImages(self.files, self.column, self.names[rows], self.rows[rows])

    def read(self, row: int) -> bytes:
        number, group, place, _ = self.rows[row].tolist()
        data = retry(lambda: self._group(number, group))[place].as_py()
        if data is None:
            raise NotAnImage("the photograph is not in the data set")
        return data

    def _group(self, number: int, group: int) -> Any:
        """Return the cells of a row group, from memory if the group is in memory. Raise `NotAnImage` if the file is damaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if (cells := self._groups.get((number, group))) is not None:
            return cells
        try:
            cells = _cells(pq.ParquetFile(self.files[number]), group, self.column)
        except OSError as error:
            if error.errno is None:  # an error of decompression, not of the file system
                raise NotAnImage(f"{Path(self.files[number]).name} is damaged") from error
            raise
        except (pa.ArrowException, UnicodeError, IndexError) as error:
            raise NotAnImage(f"{Path(self.files[number]).name} is damaged") from error
        if sum(kept.nbytes for kept in list(self._groups.values())) + cells.nbytes > KEPT:
            self._groups = {}
        self._groups[number, group] = cells
        return cells

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_groups": {}}


def _groups(files: Sequence[Any]) -> list[tuple[Any, int]]:
    return [(file, group) for file in files for group in range(file.num_row_groups)]


def _column(group: Any, column: str) -> Any:
    """Return the metadata of a column in a row group. Raise `ValueError` if the group does not have the column."""
    found = [group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == column]
    if not found:
        raise ValueError(f"a group of rows does not have the column {column!r}")
    return found[0]


def _cells(file: Any, group: int, column: str) -> Any:
    """Return the cells of a column, `NAME` or `NAME.FIELD`, in a group of rows."""
    cells = file.read_row_group(group, columns=[column], use_threads=False).column(0)
    if "." not in column:
        return cells
    import pyarrow.compute as pc

    return pc.struct_field(cells, [0])
