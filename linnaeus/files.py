"""Atomic writes, and reads that retry: every file of a run is complete on disk or absent.

A file or directory is written under a temporary `.tmp-` name beside its final name, flushed to the disk, then renamed. A rename
within one directory is atomic on POSIX file systems. A killed process leaves only `.tmp-` names behind; `remove_stale` deletes them
when the next process has the run's lock.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from linnaeus.errors import ConfigError

log = logging.getLogger("linnaeus")

TEMPORARY = ".tmp-"  # prefix of everything that is not committed
REPLACED = ".replaced"  # suffix of a committed directory while another one of the same name replaces it


def write_atomic(path: Path | str, content: bytes | str) -> None:
    """Write a whole file. After a crash at any instant it contains either the old or the new content. A str is encoded by `to_utf8`."""
    with atomic_file(path) as file:
        file.write(to_utf8(content) if isinstance(content, str) else content)


@contextmanager
def atomic_file(path: Path | str) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` at the end, as `write_atomic` does."""
    path = Path(path)
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{threading.get_ident()}")
    with open(temporary, "wb", opener=no_follow) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_file(path.parent)  # a rename is durable only after its directory is flushed


def no_follow(path: str | Path, flags: int) -> int:
    """Open a file for writing and return its descriptor; an `opener` of `open`. Raise `OSError` for a symbolic link, so that no file
    outside the run directory is changed."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "it is a symbolic link; delete it, or replace it with the file", str(path)) from None
        raise


def refuse_links(directory: Path, patterns: Iterable[str]) -> None:
    """Raise `ConfigError` if a path in a directory that matches a pattern is a symbolic link, a pipe or a directory instead of a file."""
    for path in (path for pattern in patterns for path in sorted(directory.glob(pattern))):
        if path.is_symlink() or not path.is_file():
            kind = "a symbolic link" if path.is_symlink() else "not a file"
            raise ConfigError(f"run.root: {path} is {kind}, but must be a file of this directory; delete it, or choose another name")


def to_utf8(text: str) -> bytes:
    """Return a text as UTF-8. Bytes of a file name that is not UTF-8, which Python represents as surrogates, become escapes such as
    `\\udcff`; in a JSON string this is the same text."""
    return text.encode(errors="backslashreplace")


def to_json(content: Any, indent: int | None = 2) -> str:
    """Return the JSON text of a value, with a final newline. `indent=None`: on one line. Floats that JSON does not have: see `finite`."""
    return json.dumps(finite(content), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as CSV with a header; "" for none."""
    text = io.StringIO()
    if rows:
        table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    return text.getvalue()


def finite(value: Any) -> Any:
    """Return a copy of nested containers with NaN as None and infinities as the texts "Infinity" and "-Infinity"."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def from_finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of which `finite(metrics)` was written."""
    values = {None: math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    return {name: values.get(value, value) if value is None or isinstance(value, str) else value for name, value in metrics.items()}


def content_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the JSON text of a mapping without its own `sha256` entry."""
    return text_digest(json.dumps({key: value for key, value in content.items() if key != "sha256"}, sort_keys=True))


def sync_file(path: Path | str) -> None:
    """Flush a file or a directory to the disk. Raise `OSError` that names the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # the one from fsync contains no file name
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def commit_directory(temporary: Path, final: Path) -> None:
    """Flush every file in and below `temporary` and rename it to `final`.

    An existing `final` is renamed to `final.replaced` first and deleted afterwards. After a crash between the two renames,
    `restore_replaced` renames it back. On `OSError` the new directory is not committed, and the old one still exists under either name.
    """
    for file in sorted(temporary.rglob("*")):
        sync_file(file)
    sync_file(temporary)
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
    sync_file(final.parent)
    if replaced.exists():
        remove_or_warn(replaced)  # the new directory is committed, even if the old one cannot be deleted


def remove_directory(path: Path) -> None:
    """Delete a directory. A crash never leaves it incomplete under its own name."""
    renamed = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-deleted")
    os.rename(path, renamed)
    delete(renamed)


def remove_or_warn(path: Path) -> bool:
    """Call `remove_directory` and return True. On `OSError` log a warning and return False."""
    try:
        remove_directory(path)
    except OSError as error:
        log.warning("%s is no longer used but could not be deleted (%s); it takes up space", path, error.strerror or error)
        return False
    return True


def delete(path: Path) -> None:
    """Delete a file, or a directory with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def restore_replaced(directory: Path) -> None:
    """Complete the replacements that a crash interrupted: delete the old directory if the new one exists, else rename it back."""
    for old in sorted(directory.glob(f"*{REPLACED}")):
        final = old.with_name(old.name.removesuffix(REPLACED))
        if final.exists():
            remove_or_warn(old)
        else:
            os.rename(old, final)


def remove_stale(directory: Path) -> list[str]:
    """Delete the temporary files of killed processes in `directory` and return their names. The caller must have the run's lock.

    Log a warning for each one that cannot be deleted (a network disk keeps files that a process has open).
    """
    removed = []
    for path in sorted(directory.glob(f"{TEMPORARY}*")) if directory.is_dir() else []:
        try:
            delete(path)
        except OSError as error:
            log.warning("the temporary file %s could not be deleted (%s); it takes up space", path, error.strerror or error)
        else:
            removed.append(path.name)
    return removed


def file_digest(path: Path | str) -> str:
    """Return the SHA-256 of a file in hexadecimal (about 1.5 GB/s on a CPU with SHA instructions)."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text in hexadecimal."""
    return hashlib.sha256(to_utf8(text)).hexdigest()


# -- reading ------------------------------------------------------------------------------------------------------------------

T = TypeVar("T")
RETRY_DELAYS = (0.5, 1.5, 4.0)  # seconds before each further attempt; longer failures are reported instead of waited for
ABSENT = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR))  # no readable file has that name; a retry is useless


class Unreadable(ConfigError, OSError):
    """A file cannot be read at present. Also an `OSError`, so that a process that fails alone can report it to the other ones."""


def is_absent(error: OSError) -> bool:
    """Return True if the file does not exist, False if it exists but cannot be read at present."""
    return error.errno in ABSENT


def exists(path: Path, kind: Callable[[int], bool] = lambda mode: True) -> bool:
    """Return True if `path` exists and is of this kind (such as `stat.S_ISDIR`).

    Raise `OSError` if the disk fails; `Path.exists` returns False then in some versions of Python.
    """
    try:
        return kind(os.stat(path).st_mode)
    except OSError as error:
        if is_absent(error):
            return False
        raise


def is_directory(path: Path) -> bool:
    """Return True if `path` is a directory. Raise `OSError` if it exists but cannot be read, for example on a disk error."""
    return exists(path, stat.S_ISDIR)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file. Return None if the file does not exist or contains anything else. Raise `OSError` if the disk
    fails."""
    try:
        return json_object(path.read_bytes())
    except OSError as error:
        if is_absent(error):
            return None
        raise


def json_object(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a content, None if it contains anything else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def system_error(error: BaseException, path: Path) -> OSError | None:
    """Return the error of the operating system behind an exception, as an `OSError` that names `path`; None if the content is wrong.

    torch and safetensors raise several types with the error only in the message, such as
    `RuntimeError: unable to mmap ...: Cannot allocate memory (12)`.
    """
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
    """Return `read()`. On `OSError` retry after each of `RETRY_DELAYS`, then raise it. Raise at once if the file is absent."""
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
    """Return `with_retries(read)`. Raise `Unreadable` at the end, so that no run starts from another file because a disk fails."""
    try:
        return with_retries(read)
    except OSError as error:
        name = error.filename or "a checkpoint"
        raise Unreadable(
            f"{name} cannot be read ({error.strerror or error}); it may be intact, and nothing was skipped or deleted; "
            "check the disk and start again, or move that checkpoint away to resume from an older one"
        ) from None
