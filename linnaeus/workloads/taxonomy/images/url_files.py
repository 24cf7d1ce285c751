"""Read tables and photographs by URL with fsspec: `https://...`, `s3://...`, `memory://...`, `zip://photos::https://.../photos.zip`.

fsspec is installed with torch. The protocol may need a package of its own, such as s3fs or aiohttp. fsspec raises errors of many libraries;
here they become `OSError` with the number of the system's error: ENOENT for a file that does not exist, EACCES for one that may not be
read, and EIO for any other, which may be temporary.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
import socket
import ssl
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from linnaeus.errors import ConfigError, one_line, quoted, redacted
from linnaeus.workloads.taxonomy.arrays.text_lines import TextLines
from linnaeus.workloads.taxonomy.images.image_files import (
    FINAL_ERRORS,
    LARGEST_FILE,
    NO_PATH,
    NOT_A_FILE,
    REASONS,
    TOO_LARGE,
    UNREACHABLE,
    ImageFiles,
    clean_paths,
    is_pipe,
    retry,
    sizes_in_threads,
)
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage

BLOCK = 16  # files per task of a thread: each waits for the network
DELAYS = (0.5, 2.0, 8.0)  # seconds before the second, third and fourth attempt; a server that restarts takes longer than a disk
FINAL = (*FINAL_ERRORS, errno.EISDIR)  # a further attempt is useless
_URL = re.compile(r"[a-z][a-z0-9+.-]+(://|::.*://)", re.DOTALL)  # cam::b.jpg is a file
GIVE_UP = 20  # photographs of a server, one after the other, that the doctor could not reach; it does not ask for others
SILENCE = 60.0  # seconds for which a web server may send nothing; a transfer may take any time
_GONE = (404, 410)  # status of HTTP
_LATER = (408, 425, 429)  # the only ones from 400 to 499 after which a further attempt can succeed
_DAMAGED = (zipfile.BadZipFile, zlib.error)  # of a member of an archive, zip://MEMBER::ARCHIVE


def is_url(text: str | Path | None) -> bool:
    """Return True for a URL such as https://host/photos or zip://photos::archive.zip, False for a local path."""
    return isinstance(text, str) and _URL.match(text) is not None


def has_urls(names: Sequence[str] | np.ndarray | TextLines) -> bool:
    """Return True if one of the names is a URL."""
    if isinstance(names, TextLines) and not names.has(":"):
        return False
    return any(map(is_url, names.tolist() if isinstance(names, np.ndarray) else names))


def parent_url(url: str) -> str:
    """Return the URL of the folder that contains a file: zip://photos::archive.zip for zip://photos/1.jpg::archive.zip."""
    first, chain, rest = url.partition("::")
    protocol, _, path = first.partition("://")
    if protocol in ("http", "https"):
        path = re.split(r"[?#]", path, maxsplit=1)[0]  # a query may have a slash
    return f"{protocol}://{path.rpartition('/')[0]}{chain}{rest}"


def url_below(url: str, name: str) -> str:
    """Return the URL of the file `name` in the folder `url`: zip://photos/1.jpg::archive.zip for zip://photos::archive.zip."""
    first, chain, rest = url.partition("::")
    folder = first if first.endswith("://") else first.rstrip("/") + "/"
    return f"{folder}{name}{chain}{rest}"


class UrlFolder:
    """Folder or file at a URL. The connection is opened by the first use in each process, and not pickled.

    `key`: configuration key of the URL, for messages."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key = url, key
        self._opened: tuple[int, Any, str] | None = None  # id of the process, file system and path in it

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_opened": None}

    def open(self) -> tuple[Any, str]:
        """Return the file system of fsspec and the path in it. Raise `ConfigError` if the protocol is unknown or its package missing."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), *_open(self.url, self.key)
        return self._opened[1:]

    def place(self, name: str) -> tuple[Any, str]:
        """Return the file system and the path of the file `name`, a path relative to this folder, or itself a URL."""
        if is_url(name):
            return _open(name, self.key)
        fs, root = self.open()
        if not is_url(self.url):
            return fs, os.path.join(root, name)
        return fs, f"{root.rstrip('/')}/{_quoted(fs, posixpath.normpath(name))}"

    def names(self) -> list[str]:
        """Return the paths of all files below this folder, relative to it, sorted by name within each folder. Hidden files are skipped.

        Raise `ConfigError` if the folder cannot be listed or has no files."""
        fs, root = self.open()
        start = f"{root.rstrip('/')}/".lstrip("/")
        try:
            with reading(self.url):
                found = retry(lambda: fs.find(root), FINAL, DELAYS)
        except OSError as error:
            raise ConfigError(f"{self.key}: {quoted(self.url, 200)} cannot be listed: {error.strerror}") from error
        names = [_unquoted(fs, path.lstrip("/").removeprefix(start)) for path in found]
        names = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
        if not names:
            raise ConfigError(f"{self.key}: {quoted(self.url, 200)} is not a folder with files; check the URL")
        return sorted(names, key=lambda name: name.split("/"))


def _open(url: str, key: str) -> tuple[Any, str]:
    """Return the file system of fsspec for a URL, and the path in it. Raise `ConfigError` if the protocol is unknown, its package is
    missing, or the archive of a chain cannot be opened."""
    try:
        import fsspec

        fs, path = fsspec.core.url_to_fs(url, **_web_options(url))
        return fs, path
    except ImportError as error:
        raise ConfigError(f"{key}: {quoted(url, 120)} needs a package that is not installed: {one_line(error)}") from error
    except Exception as error:  # of any library: an unknown protocol, an archive in a chain that cannot be opened, missing credentials
        raise ConfigError(f"{key}: {quoted(url, 120)} cannot be opened: {one_line(error)}") from error


def _web_options(url: str) -> dict[str, Any]:
    """Return the options of fsspec for the web servers of a URL, by protocol: without a limit of the time of a transfer, which is 5 minutes
    by default, and with `SILENCE`. What the user has set in the configuration of fsspec has precedence."""
    protocols = [protocol for protocol in ("http", "https") if re.search(rf"(^|::){protocol}://", url)]
    if not protocols:
        return {}
    import aiohttp
    import fsspec

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
    set_by_user = {protocol: fsspec.config.conf.get(protocol, {}).get("client_kwargs", {}) for protocol in protocols}
    return {protocol: {"client_kwargs": {"timeout": timeout, **given}} for protocol, given in set_by_user.items()}


def _quoted(fs: Any, name: str) -> str:
    return quote(name) if "http" in _protocols(fs) else name


def _unquoted(fs: Any, name: str) -> str:
    return unquote(name) if "http" in _protocols(fs) else name


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


@contextlib.contextmanager
def reading(url: str) -> Iterator[None]:
    """Return a context manager that converts errors of fsspec within the block to `OSError`, or to `NotAnImage` for a damaged member of an
    archive. `url`: for messages."""
    try:
        yield
    except (NotAnImage, ConfigError):
        raise
    except _DAMAGED as error:
        raise NotAnImage(f"damaged in the archive: {error}") from error
    except Exception as raised:  # fsspec passes on the errors of the libraries of the protocols
        hides = url.startswith("http") and isinstance(raised, FileNotFoundError)  # its `info` says so of a server that does not answer
        cause = raised.__cause__ if hides and raised.__cause__ is not None else raised
        named = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES, IsADirectoryError: errno.EISDIR}
        code = next((number for kind, number in named.items() if isinstance(cause, kind)), None)
        code = code or _status_error(cause) or _system_error(cause)
        said = os.strerror(code) if code != errno.EIO else _said(cause)
        raise OSError(code, said, redacted(url)) from raised


def _status_error(error: BaseException) -> int | None:
    """Return the number of the system's error for a final answer of a web server: ENOENT, EACCES or ELOOP; None for any other error."""
    status = getattr(error, "status", 0)
    if type(error).__name__ == "TooManyRedirects":  # of aiohttp, with status 0
        return errno.ELOOP
    if status in _GONE:
        return errno.ENOENT
    return errno.EACCES if status in range(400, 500) and status not in _LATER else None


def _said(error: BaseException) -> str:
    """Return a line about an error that may be temporary."""
    status, message = getattr(error, "status", 0), getattr(error, "message", "")
    return f"the server answered {status} {message}".rstrip() if status else one_line(error)


def _system_error(error: BaseException) -> int:
    """Return the number of the system's error; EIO for an error of another kind, whose numbers have other meanings."""
    number = error.errno if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror) else None
    return number if number is not None and number > 0 else errno.EIO


class UrlFiles(ImageFiles):
    """Image files below the folder `root`, a URL or a local path. `names`: paths relative to it, or URLs themselves."""

    keeps = False

    def __init__(self, root: str, names: Sequence[str] | np.ndarray) -> None:
        self.root, self.names = root, names if isinstance(names, np.ndarray) else clean_paths(names)
        self.folder = UrlFolder(root, "data.root")
        self._failed: Counter[str] | None = None  # server -> photographs in a row that could not be reached; None: raise the error

    def tolerant(self) -> UrlFiles:
        """Return these files for the doctor: `sizes` does not raise `OSError`, but gives such a file the size `UNREACHABLE`."""
        found = copy(self)
        found._failed = Counter()
        return found

    def sizes(self) -> np.ndarray:
        return sizes_in_threads(self.names, self._size, BLOCK)

    def take(self, rows: np.ndarray) -> UrlFiles:
        taken = copy(self)
        taken.names = self.names[rows]
        return taken

    def read(self, row: int) -> bytes:
        return self._read(str(self.names[row]))

    def _read(self, name: str) -> bytes:
        fs, path = self.folder.place(name)
        if "file" in _protocols(fs) and is_pipe(path):  # it would be waited for
            raise NotAnImage(REASONS[NOT_A_FILE])

        def read() -> bytes:
            with reading(fs.unstrip_protocol(path)):
                return fs.cat_file(path)

        data = retry(read, FINAL, DELAYS)
        if len(data) > LARGEST_FILE:
            raise NotAnImage(REASONS[TOO_LARGE])
        return data

    def _size(self, name: str) -> int:
        """Return the size of a file in bytes; for a file that cannot be read, a key of `REASONS` (0 or less)."""
        if not name:
            return NO_PATH
        fs, path = self.folder.place(name)

        def look() -> dict[str, Any]:
            with reading(fs.unstrip_protocol(path)):
                return fs.info(path)

        failed, server = self._failed, "/".join(path.split("/")[: 3 if "://" in path else 1])
        if failed is not None and failed[server] >= GIVE_UP:
            return UNREACHABLE
        try:
            info = retry(look, FINAL, DELAYS)
            size = info["size"] if info.get("size") is not None else len(self._read(name))  # some servers do not state sizes
        except OSError as error:
            if error.errno in FINAL_ERRORS:
                return FINAL_ERRORS[error.errno]
            if failed is None:
                raise
            failed[server] += 1
            return UNREACHABLE
        if failed is not None:
            failed[server] = 0
        if info["type"] == "directory":
            return NOT_A_FILE
        return size if size <= LARGEST_FILE else TOO_LARGE
