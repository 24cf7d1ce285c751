"""Read files of disks that may fail for a moment, and tell an absent file from one that cannot be read."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from linnaeus.errors import ConfigError
from linnaeus.files.serialization import json_object

log = logging.getLogger("linnaeus")

T = TypeVar("T")
RETRY_DELAYS = (0.5, 1.5, 4.0)  # seconds before each further attempt; a failure that lasts longer is reported
ABSENT = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR))  # no readable file has that name; a retry is useless


class Unreadable(ConfigError, OSError):
    """A file that exists but cannot be read, for example because of a disk error.

    The class is also an `OSError`, so that code that handles a failed read of a single process (`except OSError`) handles it too."""


def is_absent(error: OSError) -> bool:
    """Return True if `error` means that no file of that name exists. Return False if the file exists and reading it failed."""
    return error.errno in ABSENT


def exists(path: Path, kind: Callable[[int], bool] = lambda mode: True) -> bool:
    """Return True if `path` exists and its mode satisfies the predicate `kind`, such as `stat.S_ISDIR`. By default any mode does.

    Raise `OSError` if the disk fails; in some versions of Python `Path.exists` returns False in this case."""
    try:
        return kind(os.stat(path).st_mode)
    except OSError as error:
        if is_absent(error):
            return False
        raise


def is_directory(path: Path) -> bool:
    """Return True if `path` is a directory, False if it is absent or not a directory. Raise `OSError` if the disk fails."""
    return exists(path, stat.S_ISDIR)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file as a dict. Return None if the file does not exist or does not contain a JSON object.

    Raise `OSError` if the file exists and cannot be read."""
    try:
        return json_object(path.read_bytes())
    except OSError as error:
        if is_absent(error):
            return None
        raise


def system_error(error: BaseException, path: Path) -> OSError | None:
    """Return the operating system's error behind an exception, as an `OSError` that names `path`. Return None if there is none; then the
    content of the file is wrong.

    torch and safetensors raise exceptions of several types that contain the system's error only in their message, such as `RuntimeError:
    unable to mmap ...: Cannot allocate memory (12)`."""
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


def with_retries(read: Callable[[], T]) -> T:
    """Call `read` and return its result. If `read` raises `OSError`, call it again after each delay of `RETRY_DELAYS` (seconds). If all
    calls fail, raise the last error.

    Do not retry if the file does not exist."""
    for delay in RETRY_DELAYS:
        try:
            return read()
        except OSError as error:
            if is_absent(error):
                raise
            log.warning("%s; reading again in %.1f s", error, delay)
        time.sleep(delay)
    return read()


def read_or_refuse(read: Callable[[], T]) -> T:
    """Call `read` as `with_retries` does, and raise `Unreadable` if the last attempt fails.

    The error ends the start of a run. Otherwise the run could continue from an older checkpoint because of a temporary failure of the
    disk."""
    try:
        return with_retries(read)
    except OSError as error:
        name = error.filename or "a checkpoint"
        raise Unreadable(
            f"{name} cannot be read ({error.strerror or error}); it may be intact, and nothing was skipped or deleted; "
            "check the disk and start again, or move that checkpoint away to resume from an older one"
        ) from None
