"""The one place that knows how a file appears on disk whole or not at all.

A file or directory is written beside its final name under a `.tmp-` name, flushed to the disk, then renamed; a rename within
one directory is atomic on POSIX file systems. What a killed process left behind still carries the `.tmp-` name, and
`remove_stale` deletes it when the next process holds the run's lock.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from linnaeus.errors import ConfigError

log = logging.getLogger("linnaeus")

TEMPORARY = ".tmp-"  # prefix of everything that is not committed
REPLACED = ".replaced"  # suffix of a committed directory while its successor of the same name moves in


def write_atomic(path: Path | str, content: bytes | str) -> None:
    """Write a whole file; after a crash at any instant it holds the old content or the new, never a mix (str is UTF-8)."""
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{threading.get_ident()}")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def sync_file(path: Path | str) -> None:
    """Wait until a file's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # of itself it names no file
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


sync_directory = sync_file  # a rename is durable once the directory that holds the names is flushed


def commit_directory(temporary: Path, final: Path) -> None:
    """Flush every file of `temporary` and give the directory its final name. OSError: it is not to be counted on, and what
    had that name before is there, under it or as below.

    A directory that already has that name steps aside to `final.replaced` and is deleted afterwards. A crash between the two
    renames leaves it whole under that name, and `restore_replaced` puts it back.
    """
    for file in sorted(temporary.iterdir()):
        sync_file(file)
    sync_directory(temporary)
    replaced = final.with_name(final.name + REPLACED)
    if final.exists():
        if replaced.exists():
            delete(replaced)
        os.rename(final, replaced)
    try:
        os.rename(temporary, final)
    except OSError:
        if replaced.exists():
            os.rename(replaced, final)
        raise
    sync_directory(final.parent)
    if replaced.exists():
        try_to_remove(replaced)  # what was written counts in any case


def remove_directory(path: Path) -> None:
    """Delete a directory so that a crash in the middle never leaves half of it under its own name."""
    doomed = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-deleted")
    os.rename(path, doomed)
    delete(doomed)


def try_to_remove(path: Path) -> bool:
    """`remove_directory`, or a line in the log that says why it stays: a full or stubborn disk is no reason to stop."""
    try:
        remove_directory(path)
    except OSError as error:
        log.warning("%s is of no use any more but could not be deleted (%s); it takes up space", path, error.strerror or error)
        return False
    return True


def delete(path: Path) -> None:
    """Remove a directory with what is in it, or a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def restore_replaced(directory: Path) -> None:
    """Finish or undo the replacements a crash cut off: the old directory goes if its successor is there, else it returns."""
    for old in sorted(directory.glob(f"*{REPLACED}")):
        final = old.with_name(old.name.removesuffix(REPLACED))
        if final.exists():
            try_to_remove(old)
        else:
            os.rename(old, final)


def remove_stale(directory: Path) -> list[str]:
    """Delete what was left uncommitted here; returns the names. Call it only while holding the run's lock. What cannot be deleted
    (a network disk keeps a file that some process still has open) is named in the log and stays, harmless but for its space."""
    removed = []
    for path in sorted(directory.glob(f"{TEMPORARY}*")) if directory.is_dir() else []:
        try:
            delete(path)
        except OSError as error:
            log.warning("the leftover %s could not be deleted (%s); it only takes up space", path, error.strerror or error)
        else:
            removed.append(path.name)
    return removed


def file_digest(path: Path | str) -> str:
    """SHA-256 of a file's content, hexadecimal (about 1.5 GB/s where the CPU has the instructions)."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_digest(text: str) -> str:
    """SHA-256 of a text, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


# -- reading ------------------------------------------------------------------------------------------------------------------

T = TypeVar("T")
PAUSES = (0.5, 1.5, 4.0)  # seconds before each further try: a moment's trouble passes, for a longer one nobody should wait unasked
ABSENT = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR))  # nothing readable has that name, and waiting brings none


class Unreadable(ConfigError, OSError):
    """The disk cannot be read now; one line that says what to do. Also an OSError: what one process alone meets, others must be told."""


def is_absent(error: OSError) -> bool:
    """Whether there is no such file, as opposed to one that cannot be read now."""
    return error.errno in ABSENT


def is_there(path: Path, kind: Callable[[int], bool] = lambda mode: True) -> bool:
    """Whether there is such a file, of that kind (`stat.S_ISDIR`). OSError when the disk does not say, which `Path.exists` of some
    versions of Python takes for no."""
    try:
        return kind(os.stat(path).st_mode)
    except OSError as error:
        if is_absent(error):
            return False
        raise


def is_directory(path: Path) -> bool:
    """Like `Path.is_dir`, but OSError when the disk does not say."""
    return is_there(path, stat.S_ISDIR)


def system_error(error: BaseException, path: Path) -> OSError | None:
    """What the system said, as an OSError that names the file; None when it is the content that was found wrong. The loaders of torch and
    safetensors tell it in words alone, in exceptions of several kinds (`RuntimeError: unable to mmap ...: Cannot allocate memory (12)`)."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None:
        text = str(error)
        code = next((int(number) for number in re.findall(r"\b\d{1,3}\b", text) if int(number) and os.strerror(int(number)) in text), None)
    if code is None and isinstance(error, FileNotFoundError):
        code = errno.ENOENT
    if code is None and isinstance(error, MemoryError):
        code = errno.ENOMEM
    if code is not None:
        return OSError(code, os.strerror(code), str(path))
    return error if isinstance(error, OSError) else None


def tried_again(read: Callable[[], T]) -> T:
    """What `read` returns, which may raise OSError a few times first. The last one is raised; that of a file that is not there at once."""
    for pause in PAUSES:
        try:
            return read()
        except OSError as error:
            if is_absent(error):
                raise
            log.warning("%s; reading again in %.1f s", error, pause)
        time.sleep(pause)
    return read()


def read_or_refuse(read: Callable[[], T]) -> T:
    """`tried_again`, with `Unreadable` in the end: nobody goes on from something else because a disk is away."""
    try:
        return tried_again(read)
    except OSError as error:
        what = error.filename or "a checkpoint"
        raise Unreadable(
            f"{what} cannot be read ({error.strerror or error}), which does not mean that it is damaged: nothing was skipped or deleted; "
            "see to that disk and start again, or move that checkpoint away to go on from an older one"
        ) from None
