"""Append rows of metrics to a file, and cut the file back when a run resumes (`linnaeus.reporting.jsonl.rows` has the format).

Writing: each row is passed to the operating system at once, so a killed process loses no row. `sync` also flushes the rows to the disk. If
the disk refuses a write, the rows wait in memory, up to `MAX_PENDING_BYTES`, and are tried again with every later row and `sync`.

Resuming: a checkpoint contains the number of rows written until then. A resumed run removes all later rows and writes them again. It also
removes damaged lines and logs their line numbers.
"""

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.files import no_follow, sync_file, write_atomic
from linnaeus.reporting.jsonl.rows import are_rows_until, complete_lines, format_row, name_lines, parse_row, whole_lines

log = logging.getLogger("linnaeus")

DEAD = (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ENODEV)  # of a disk that was disconnected: an open file may never work again
MAX_PENDING_BYTES = 64 << 20  # per file, about 100,000 rows; if more rows wait, the run fails


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
        if kept == rows and are_rows_until(self.path, rows, global_step):
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
            log.warning("%s: %s are removed: their rows are lost, and the others are kept", self.path, name_lines(damaged))
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
