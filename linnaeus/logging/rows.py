"""Rows as lines of JSON: metrics.jsonl, which two runs can compare with `cmp`, and timings.jsonl.

A row is `global_step` first, then its keys in alphabetical order; floats as Python's shortest exact form; NaN (a metric that is
not defined) as null; infinities as 1e999, which every JSON reader takes for infinity. A row reaches the file at once, so a
killed process loses none; `sync` puts them on the disk, before a checkpoint that counts them is committed.

Resuming cuts the file back to the rows the checkpoint counted, and the run writes the same rows again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO


def format_row(global_step: int, row: Mapping[str, Any]) -> str:
    """One line of JSON without its newline. Values: numbers, texts, booleans, None, lists of texts; a tensor is refused, reading it
    would wait for the device."""
    items = [("global_step", global_step), *sorted((k, v) for k, v in row.items() if k != "global_step")]
    return "{" + ", ".join(f"{json.dumps(key)}: {_value(key, value)}" for key, value in items) + "}"


def _value(key: str, value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "null" if math.isnan(value) else ("1e999" if value > 0 else "-1e999")
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    assert texts or value is None or isinstance(value, (bool, int, float, str)), f"{key} is a {type(value).__name__}, not a plain value"
    return float.__repr__(value) if isinstance(value, float) else json.dumps(value)


class RowWriter:
    """Appends rows to a file; `rows` counts those in it. Opened at the first row."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.rows = count_rows(self.path)
        self._file: BinaryIO | None = None

    def log(self, global_step: int, row: Mapping[str, Any]) -> None:
        if self._file is None:
            self._cut(_whole_lines(self.path)[1])  # half a line of a killed process must not join ours
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (open as long as the run)
        self._file.write(format_row(global_step, row).encode() + b"\n")
        self.rows += 1

    def truncate(self, rows: int) -> int:
        """Keep the first `rows` rows; returns how many were discarded, negative when the file holds fewer than that."""
        self.close()
        held, end = _whole_lines(self.path, rows)
        discarded = self.rows - rows
        self._cut(end)
        self.rows = held
        return discarded

    def truncate_after(self, global_step: int) -> int:
        """Keep the rows up to the first one beyond `global_step`; returns how many were discarded."""
        keep = 0
        for row in read_rows(self.path):
            if row["global_step"] > global_step:
                break
            keep += 1
        return self.truncate(keep)

    def sync(self) -> None:
        """Wait until all rows are on the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def state_dict(self) -> dict[str, int]:
        return {"rows": self.rows}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.truncate(state["rows"])

    def _cut(self, end: int) -> None:
        if self.path.exists() and self.path.stat().st_size > end:
            os.truncate(self.path, end)


def _whole_lines(path: Path, limit: int | None = None) -> tuple[int, int]:
    """(number of whole lines, offset of their end), up to `limit` of them."""
    lines = end = 0
    if path.exists():
        with open(path, "rb") as file:
            for line in file:
                if lines == limit or not line.endswith(b"\n"):
                    break
                lines, end = lines + 1, end + len(line)
    return lines, end


def count_rows(path: Path) -> int:
    """Whole lines of a file; 0 when there is none."""
    return _whole_lines(path)[0]


def read_rows(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a file, without an unfinished last line; none when there is no file."""
    path = Path(path)
    if not path.exists():
        return []
    with open(path, "rb") as file:
        return [json.loads(line) for line in file if line.endswith(b"\n")]
