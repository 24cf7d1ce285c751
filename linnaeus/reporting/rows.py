"""Rows as lines of JSON: metrics.jsonl, reports.jsonl and timings.jsonl. Two runs can be compared with `cmp metrics.jsonl`.

A row starts with `global_step`; its other keys are in alphabetical order. Floats are in Python's shortest exact form, NaN (an undefined
metric) is null, infinities are 1e999, which every JSON reader parses as infinity. A row is written at once, so a killed process loses none;
`sync` flushes the rows to the disk. While the disk refuses writes, rows wait in memory, up to `MAX_PENDING_BYTES`, and every further row
and `sync` tries again. Resuming cuts the file back to the rows that the checkpoint counted; the run writes the same rows again.
"""

import errno
import json
import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from linnaeus.files import sync_file

log = logging.getLogger("linnaeus")

PLAIN = {int, float, str, bool, type(None)}
MAX_PENDING_BYTES = 64 << 20  # per file, about 100,000 rows; with more the run fails


def format_row(global_step: int, row: Mapping[str, Any]) -> str:
    """Return one line of JSON without its newline. Values are numbers, strings, booleans, None or lists of strings. Raise `AssertionError`
    for a tensor: reading it would wait for the device."""
    items = {"global_step": global_step} | {key: row[key] for key in sorted(row) if key != "global_step"}
    if all(type(value) in PLAIN and (type(value) is not float or math.isfinite(value)) for value in items.values()):
        return json.dumps(items)  # the same text as below in half the time
    return "{" + ", ".join(f"{json.dumps(key)}: {_value(key, value)}" for key, value in items.items()) + "}"


def _value(key: str, value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "null" if math.isnan(value) else ("1e999" if value > 0 else "-1e999")
    strings = isinstance(value, list) and all(isinstance(item, str) for item in value)
    assert strings or value is None or isinstance(value, (bool, int, float, str)), f"{key} is a {type(value).__name__}, not a plain value"
    return float.__repr__(value) if isinstance(value, float) else json.dumps(value)


class RowWriter:
    """Appends rows to a file, which it opens at the first row. `rows` is their number. `sync` may be called from another thread."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.rows = whole_lines(self.path)[0]
        self._descriptor: int | None = None
        self._pending = b""  # rows not yet written; the first one may be partly written
        self._unsynced_name = False  # True for a new file whose directory entry is not flushed yet
        self._error_logged = False
        self._lock = threading.Lock()  # not held during fsync, so that logging never waits for it

    def log(self, global_step: int, row: Mapping[str, Any]) -> None:
        """Append a row. Raise `OSError` only if more than `MAX_PENDING_BYTES` of rows cannot be written."""
        line = format_row(global_step, row).encode() + b"\n"
        with self._lock:
            self._pending += line
            self.rows += 1
            error = self._write_pending()
            if error is not None and len(self._pending) > MAX_PENDING_BYTES:
                raise OSError(error.errno, f"{error.strerror}; {len(self._pending) >> 20} MiB of rows wait to be written", str(self.path))

    def _write_pending(self) -> OSError | None:
        """Write the pending rows and return the error that prevents it, None if all are written. Log the first error and the
        recovery."""
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
            while self._pending:
                written = os.write(self._descriptor, self._pending)
                self._pending = self._pending[written:]
        except OSError as error:
            if not self._error_logged:
                self._error_logged = True
                reason = error.strerror or error
                log.error("rows can NOT be written to %s (%s); they wait in memory and will be written later", self.path, reason)
            return OSError(error.errno, error.strerror, str(self.path))
        if self._error_logged:
            self._error_logged = False
            log.warning("the rows that waited in memory are written to %s now", self.path)
        return None

    def _open(self) -> int:
        self._cut(whole_lines(self.path)[1])  # removes an incomplete line of a killed process
        self._unsynced_name = not self.path.exists()
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def truncate(self, rows: int) -> int:
        """Keep the first `rows` rows. Return the number of rows removed; it is negative if the file has fewer than `rows`."""
        self.close()
        kept, end = whole_lines(self.path, rows)
        removed = self.rows - rows
        self._cut(end)
        self.rows = kept
        return removed

    def truncate_after(self, global_step: int) -> int:
        """Keep the rows before the first one after `global_step`. Return the number of rows removed."""
        steps = [row["global_step"] for row in read_rows(self.path)]
        return self.truncate(next((number for number, step in enumerate(steps) if step > global_step), len(steps)))

    def sync(self) -> None:
        """Flush all rows logged so far to the disk. Raise `OSError` if that fails or if the file was deleted or replaced."""
        with self._lock:
            error = self._write_pending() if self._pending else None
            if error is not None:
                raise error
            descriptor = os.dup(self._descriptor) if self._descriptor is not None else None
            unsynced_name = self._unsynced_name
        if descriptor is None:
            if self.rows and not self.path.exists():
                raise FileNotFoundError(errno.ENOENT, "its rows were deleted", str(self.path))
            return
        try:
            os.fsync(descriptor)
            if not os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                raise FileNotFoundError(errno.ENOENT, "it was replaced by another file", str(self.path))
        except OSError as failed:  # the error of fsync does not name the file
            raise OSError(failed.errno, failed.strerror, str(self.path)) from None
        finally:
            os.close(descriptor)
        if unsynced_name:
            sync_file(self.path.parent)
            self._unsynced_name = False

    def close(self) -> None:
        """Write the pending rows and close the file. Log an error for rows that cannot be written; they are lost."""
        with self._lock:
            if self._pending and self._write_pending() is not None:
                log.error("%d bytes of rows are lost: %s cannot be written", len(self._pending), self.path)
                self._pending = b""
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _cut(self, end: int) -> None:
        if self.path.exists() and self.path.stat().st_size > end:
            os.truncate(self.path, end)


def whole_lines(path: Path, limit: int | None = None) -> tuple[int, int]:
    """Return the number of complete lines, at most `limit`, and the offset of their end; zeros if the file does not exist."""
    lines = end = 0
    if path.exists():
        with open(path, "rb") as file:
            for line in file:
                if lines == limit or not line.endswith(b"\n"):
                    break
                lines, end = lines + 1, end + len(line)
    return lines, end


def read_rows(path: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a file without an incomplete last line; [] if it does not exist."""
    path = Path(path)
    if not path.exists():
        return []
    with open(path, "rb") as file:
        return [json.loads(line) for line in file if line.endswith(b"\n")]


# -- all destinations ----------------------------------------------------------------------------------------------------------


class Sink(Protocol):
    """A destination besides the files, such as W&B. `start` is called before the first row; rows after `global_step` are logged again.

    `position` is the 1-based number of the row in its `stream`. A resumed run repeats the positions after its checkpoint, so the sink can
    recognise a row that it has already sent."""

    def start(self, global_step: int) -> None: ...

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class LogSinks:
    """metrics.jsonl and timings.jsonl of a run directory, and further sinks under the same names. A row of metrics contains only what the
    configuration determines; a row of timings contains times, throughput and memory. With `directory` None (ranks other than 0) every
    method does nothing."""

    def __init__(self, directory: Path | None, sinks: Sequence[Sink] = ()) -> None:
        self.sinks = list(sinks)
        self.files = {} if directory is None else {name: RowWriter(directory / f"{name}.jsonl") for name in ("metrics", "timings")}
        self._all: list[Any] = [*self.files.values(), *self.sinks]

    def log(self, global_step: int, row: Mapping[str, Any], stream: str = "metrics") -> None:
        """Write a row of metrics or of `timings`."""
        file = self.files.get(stream)
        if file is None:
            return
        file.log(global_step, row)
        for sink in self.sinks:
            sink.log(global_step, row, stream=stream, position=file.rows)

    def resume(self, state: Mapping[str, int], global_step: int) -> list[str]:
        """Cut metrics.jsonl back to the rows that the checkpoint counted and timings.jsonl to its step. Return a warning if rows are
        missing. `state` is that of `state_dict`; an empty one removes all rows."""
        if not self.files:
            return []
        for sink in self.sinks:
            sink.start(global_step)
        discarded = self.files["metrics"].truncate(state.get("rows", 0))
        self.files["timings"].truncate_after(global_step if state else -1)
        if not state and discarded:
            return [f"there is no checkpoint to continue from: the run starts again, and {discarded} rows of metrics.jsonl are removed"]
        return [f"metrics.jsonl lacks {-discarded} rows that the checkpoint counted"] if discarded < 0 else []

    def state_dict(self) -> dict[str, int]:
        """Return the number of rows of metrics so far."""
        return {"rows": self.files["metrics"].rows} if self.files else {"rows": 0}

    def sync(self) -> None:
        """Wait until all rows are on the disk; called before a checkpoint is committed."""
        for each in self._all:
            each.sync()

    def close(self) -> None:
        for each in self._all:
            each.close()
