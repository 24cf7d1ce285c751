"""`ZipFiles`: read photographs from a zip archive without unpacking it."""

import os
import zipfile
import zlib
from collections.abc import Sequence
from copy import copy
from pathlib import Path

import numpy as np

from linnaeus.workloads.taxonomy.images.image_files import (
    EMPTY,
    LARGEST_FILE,
    MISSING,
    NOT_A_FILE,
    NOT_ALLOWED,
    TOO_LARGE,
    ImageFiles,
    clean_paths,
    retry,
)
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage

_ENCRYPTED = 1  # bit of the flags of a member


class ZipFiles(ImageFiles):
    """Image files in a zip archive. `names`: paths of the files relative to the folder `inside` of the archive, "" or a path that ends in
    /."""

    def __init__(self, archive: Path, names: Sequence[str] | np.ndarray, inside: str) -> None:
        self.archive, self.inside = archive, inside
        self.names = names if isinstance(names, np.ndarray) else clean_paths(names)
        self._opened: tuple[int, zipfile.ZipFile] | None = None  # id of the process that opened the archive, and the archive

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_opened": None}

    def sizes(self) -> np.ndarray:
        members = self._zip().NameToInfo
        return np.array([_size(members.get(self._member(name))) for name in self.names.tolist()], dtype=np.int64)

    def take(self, rows: np.ndarray) -> "ZipFiles":
        taken = copy(self)
        taken.names = self.names[rows]
        return taken

    def read(self, row: int) -> bytes:
        try:
            info = self._zip().getinfo(self._member(str(self.names[row])))
            if info.file_size > LARGEST_FILE:
                raise NotAnImage("larger than can be read")
            return retry(lambda: self._zip().read(info))
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, KeyError) as error:
            raise NotAnImage(f"damaged in the archive: {error}") from error

    def _member(self, name: str) -> str:
        return self.inside + os.path.normpath(name)

    def _zip(self) -> zipfile.ZipFile:
        """Return the open archive. Each process opens it once: after a fork, parent and child would share the position in the file."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), retry(lambda: zipfile.ZipFile(self.archive))
        return self._opened[1]


def _size(info: zipfile.ZipInfo | None) -> int:
    """Return the size of a member in bytes; for a member that cannot be read, a key of `REASONS` (0 or less)."""
    if info is None:
        return MISSING
    if info.is_dir():
        return NOT_A_FILE
    if info.flag_bits & _ENCRYPTED:
        return NOT_ALLOWED
    return info.file_size if EMPTY <= info.file_size <= LARGEST_FILE else TOO_LARGE
