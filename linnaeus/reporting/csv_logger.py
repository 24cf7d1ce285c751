"""Write the rows of metrics.jsonl and timings.jsonl as tables for spreadsheets: `csv/metrics.csv` and `csv/timings.csv`.

A table has one line per row and one column per name, `global_step` first, then in the order of their first use. A name that a row does not
have is an empty cell; NaN is written as `nan`, an infinity as `inf`.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linnaeus.files import write_atomic
from linnaeus.reporting.rows import Row
from linnaeus.reporting.soft_failure import SoftFailure

FOLDER = "csv"
STREAMS = ("metrics", "timings")


class CsvTable:
    """Table of rows in the file `path`. Rows are appended; for a row with a new name, the file is written again with one more column."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []

    def replace(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a file that contains only `rows`, in place of the present file."""
        self.columns = list(dict.fromkeys(["global_step", *(name for row in rows for name in row)]))
        self.path.parent.mkdir(exist_ok=True)
        write_atomic(self.path, _lines([dict(zip(self.columns, self.columns)), *map(_cells, rows)], self.columns))

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row to the file, which must exist. If the row has a new name, write the whole file again with a further column."""
        if row.keys() <= set(self.columns):
            with open(self.path, "a", encoding="utf-8", newline="") as file:
                file.write(_lines([_cells(row)], self.columns))
            return
        with open(self.path, encoding="utf-8", newline="") as file:
            earlier = [{name: text for name, text in found.items() if text != ""} for found in csv.DictReader(file)]
        self.replace([*earlier, row])


class CsvLogger:
    """Sink of rows that writes both tables in `directory/csv`. After its first error, which is logged, it writes nothing."""

    def __init__(self, directory: Path) -> None:
        self._tables = {name: CsvTable(Path(directory) / FOLDER / f"{name}.csv") for name in STREAMS}
        self._soft = SoftFailure("logger.csv", "no more rows are written to csv/")

    def start(self, global_step: int, earlier: Iterable[Row]) -> None:
        """Write both tables again so that they contain only `earlier`: the rows of earlier launches up to `global_step`, the step from
        which the run continues."""
        with self._soft.guard():
            write_tables(self._tables, earlier)

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None:
        if not self._soft.failed:
            with self._soft.guard():
                self._tables[stream].add({"global_step": global_step, **row})

    def sync(self) -> None:
        """Do nothing: every row is passed to the operating system at once, and a resumed run writes complete tables again."""

    def close(self) -> None:
        """Do nothing: the files are closed after every row."""


def write_tables(tables: Mapping[str, CsvTable], rows: Iterable[Row]) -> None:
    """Replace the file of every table by a file that contains all of `rows` that belong to its stream, and no others. `tables`: stream ->
    table. Every stream in `rows` must be in `tables`."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
    for stream, _, row in rows:
        found[stream].append(row)
    for name, table in tables.items():
        table.replace(found[name])


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the row with NaN in place of None, because a NaN is read from metrics.jsonl as None (`format_row`)."""
    return {name: math.nan if value is None else value for name, value in row.items()}


def _lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()
