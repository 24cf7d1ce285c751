"""Write files atomically, and retry reads that fail: every file of a run is complete on disk or absent.

A file or directory is written under a temporary `.tmp-` name in the directory of its final name, flushed to the disk, then renamed. A
rename within one directory is atomic on POSIX file systems. A killed process leaves only `.tmp-` names; `remove_stale` deletes them when
the next process has locked the run directory.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from linnaeus.errors import ConfigError

log = logging.getLogger("linnaeus")

TEMPORARY = ".tmp-"  # prefix of everything that is not committed
REPLACED = ".replaced"  # suffix of a committed directory while another one of the same name replaces it


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


def to_utf8(text: str) -> bytes:
    r"""Return `text` encoded as UTF-8.

    Python represents bytes of a file name that are not UTF-8 as surrogates. Each surrogate is written as an escape such as `\udcff`, which
    a JSON reader turns back into the surrogate."""
    return text.encode(errors="backslashreplace")


def to_json(content: Any, indent: int | None = 2) -> str:
    """Return `content` as JSON text with a final newline. `indent=None` writes one line. NaN and infinities are replaced as in `finite`."""
    return json.dumps(finite(content), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return `rows` as CSV text with a header line; "" if there are no rows. All rows have the same keys, which are the columns."""
    text, table = io.StringIO(), None
    for row in rows:
        if table is None:
            table = csv.DictWriter(text, list(row), lineterminator="\n")
            table.writeheader()
        table.writerow(row)
    return text.getvalue()


def finite(value: Any) -> Any:
    """Return a copy of nested containers for JSON: NaN becomes None, and infinities become the strings "Infinity" and "-Infinity"."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def from_finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a flat mapping in which the replacements by `finite` are undone: None becomes NaN, "Infinity" becomes infinite."""
    values = {None: math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    return {name: values.get(value, value) if value is None or isinstance(value, str) else value for name, value in metrics.items()}


def content_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of the JSON text of `content` without its entry "sha256", which is where the digest is stored."""
    return text_digest(json.dumps({key: value for key, value in content.items() if key != "sha256"}, sort_keys=True))


def sync_file(path: Path | str) -> None:
    """Flush a file or a directory to the disk (fsync). If that fails, raise `OSError` with the name of the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # an error of fsync does not contain the file name
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def commit_directory(temporary: Path, final: Path) -> None:
    """Flush all files below the directory `temporary` to the disk and rename the directory to `final`.

    If `final` exists, it is first renamed to `final.replaced`, and deleted afterwards. After a crash between the two renames,
    `restore_replaced` renames `final.replaced` back to `final`. If this function raises `OSError`, the old directory still exists under one
    of these two names."""
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
    """Rename a directory to a temporary name, then delete it. After a crash the directory is either complete under its own name or
    absent."""
    renamed = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-deleted")
    os.rename(path, renamed)
    delete(renamed)


def remove_or_warn(path: Path) -> bool:
    """Delete a directory by `remove_directory` and return True. If `remove_directory` raises `OSError`, log a warning and return False."""
    try:
        remove_directory(path)
    except OSError as error:
        log.warning("%s is no longer used but could not be deleted (%s); it takes up space", path, error.strerror or error)
        return False
    return True


def delete(path: Path) -> None:
    """Delete a file, or a directory with all its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def restore_replaced(directory: Path) -> None:
    """Complete the replacements by `commit_directory` that a crash interrupted in `directory`.

    Delete each `NAME.replaced` if the new directory NAME exists; otherwise rename it back to NAME."""
    for old in sorted(directory.glob(f"*{REPLACED}")):
        final = old.with_name(old.name.removesuffix(REPLACED))
        if final.exists():
            remove_or_warn(old)
        else:
            os.rename(old, final)


def remove_stale(directory: Path) -> list[str]:
    """Delete the temporary files that killed processes left in `directory`. Return the names of the deleted files.

    The caller must have locked the run, so that no live process writes there. Log a warning for each file that cannot be deleted (a network
    disk refuses to delete files that a process has open)."""
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


def refuse_read_only(folder: Path, name: str, remedy: str) -> None:
    """Raise `ConfigError` if no file can be made in `folder`, or, if it does not exist, in the nearest folder above it.

    Call this before a long computation whose results go there. `name`: the argument that gave the folder, for the message, such as RUN."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{name}: {nearest} cannot be written; {remedy}")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file as a dict. Return None if the file does not exist or does not contain a JSON object.

    Raise `OSError` if the file exists and cannot be read."""
    try:
        return json_object(path.read_bytes())
    except OSError as error:
        if is_absent(error):
            return None
        raise


def json_object(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object in the bytes `content` as a dict; None if `content` is not a JSON object."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


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
