"""A file that knows its SHA-256 the moment it is written, so that a checkpoint's manifest costs no second read.

Written without a buffer of its own, in pieces: the copy into the page cache and the hash each release the interpreter's lock, and
between two pieces a training thread beside never waits for longer than the piece's few instructions.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

PIECE = 8 << 20  # bytes written and hashed at a time: still in the cache for the second of the two


class FileEntry(NamedTuple):
    """What the manifest says of a file: bytes, and SHA-256 in hexadecimal."""

    size: int
    sha256: str


class HashedFile:
    """A new file for `torch.save` or for bytes; `entry` once it is closed.

    The first OSError of a write is kept and raised at the end of the `with` block, and what comes after it is dropped: torch's zip
    writer calls `write` from C++ through which no exception passes safely. Nothing is flushed to the disk (committing does that).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.error: OSError | None = None
        self._hash = hashlib.sha256()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: Any) -> int:
        """All of `data`, any contiguous buffer of bytes; returns its length."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE):
            if self.error is not None:
                break
            self._write_piece(view[start : start + PIECE])
        return len(view)

    def _write_piece(self, piece: memoryview) -> None:
        self._hash.update(piece)
        self.size += len(piece)
        while piece:  # a short write is no error: the next one says what is wrong
            try:
                written = os.write(self._descriptor, piece)
            except OSError as error:
                self.error = OSError(error.errno, error.strerror, str(self.path))
                return
            piece = piece[written:]

    def flush(self) -> None:
        """Nothing is held back."""

    @property
    def entry(self) -> FileEntry:
        return FileEntry(self.size, self._hash.hexdigest())

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        try:
            os.close(self._descriptor)  # on a network disk a quota may speak up only here
        except OSError as error:
            self.error = self.error or OSError(error.errno, error.strerror, str(self.path))
        if self.error is not None and (kind is None or issubclass(kind, Exception)):
            raise self.error
