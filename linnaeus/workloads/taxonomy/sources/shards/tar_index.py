"""List the members of a tar file with their names, offsets and sizes, by reading only the headers.

A header has 512 bytes. Long names, of GNU tar (type `L`) or POSIX (type `x`), precede the header to which they belong. The data of large
members are not read. Python's module tarfile takes four times as long, because it makes an object for each member.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from linnaeus.errors import ConfigError, one_line, quoted

BLOCK = 512  # bytes; headers and data begin at multiples of it
WINDOW = 1 << 14  # bytes that are read at once: a header, the data of small members, and the next headers
LONGEST_HEADER = 1 << 20  # bytes of a long name or of POSIX records
_RECORD = re.compile(rb"\d+ ([^=]+)=")
_WITHOUT_DATA = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Member(NamedTuple):
    """Name, kind, offset and size of a member of a tar file."""

    name: str
    regular: bool  # True for a regular file, False for a folder, link or other entry
    start: int  # offset of its data in the tar file, in bytes
    size: int  # bytes of its data


class TarReader:
    """Reader of the headers and bytes of a tar file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDONLY)
        self.length = os.fstat(self.handle).st_size
        self.ended = False  # True once the end-of-archive mark was found; a file without it may be cut off between two members
        self._window, self._from = b"", 0

    def __enter__(self) -> TarReader:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.handle)

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes of the file from offset `start` on, or fewer at its end."""
        offset = start - self._from
        if offset < 0 or offset + size > len(self._window):
            self._window, self._from, offset = os.pread(self.handle, max(size, WINDOW), start), start, 0
        return self._window[offset : offset + size]

    def members(self) -> Iterator[Member]:
        """Yield the members in the order of the file. Raise `ConfigError` for bytes that are not a header, and if the file is cut off."""
        self._check_compression()
        place, long_name, long_size = 0, None, None
        while place < self.length:
            block = self.read(place, BLOCK)
            if not block.strip(b"\0") and len(block) == BLOCK:
                if self.read(place, 4 * WINDOW).strip(b"\0"):
                    raise self._error(place, "the archive ends, but the file goes on (tar files that were joined)")
                self.ended = True
                return
            name, kind, size = self._header(block, place)
            start, size = place + BLOCK, size if long_size is None else long_size
            if size < 0 or start + size > self.length:
                raise self._error(place, f"the data of {quoted(long_name or name)} are cut")
            if kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                if size > LONGEST_HEADER:
                    raise self._error(place, f"a header of {size} bytes")
                data = self.read(start, size)
                if kind == tarfile.GNUTYPE_LONGNAME:
                    long_name = data.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
                else:
                    long_name, long_size = self._records(data, place, long_name)
            elif kind == tarfile.GNUTYPE_SPARSE:
                raise self._error(place, "a sparse file")
            elif kind not in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
                size = 0 if kind in _WITHOUT_DATA else size
                regular = kind in tarfile.REGULAR_TYPES
                yield Member(long_name or name, regular, start, size)
                long_name, long_size = None, None
            place = start + (size + BLOCK - 1) // BLOCK * BLOCK
        if place > self.length:
            raise self._error(self.length, "the file is cut")

    def _header(self, block: bytes, place: int) -> tuple[str, bytes, int]:
        """Return the name, the type and the size in a header, the 512 bytes `block` at offset `place`."""
        if len(block) < BLOCK:
            raise self._error(place, "the file is cut")
        try:
            size, checksum = tarfile.nti(block[124:136]), tarfile.nti(block[148:156])  # type: ignore[attr-defined]
        except tarfile.HeaderError as error:
            raise self._error(place, one_line(error)) from error
        if checksum != sum(block) - sum(block[148:156]) + 8 * ord(" "):
            raise self._error(place, "bad checksum")
        name, kind = block[:100].split(b"\0", 1)[0], block[156:157]
        prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
        if kind == tarfile.AREGTYPE and name.endswith(b"/"):
            kind = tarfile.DIRTYPE  # in tar files before POSIX, a name that ends in / is a folder
        return (prefix + b"/" + name if prefix else name).decode("utf-8", "backslashreplace"), kind, size

    def _records(self, data: bytes, place: int, name: str | None) -> tuple[str | None, int | None]:
        """Return the path and the size in POSIX records `LENGTH KEY=VALUE\\n`. If `data` has no path, return `name`; if it has no size,
        None."""
        size = None
        while match := _RECORD.match(data):
            length = int(data[: match.end()].split(b" ", 1)[0][:9])
            value = data[match.end() : length - 1]
            if length <= match.end():
                raise self._error(place, "bad POSIX records")
            if match[1] == b"path":
                name = value.decode("utf-8", "backslashreplace")
            elif match[1] == b"size":
                if not value.isdigit() or len(value) > 18:
                    raise self._error(place, "bad POSIX records")
                size = int(value)
            elif match[1].startswith(b"GNU.sparse."):
                raise self._error(place, "a sparse file")
            data = data[length:]
        return name, size

    def _check_compression(self) -> None:
        start = self.read(0, 6)
        found = next((name for magic, name in _COMPRESSED.items() if start.startswith(magic)), None)
        if found is not None:
            raise ConfigError(
                f"data.path: {quoted(self.path, 200)} is compressed with {found}: its photographs cannot be read singly; unpack it to .tar "
                "(photographs hardly shrink)"
            )

    def _error(self, place: int, problem: str) -> ConfigError:
        name = quoted(Path(self.path).name, 100)
        return ConfigError(f"data.path: {name} cannot be read as a tar file from byte {place} on: {problem}; copy or make it again")
