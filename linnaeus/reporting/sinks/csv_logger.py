"""Write the rows of metrics.jsonl and timings.jsonl as tables for spreadsheets: `csv/metrics.csv` and `csv/timings.csv`.

A table has one line per row and one column per metric name: `global_step` first, then the names in the order of their first use. A name
that a row does not have is an empty cell. NaN is written as `nan`, an infinity as `inf`.
"""

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linnaeus.files import write_atomic
from linnaeus.reporting.jsonl.rows import read_rows
from linnaeus.reporting.sinks.log_sinks import Row
from linnaeus.reporting.sinks.soft_failure import SoftFailure

FOLDER = "csv"
STREAMS = ("metrics", "timings")


class CsvTable:
    """CSV table in the file `path`, to which rows are appended. If a row has a new name, the file is rewritten with one more column."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []
        self._written: tuple[int, int, int] | None = None  # `_identity` of the file after the last row

    def replace(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace the file by a file that contains only `rows`."""
        self.columns = list(dict.fromkeys(["global_step", *(name for row in rows for name in row)]))
        self.path.parent.mkdir(exist_ok=True)
        write_atomic(self.path, _lines([self.columns, *(self._cells(row) for row in rows)]))
        self._written = _identity(os.stat(self.path))

    def is_foreign(self) -> bool:
        """Return True if another program, such as a replay, has replaced or changed the file since its last row, or if the file was
        deleted."""
        try:
            return _identity(os.stat(self.path)) != self._written
        except FileNotFoundError:
            return True

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row to the file, which must exist. If the row has a new name, rewrite the whole file with one more column."""
        if row.keys() <= set(self.columns):
            with open(self.path, "ab") as file:
                file.write(_lines([self._cells(row)]).encode())
                file.flush()
                self._written = _identity(os.fstat(file.fileno()))
            return
        with open(self.path, encoding="utf-8", newline="") as file:
            earlier = [{name: text for name, text in found.items() if text != ""} for found in csv.DictReader(file)]
        self.replace([*earlier, row])

    def _cells(self, row: Mapping[str, Any]) -> list[Any]:
        """Return the cells of a row, "" for a name that the row does not have. None is returned as NaN, because a NaN is read from
        metrics.jsonl as None (`format_row`)."""
        return [math.nan if (value := row.get(name, "")) is None else value for name in self.columns]


class CsvLogger:
    """Destination of metric rows that writes the CSV tables in `directory/csv`. After the first error, which is logged, it writes
    nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)
        self._tables = {name: CsvTable(Path(directory) / FOLDER / f"{name}.csv") for name in STREAMS}
        self._soft = SoftFailure("logger.csv", "no more rows are written to csv/")

    def start(self, global_step: int, earlier: Iterable[Row]) -> None:
        """Rewrite both tables so that they contain only `earlier`, the rows of earlier launches up to `global_step`, where the run
        continues."""
        with self._soft.guard():
            write_tables(self._tables, earlier)

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None:
        """Append a row, which must be in the file of its stream already. If the table was replaced or deleted, write all rows again."""
        if not self._soft.failed:
            with self._soft.guard():
                table = self._tables[stream]
                if table.is_foreign():  # its columns may have another order, and it may lack rows
                    table.replace(read_rows(self._directory / f"{stream}.jsonl"))
                else:
                    table.add({"global_step": global_step, **row})

    def sync(self) -> None:
        """Do nothing: every row is passed to the operating system at once, and a resumed run rewrites complete tables."""

    def close(self, status: str = "running") -> None:
        """Do nothing: the files are closed after every row."""


def write_tables(tables: Mapping[str, CsvTable], rows: Iterable[Row]) -> None:
    """Replace the file of every table by a file that contains exactly the `rows` of its stream ("metrics" or "timings").

    tables: stream -> table. Every stream that occurs in `rows` must be in `tables`."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
    for stream, _, row in rows:
        found[stream].append(row)
    for name, table in tables.items():
        table.replace(found[name])


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    """Return device, inode and size. The size is part of it because a later file may have the same inode."""
    return status.st_dev, status.st_ino, status.st_size


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
