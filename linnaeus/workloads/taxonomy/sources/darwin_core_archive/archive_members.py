"""Read the files (members) in a folder, a zip file, or a tar file with any compression, without unpacking it."""

import contextlib
import csv
import lzma
import os
import posixpath
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from linnaeus.errors import ConfigError, list_some, one_line, quoted
from linnaeus.workloads.taxonomy.sources.folders.local_files import is_file, is_folder

DESCRIPTOR = "meta.xml"
_ERRORS = (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError, RuntimeError, ValueError, csv.Error)
_MOST_RATIO, _MUCH = 200, 1 << 30  # a member above _MUCH bytes must not be compressed more than _MOST_RATIO times; tables are 5 to 50 times
_NOT_TABLES = frozenset(("citations.txt", "rights.txt", "readme.txt", "license.txt", "verbatim.txt"))  # in downloads from GBIF


class Archive:
    """List and reader of the members (files) of a Darwin Core Archive: a folder, zip file or tar file. Hidden files and files that macOS
    adds are left out."""

    def __init__(self, path: Path) -> None:
        """List the members of the archive in `path`. Raise `ConfigError` if `path` does not exist or is not an archive."""
        self.path = path
        with self.reading():
            self.sizes = self._sizes()  # name -> bytes; 0 if the archive is a folder
        self.folder = self._inner_folder()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Convert errors of damaged archives within the block to `ConfigError`."""
        try:
            yield
        except (ConfigError, UnicodeError):
            raise
        except _ERRORS as error:
            raise ConfigError(f"data.path: {quoted(str(self.path), 150)} cannot be read: {one_line(error)}; download it again") from error

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Open a member for reading. `name`: path relative to the folder with the descriptor. Raise `ConfigError` if there is no such
        member."""
        with contextlib.ExitStack() as stack:
            with self.reading():
                file = stack.enter_context(self._open(self._member(name)))
            yield file

    def tables(self) -> list[str]:
        """Return the names of the members that may be tables, for an archive without a descriptor."""
        names = [name.removeprefix(self.folder) for name in self.sizes if name.startswith(self.folder)]
        texts = [name for name in names if "/" not in name and name.lower().endswith((".csv", ".tsv", ".txt"))]
        return [name for name in texts if name.lower() not in _NOT_TABLES]

    def has(self, name: str) -> bool:
        return self.folder + name in self.sizes

    def place(self) -> Path:
        """Return the folder to which paths of photographs are relative: the folder of the descriptor, or the folder with the zip or tar
        file."""
        return self.path / self.folder if self.path.is_dir() else self.path.parent

    def size(self, name: str) -> int:
        """Return the size of a member in bytes."""
        member = self._member(name)
        return os.path.getsize(self.path / member) if self.path.is_dir() else self.sizes[member]

    def _sizes(self) -> dict[str, int]:
        if os.path.isdir(self.path):  # unlike Path.is_dir, False for a name that is too long
            sizes = dict.fromkeys(_files_to_depth_two(self.path), 0)  # read when needed: photographs may be beside the archive
        elif os.path.isfile(self.path) and zipfile.is_zipfile(self.path):
            with zipfile.ZipFile(self.path) as archive:
                sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
        elif os.path.isfile(self.path) and tarfile.is_tarfile(self.path):
            with tarfile.open(self.path) as archive:
                sizes = {member.name: member.size for member in archive if member.isfile()}
        else:
            problem = "is not a zip or tar file, a folder or a table" if os.path.exists(self.path) else "does not exist"
            raise ConfigError(f"data.path: {quoted(str(self.path), 200)} {problem}; set a Darwin Core Archive")
        return {name: size for name, size in sizes.items() if not _hidden(name)}

    def _inner_folder(self) -> str:
        """Return the folder in the archive that contains the descriptor, with a final slash; "" for the top level.

        Without a descriptor, return the folder that contains all members, or "". Raise `ConfigError` if several folders contain a
        descriptor."""
        places = sorted((name for name in self.sizes if posixpath.basename(name).lower() == DESCRIPTOR), key=lambda name: name.count("/"))
        if len(places) > 1 and places[0].count("/") == places[1].count("/"):
            raise ConfigError(f"data.path: {quoted(str(self.path), 100)} has several archives: {list_some(places, 3)}; set one of them")
        if places:
            return posixpath.dirname(places[0]) + "/" if "/" in places[0] else ""
        first = {name.partition("/")[0] for name in self.sizes}
        return f"{first.pop()}/" if len(first) == 1 and all("/" in name for name in self.sizes) else ""

    def _member(self, name: str) -> str:
        """Return the full name of a member. `name`: path of the member relative to the inner folder, in any case of letters.

        Raise `ConfigError` if there is no such member."""
        wanted = self.folder + posixpath.normpath(name.replace("\\", "/"))
        found = [member for member in self.sizes if member == wanted] or [m for m in self.sizes if m.casefold() == wanted.casefold()]
        if not found:
            raise ConfigError(
                f"data.path: {quoted(str(self.path), 100)} does not contain {quoted(name)}, which its {DESCRIPTOR} names; "
                f"its members are {list_some(list(self.sizes), 6)}; download it again"
            )
        return found[0]

    def _open(self, member: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        if self.path.is_dir():
            return open(self.path / member, "rb")
        if self.sizes[member] > max(_MUCH, _MOST_RATIO * self.path.stat().st_size):
            raise ConfigError(
                f"data.path: {quoted(member)} has {self.sizes[member]} bytes, far more than its archive; unpack it if it is a table"
            )
        return _in_zip(self.path, member) if zipfile.is_zipfile(self.path) else _in_tar(self.path, member)


@contextlib.contextmanager
def _in_zip(path: Path, member: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        yield file


@contextlib.contextmanager
def _in_tar(path: Path, member: str) -> Iterator[IO[bytes]]:
    with tarfile.open(path) as archive:
        file = archive.extractfile(member)
        if file is None:
            raise tarfile.ReadError(f"{member} is not a file")
        with file:
            yield file


def _files_to_depth_two(folder: Path) -> Iterator[str]:
    """Yield the paths of the files in a folder. If none of these files is a table or a descriptor, also yield the files in the
    subfolders."""
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    files = [entry.name for entry in entries if is_file(entry)]
    yield from files
    if not any(name.lower().endswith((".csv", ".tsv", ".txt", DESCRIPTOR)) for name in files):
        for entry in entries:
            if is_folder(entry) and not _hidden(entry.name):
                yield from (f"{entry.name}/{inner.name}" for inner in os.scandir(entry.path) if is_file(inner))


def _hidden(name: str) -> bool:
    return any((part.startswith(".") and part not in (".", "..")) or part == "__MACOSX" for part in name.split("/"))
