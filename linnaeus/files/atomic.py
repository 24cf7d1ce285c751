"""Write single files atomically: every file of a run is complete on disk or absent."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from linnaeus.errors import ConfigError
from linnaeus.files.serialization import to_utf8

TEMPORARY = ".tmp-"  # prefix of everything that is not committed


def write_atomic(path: Path | str, content: bytes | str) -> None:
    """Replace the content of a file atomically: after a crash at any instant the file has the old or the new content.

    Encode a str by `to_utf8`."""
    with atomic_file(path) as file:
        file.write(to_utf8(content) if isinstance(content, str) else content)


@contextmanager
def atomic_file(path: Path | str) -> Iterator[BinaryIO]:
    """Return a context manager that opens a temporary file for writing. At the end of the block the file is flushed and renamed to `path`.

    If the block or a write raises, `path` is unchanged and the temporary file is deleted: on a full disk it would take up space."""
    path = Path(path)
    if not path.name:  # "." or "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{threading.get_ident()}")
    file = open(temporary, "wb", opener=no_follow)  # noqa: SIM115 (closed in the block below)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except Exception:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_file(path.parent)  # a rename is durable only after its directory is flushed


def no_follow(path: str | Path, flags: int) -> int:
    """Open a file for writing and return its descriptor. This is an `opener` for the built-in `open`. `flags`: as `open` passes them.

    Raise `OSError` if `path` is a symbolic link, so that no file outside the run directory is changed."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "it is a symbolic link; delete it, or replace it with the file", str(path)) from None
        raise


def refuse_links(directory: Path, patterns: Iterable[str]) -> None:
    """Raise `ConfigError` if an entry of `directory` that matches one of the glob `patterns` is anything but a regular file. A symbolic
    link is also refused."""
    for path in (path for pattern in patterns for path in sorted(directory.glob(pattern))):
        if path.is_symlink() or not path.is_file():
            kind = "a symbolic link" if path.is_symlink() else "not a file"
            raise ConfigError(f"run.root: {path} is {kind}, but must be a file of this directory; delete it, or choose another name")


def sync_file(path: Path | str) -> None:
    """Flush a file or a directory to the disk (fsync). If that fails, raise `OSError` with the name of the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # an error of fsync does not contain the file name
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def refuse_read_only(folder: Path, name: str, remedy: str) -> None:
    """Raise `ConfigError` if no file can be made in `folder`, or, if it does not exist, in the nearest folder above it.

    Call this before a long computation whose results go there. `name`: the argument that gave the folder, for the message, such as RUN."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{name}: {nearest} cannot be written; {remedy}")
