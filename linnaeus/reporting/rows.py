"""Write and read metrics.jsonl, reports.jsonl and timings.jsonl: one row of metrics per line, as JSON.

Format: a row starts with `global_step`; its other keys are in alphabetical order. A float has the fewest digits that restore its exact
value. NaN (an undefined metric) is written as null, an infinity as 1e999, which JSON readers parse as infinity. Equal runs write equal
bytes, so `cmp` can compare their metrics.jsonl.

Writing: each row is passed to the operating system at once, so a killed process loses no row. `sync` also flushes the rows to the disk. If
the disk refuses a write, the rows wait in memory, up to `MAX_PENDING_BYTES`, and are tried again with every later row and `sync`.

Resuming: a checkpoint contains the number of rows written until then. A resumed run removes all later rows and writes them again. It also
removes damaged lines and logs their line numbers. All functions that read rows skip damaged lines.
"""

import contextlib
import errno
import heapq
import itertools
import json
import logging
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from linnaeus.errors import counted
from linnaeus.files import json_object, no_follow, sync_file, write_atomic

log = logging.getLogger("linnaeus")

PLAIN = {int, float, str, bool, type(None)}
DEAD = (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ENODEV)  # of a disk that was disconnected: an open file may never work again
MAX_PENDING_BYTES = 64 << 20  # per file, about 100,000 rows; if more rows wait, the run fails


def format_row(global_step: int, row: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON without its newline. Values are numbers, strings, booleans, None or lists of strings. Raise
    `AssertionError` for a tensor: reading it would wait for the device."""
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
    """Writer that appends rows to the file `path`, which is opened at the first row. Another thread may call `sync`. rows: number of rows
    in the file. of_step: number of rows of the newest step. lost: number of rows that were written before a checkpoint was saved but are no
    longer in the file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.rows = whole_lines(self.path)[0]
        self.of_step = self.lost = 0
        self._step: int | None = None
        self._descriptor: int | None = None
        self._pending = b""  # rows not yet written; the first one may be partly written
        self._begun = b""  # the part of it that is written
        self._dropped = False  # True if the file must be opened again
        self._unsynced_name = False  # True for a new file whose directory entry is not flushed yet
        self._error_logged = False
        self._lock = threading.Lock()  # not held during fsync, so that logging never waits for it

    def log(self, global_step: int, row: Mapping[str, Any]) -> None:
        """Append a row. Raise `OSError` only if more than `MAX_PENDING_BYTES` of rows cannot be written."""
        line = format_row(global_step, row).encode() + b"\n"
        with self._lock:
            self._pending += line
            self.rows += 1
            self.of_step = self.of_step + 1 if global_step == self._step else 1
            self._step = global_step
            error = self._write_pending()
            if error is not None and len(self._pending) > MAX_PENDING_BYTES:
                raise OSError(error.errno, f"{error.strerror}; {len(self._pending) >> 20} MiB of rows wait to be written", str(self.path))

    def _write_pending(self) -> OSError | None:
        """Write the pending rows. Return None if all are written, otherwise the error. Log the first error and the next success."""
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
            while self._pending:
                written = os.write(self._descriptor, self._pending)
                self._begun = (self._begun + self._pending[:written]).rpartition(b"\n")[2]
                self._pending = self._pending[written:]
        except OSError as error:
            if error.errno in DEAD:
                self._drop()
            if not self._error_logged:
                self._error_logged = True
                reason = error.strerror or error
                log.error("rows can NOT be written to %s (%s); they wait in memory and will be written later", self.path, reason)
            return OSError(error.errno, error.strerror, str(self.path))
        if self._error_logged:
            self._error_logged = False
            log.warning("the rows that waited in memory are written to %s now", self.path)
        return None

    def _drop(self) -> None:
        """Close the file, so that the next write opens it again and writes the whole first pending row."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor, self._dropped = None, True
            self._pending, self._begun = self._begun + self._pending, b""

    def _open(self) -> int:
        lines, end = whole_lines(self.path)
        if self._dropped and lines != self.rows - self._pending.count(b"\n"):
            raise FileNotFoundError(errno.ENOENT, "its rows were deleted, or it was replaced by another file", str(self.path))
        self._dropped = False
        self._cut(end)  # removes an incomplete line of a killed process
        self._unsynced_name = not self.path.exists()
        return no_follow(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def counters(self) -> dict[str, int]:
        """Return the row counts to save in a checkpoint of the newest step: arguments of `truncate`, by name."""
        return {"rows": self.rows, "of_step": self.of_step, "lost": self.lost}

    def truncate(self, global_step: int, rows: int, of_step: int | None = None, lost: int = 0) -> int:
        """Cut the file back to the first `rows` rows, as it was when the checkpoint of `global_step` was saved. Return the number of rows
        removed, or minus the number of rows missing.

        of_step: number of rows of `global_step` among them; None: unknown. lost: number of rows that were already lost then. If a line is
        damaged or missing, rows cannot be counted by lines: then all intact rows of earlier steps and the first `of_step` rows of
        `global_step` are kept."""
        self.close()
        found, (kept, end) = self.rows, whole_lines(self.path, rows)
        if kept == rows and _are_rows_until(self.path, rows, global_step):
            self._cut(end)
        else:
            kept = self._keep_intact(global_step, of_step)
        self.rows, self.lost = kept, lost + max(0, rows - kept)
        self.of_step, self._step = of_step or 0, global_step
        return found - rows if kept >= rows else kept - rows

    def truncate_after(self, global_step: int) -> int:
        """Remove the rows after `global_step` and damaged lines. Return the number of lines removed."""
        self.close()
        found, self.rows = self.rows, self._keep_intact(global_step, None)
        return found - self.rows

    def _keep_intact(self, global_step: int, of_step: int | None) -> int:
        """Keep the intact rows before `global_step`, and the first `of_step` rows of `global_step` (None: all). Log which lines are
        damaged. Return the number of rows kept."""
        kept, damaged, at_step = [], [], 0
        lines = list(complete_lines(self.path))
        for number, line in enumerate(lines, 1):
            row = parse_row(line)
            if row is None:
                damaged.append(number)
                continue
            at_step += row["global_step"] == global_step
            if row["global_step"] < global_step or (row["global_step"] == global_step and (of_step is None or at_step <= of_step)):
                kept.append(line)
        if kept == lines[: len(kept)]:
            self._cut(sum(map(len, kept)))
        else:
            write_atomic(self.path, b"".join(kept))
        if damaged:
            log.warning("%s: %s are removed: their rows are lost, and the others are kept", self.path, _name_lines(damaged))
        return len(kept)

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
        """Write the pending rows and close the file. Rows that cannot be written are lost, which is logged as an error."""
        with self._lock:
            if self._pending and self._write_pending() is not None:
                log.error("%d bytes of rows are lost: %s cannot be written", len(self._pending), self.path)
                self._pending = b""
            self._begun, self._dropped = b"", False
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _cut(self, end: int) -> None:
        if self.path.exists() and self.path.stat().st_size > end:
            with open(self.path, "r+b", opener=no_follow) as file:
                file.truncate(end)


def whole_lines(path: Path, limit: int | None = None) -> tuple[int, int]:
    """Return (number of complete lines, byte offset of their end), counting at most `limit` lines; (0, 0) if the file does not exist."""
    lines = end = 0
    if path.exists():
        with open(path, "rb") as file:
            for line in file:
                if lines == limit or not line.endswith(b"\n"):
                    break
                lines, end = lines + 1, end + len(line)
    return lines, end


def complete_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, none if it does not exist."""
    if path.exists():
        with open(path, "rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the row in a line of JSON; None if the line is damaged."""
    row = json_object(line)
    return row if row is not None and type(row.get("global_step")) is int else None


def read_rows(path: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a file; [] if it does not exist. Leave out an incomplete last line, and log which lines are damaged."""
    return [row for _, row in numbered_rows(path)]


def numbered_rows(path: Path | str) -> list[tuple[int, dict[str, Any]]]:
    """Return (number of the line, row) for the rows of a file, as `read_rows` does."""
    rows = [parse_row(line) for line in complete_lines(Path(path))]
    damaged = [number for number, row in enumerate(rows, 1) if row is None]
    if damaged:
        log.warning("%s: %s are left out", path, _name_lines(damaged))
    return [(number, row) for number, row in enumerate(rows, 1) if row is not None]


def merge_rows(
    streams: Mapping[str, list[dict[str, Any]]], lost: Mapping[str, int] | None = None
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield (stream, position, row) of the rows of all streams, in the order of their steps. streams: name of the stream -> rows. The first
    position of a stream is 1 + `lost[stream]`, the number of rows that were logged but are no longer in the file."""
    first = lost or {}
    numbered = [[(name, number, row) for number, row in enumerate(rows, 1 + first.get(name, 0))] for name, rows in streams.items()]
    yield from heapq.merge(*numbered, key=lambda found: found[2]["global_step"])


def _are_rows_until(path: Path, rows: int, global_step: int) -> bool:
    """Return True if each of the first `rows` lines of the file is an intact row of a step up to `global_step`.

    If the file has fewer complete lines, only these are checked."""
    first = (parse_row(line) for line in itertools.islice(complete_lines(path), rows))
    return all(row is not None and row["global_step"] <= global_step for row in first)


def _name_lines(numbers: Sequence[int]) -> str:
    """Return a text with the number of damaged lines and the first five line numbers. numbers: line numbers of all damaged lines."""
    return f"{counted(len(numbers), 'damaged line')} ({', '.join(map(str, numbers[:5]))}{', ...' if len(numbers) > 5 else ''})"


# -- all destinations ----------------------------------------------------------------------------------------------------------


Row = tuple[str, int, dict[str, Any]]  # (stream, position, row)


class Sink(Protocol):
    """Destination of metric rows besides the files, such as W&B.

    `start` is called before the first row. The run continues after `global_step`; later rows of earlier launches will be logged again.
    `earlier` has the rows up to `global_step`, in the order of their steps.

    `position` is the number of a row in its `stream` (metrics or timings), from 1. A resumed run repeats the positions after its
    checkpoint, so the sink can recognise a row that it has already sent.

    `close` is called at the end of the launch with its status, one of `results.STATUSES`, which a sink shows if it can. The file
    summary.json may not contain this status yet."""

    def start(self, global_step: int, earlier: Iterable[Row]) -> None: ...

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None: ...

    def sync(self) -> None: ...

    def close(self, status: str = "running") -> None: ...


class LogSinks:
    """Writer of all metric rows of a run: to metrics.jsonl and timings.jsonl in `directory`, and to the destinations `sinks`. A row of
    metrics contains only values that the configuration determines; a row of timings contains times, throughput and memory. With `directory`
    None (ranks other than 0) every method does nothing."""

    def __init__(self, directory: Path | None, sinks: Sequence[Sink] = ()) -> None:
        self.sinks = list(sinks)
        self.files = {} if directory is None else {name: RowWriter(directory / f"{name}.jsonl") for name in ("metrics", "timings")}
        self._all: list[Any] = [*self.files.values(), *self.sinks]

    def log(self, global_step: int, row: Mapping[str, Any], stream: str = "metrics") -> None:
        """Write a row to the file of `stream` (metrics or timings) and to all sinks."""
        file = self.files.get(stream)
        if file is None:
            return
        file.log(global_step, row)
        for sink in self.sinks:
            sink.log(global_step, row, stream=stream, position=file.rows + file.lost)

    def resume(self, state: Mapping[str, int], global_step: int) -> list[str]:
        """Cut metrics.jsonl back to the rows at the checkpoint of `global_step`, remove later rows from timings.jsonl, and start the sinks.
        Return a list with one warning if rows are missing, or if rows were removed because there is no checkpoint; otherwise []. state:
        result of `state_dict` in the checkpoint; {} (no checkpoint) removes all rows."""
        if not self.files:
            return []
        discarded = self.files["metrics"].truncate(global_step, **(state or {"rows": 0}))
        self.files["timings"].truncate_after(global_step if state else -1)
        for sink in self.sinks:
            sink.start(global_step, self._rows())
        if not state and discarded:
            return [
                f"there is no checkpoint to continue from: the run starts again; removed from metrics.jsonl: {counted(discarded, 'row')}"
            ]
        return [f"metrics.jsonl lacks {counted(-discarded, 'row')} that the checkpoint counted"] if discarded < 0 else []

    def _rows(self) -> Iterator[Row]:
        """Yield (stream, position, row) for the rows of both files, in the order of their steps."""
        files = self.files.items()
        yield from merge_rows({name: read_rows(file.path) for name, file in files}, {name: file.lost for name, file in files})

    def state_dict(self) -> dict[str, int]:
        """Return the row counts of metrics.jsonl to save in a checkpoint; {"rows": 0} on ranks other than 0."""
        return self.files["metrics"].counters() if self.files else {"rows": 0}

    def sync(self) -> None:
        """Wait until all rows are on the disk and the sinks have sent all rows. Called before a checkpoint is committed."""
        for each in self._all:
            each.sync()

    def close(self, status: str = "running") -> None:
        """Close the files and the sinks. status: status of the run, as in summary.json."""
        for file in self.files.values():
            file.close()
        for sink in self.sinks:
            sink.close(status)
