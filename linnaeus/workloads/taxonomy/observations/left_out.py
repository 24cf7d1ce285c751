"""`LeftOut`: count the records of a data source that are not used, by reason, and collect their names for `left_out.csv`.

The lines of `left_out.csv` are kept in memory up to `IN_MEMORY` bytes; further lines are kept in a temporary file. So any number of records
can be left out."""

import csv
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from itertools import repeat
from pathlib import Path
from typing import IO, Any

import numpy as np

from linnaeus.errors import shorten
from linnaeus.files import TEMPORARY

FILE_NAME = "left_out.csv"
HEADER = "record,reason,records\n"  # `records`: more than 1 for a range of rows
IN_MEMORY = 1 << 23
LONGEST_NAME = 300  # characters


class LeftOut(dict[str, int]):
    """Dict of reason -> number of records that are left out for this reason. `LeftOut(other)` is an independent copy of `other`."""

    def __init__(self, before: Mapping[str, int] | None = None, lines: Path | None = None) -> None:
        """Start with the records of `before`: reason -> number of records, or another `LeftOut`, whose lines for `left_out.csv` are taken
        over, too.

        `lines`: CSV file with the lines of these records, which an earlier `write` made; None: no such file."""
        super().__init__(before or {})
        self._texts: list[IO[str] | Path] = [*getattr(before, "_texts", ()), *([lines] if lines is not None else ())]
        self._own: IO[str] | None = None

    def add(self, reason: str, names: Iterable[str], details: Iterable[str] | None = None) -> None:
        """Add a record for each of `names`. `details`: for each record a more specific reason, which the file contains in place of
        `reason`."""
        count = 0
        lines = csv.writer(self._file(), lineterminator="\n")
        for name, detail in zip(names, repeat(reason) if details is None else details):
            lines.writerow((shorten(name, LONGEST_NAME), detail, 1))
            count += 1
        self._count(reason, count)

    def add_rows(self, reason: str, rows: np.ndarray, table: str) -> None:
        """Add rows of a table. `rows`: int64 [N], the row numbers, ascending, from 1. `table`: name of the table. Consecutive rows share a
        line of the file."""
        start = np.flatnonzero(np.diff(rows, prepend=-1) != 1)
        sizes = np.diff(start, append=len(rows))
        lines = csv.writer(self._file(), lineterminator="\n")
        for first, size in zip(rows[start].tolist(), sizes.tolist(), strict=True):
            name = f"row {first}" if size == 1 else f"rows {first} to {first + size - 1}"
            lines.writerow((f"{name} of {shorten(table, LONGEST_NAME)}", reason, size))
        self._count(reason, len(rows))

    def include(self, other: "LeftOut") -> None:
        """Add all records of another `LeftOut` to this one."""
        for reason, number in other.items():
            self._count(reason, number)
        self._texts += other._texts

    def write(self, path: Path) -> None:
        """Write the lines of left_out.csv to `path`, atomically."""
        temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(HEADER)
            for text in self._texts:
                if isinstance(text, Path):
                    with text.open(encoding="utf-8", newline="") as earlier:
                        earlier.readline()
                        shutil.copyfileobj(earlier, file)
                else:
                    text.seek(0)
                    shutil.copyfileobj(text, file)
                    text.seek(0, os.SEEK_END)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def _file(self) -> IO[str]:
        if self._own is None:
            self._own = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - it lives as long as this object
                IN_MEMORY, "w+", encoding="utf-8", errors="backslashreplace", newline=""
            )
            self._texts.append(self._own)
        return self._own

    def _count(self, reason: str, number: int) -> None:
        if number:
            self[reason] = self.get(reason, 0) + number

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a pickled copy has only the numbers
