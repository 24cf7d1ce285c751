"""Rows as lines of JSON: metrics.jsonl, which two runs can compare with `cmp`, and timings.jsonl.

A row is `global_step` first, then its keys in alphabetical order; floats as Python's shortest exact form; NaN (a metric that is
not defined) as null; infinities as 1e999, which every JSON reader takes for infinity. A row reaches the file at once, so a
killed process loses none; `sync` puts them on the disk, before a checkpoint that counts them is committed. While the disk takes
nothing (full, read-only, gone), rows wait in memory, up to `MOST_WAITING` bytes, and are tried again with every row and every `sync`.

Resuming cuts the file back to the rows the checkpoint counted, and the run writes the same rows again.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.files import sync_directory

log = logging.getLogger("linnaeus")

PLAIN = {int, float, str, bool, type(None)}
MOST_WAITING = 64 << 20  # bytes of rows held in memory per file, about 100,000 rows; past it the run fails


def format_row(global_step: int, row: Mapping[str, Any]) -> str:
    """One line of JSON without its newline. Values: numbers, texts, booleans, None, lists of texts; a tensor is refused, reading it
    would wait for the device."""
    items = {"global_step": global_step} | {key: row[key] for key in sorted(row) if key != "global_step"}
    if all(type(value) in PLAIN and (type(value) is not float or math.isfinite(value)) for value in items.values()):
        return json.dumps(items)  # the same text in half the time
    return "{" + ", ".join(f"{json.dumps(key)}: {_value(key, value)}" for key, value in items.items()) + "}"


def _value(key: str, value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "null" if math.isnan(value) else ("1e999" if value > 0 else "-1e999")
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    assert texts or value is None or isinstance(value, (bool, int, float, str)), f"{key} is a {type(value).__name__}, not a plain value"
    return float.__repr__(value) if isinstance(value, float) else json.dumps(value)


class RowWriter:
    """Appends rows to a file; `rows` counts those logged. Opened at the first row. `sync` may be called from another thread than the
    one that logs."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.rows = count_rows(self.path)
        self._descriptor: int | None = None
        self._waiting = b""  # whole rows, but for the first, of which some bytes may be in the file already
        self._new_name = False  # the file has just been made: its name is not on the disk yet
        self._complained = False
        self._lock = threading.Lock()  # never held while waiting for the disk to flush

    def log(self, global_step: int, row: Mapping[str, Any]) -> None:
        """Append a row. OSError only when more than `MOST_WAITING` bytes of them cannot be written."""
        line = format_row(global_step, row).encode() + b"\n"
        with self._lock:
            self._waiting += line
            self.rows += 1
            error = self._write_waiting()
            if error is not None and len(self._waiting) > MOST_WAITING:
                raise OSError(error.errno, f"{error.strerror}; {len(self._waiting) >> 20} MiB of rows wait to be written", str(self.path))

    def _write_waiting(self) -> OSError | None:
        """What keeps rows in memory; None when all are in the file. Said once, and once more when it is over."""
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
            while self._waiting:
                written = os.write(self._descriptor, self._waiting)
                self._waiting = self._waiting[written:]
        except OSError as error:
            if not self._complained:
                self._complained = True
                reason = error.strerror or error
                log.error("rows can NOT be written to %s (%s); they wait in memory and are tried again", self.path, reason)
            return OSError(error.errno, error.strerror, str(self.path))
        if self._complained:
            self._complained = False
            log.warning("the rows that waited are in %s now", self.path)
        return None

    def _open(self) -> int:
        self._cut(_whole_lines(self.path)[1])  # half a line of a killed process must not join ours
        self._new_name = not self.path.exists()
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

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
        """Wait until all rows logged so far are on the disk. OSError: they are not, or their file is no longer at its place."""
        with self._lock:
            error = self._write_waiting() if self._waiting else None
            if error is not None:
                raise error
            descriptor = os.dup(self._descriptor) if self._descriptor is not None else None
            new_name = self._new_name
        if descriptor is None:
            if self.rows and not self.path.exists():
                raise FileNotFoundError(errno.ENOENT, "its rows were deleted", str(self.path))
            return
        try:
            os.fsync(descriptor)
            if not os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                raise FileNotFoundError(errno.ENOENT, "another file has taken its place", str(self.path))
        except OSError as failed:  # of itself fsync names no file
            raise OSError(failed.errno, failed.strerror, str(self.path)) from None
        finally:
            os.close(descriptor)
        if new_name:
            sync_directory(self.path.parent)
            self._new_name = False

    def close(self) -> None:
        """Try once more to write what waits, and let go of the file. What cannot be written is lost, and said."""
        with self._lock:
            if self._waiting and self._write_waiting() is not None:
                log.error("%d bytes of rows are lost: %s cannot be written", len(self._waiting), self.path)
                self._waiting = b""
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

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
