"""Write a file and compute its SHA-256 at the same time, so that the manifest of a checkpoint needs no second read.

Data is written without a buffer, in pieces of 8 MiB. Writing and hashing a piece both release the interpreter's lock, so the training
thread waits only for a few instructions between pieces.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

PIECE = 8 << 20  # bytes written and hashed at a time: still in the cache when they are hashed


class FileEntry(NamedTuple):
    """Entry of a file in the manifest: its size in bytes and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


class HashingWriter:
    """A new file to which `torch.save` or `write` writes, as a context manager. `entry` is valid after the `with` block.

    The first `OSError` is stored and raised at the end of the `with` block, and later writes are ignored: torch's zip writer calls
    `write` from C++, where an exception is not safe. Nothing is flushed to the disk; `commit_directory` does that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.error: OSError | None = None
        self._hash = hashlib.sha256()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: Any) -> int:
        """Write all of `data`, a contiguous buffer, and return its length in bytes."""
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view) if self.error is None else 0, PIECE):
                piece = view[start : start + PIECE]
                self._hash.update(piece)
                self.size += len(piece)
                while piece:  # `os.write` may write a part only; the next call then raises the error
                    piece = piece[os.write(self._descriptor, piece) :]
        except OSError as error:
            self.error = OSError(error.errno, error.strerror, str(self.path))
        return len(view)

    def flush(self) -> None:
        """Do nothing, because there is no buffer. `torch.save` requires the method."""

    @property
    def entry(self) -> FileEntry:
        """Return the size and hash of the data written so far."""
        return FileEntry(self.size, self._hash.hexdigest())

    def __enter__(self) -> HashingWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        try:
            os.close(self._descriptor)  # a network disk may report a full quota only here
        except OSError as error:
            self.error = self.error or OSError(error.errno, error.strerror, str(self.path))
        if self.error is not None and (kind is None or issubclass(kind, Exception)):
            raise self.error
