"""Read the image files of a data source: `ImageFiles` is the interface, `FolderFiles` reads files in a folder.

The sizes of all files are read before the first step, so that missing and empty files are found at the start. An error of the file system
may be temporary: the read is repeated; then the error is raised, and the run writes a checkpoint and stops.
"""

import errno
import io
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import IO, ClassVar, TypeVar

import numpy as np

from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names, strings
from linnaeus.workloads.taxonomy.arrays.text_lines import TextLines
from linnaeus.workloads.taxonomy.images.decoding import decode, decode_sized, stored_size
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage

THREADS = 16  # stat waits for the network on shared file systems; on a local disk threads make no difference
BLOCK = 1000  # files per task of a thread
LARGEST_FILE = 256 << 20  # bytes; a larger file is not read, and counts as damaged
LONGEST_PATH = 4096  # bytes; Linux opens no longer path
NO_PATH, MISSING, NOT_A_FILE, NOT_ALLOWED, TOO_LARGE, UNREACHABLE, EMPTY = -1, -2, -3, -4, -5, -6, 0
REASONS = {
    NO_PATH: "no image path",
    MISSING: "image file missing",
    NOT_A_FILE: "image path is not a file",
    NOT_ALLOWED: "no permission to access the image file",
    TOO_LARGE: f"image file larger than {LARGEST_FILE >> 20} MiB",
    UNREACHABLE: "image file on a server that does not answer",  # only for the doctor; otherwise `sizes` raises the error
    EMPTY: "image file empty",
}
FINAL_ERRORS = dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG), MISSING)  # other errors may be temporary
FINAL_ERRORS |= dict.fromkeys((errno.EACCES, errno.EPERM), NOT_ALLOWED)

RETRY_DELAYS = (0.1, 0.5)  # seconds before the second and the third attempt

Result = TypeVar("Result")


def retry(action: Callable[[], Result], final: Collection[int] = (), delays: Sequence[float] = RETRY_DELAYS) -> Result:
    """Return `action()`. If `action` raises `OSError`, call it again after each of the `delays` (seconds).

    The error is raised at once if its errno is in `final`, and after the last failure."""
    for delay in delays:
        try:
            return action()
        except OSError as error:
            if error.errno in final:
                raise
            time.sleep(delay)
    return action()


def clean_path(cell: str) -> str:
    """Return a path with forward slashes (manifests made on Windows have backslashes); "" if the cell has a NUL character or is longer than
    `LONGEST_PATH`."""
    return "" if len(cell.encode(errors="replace")) > LONGEST_PATH or "\0" in cell else cell.replace("\\", "/")


def clean_paths(cells: Sequence[str]) -> Names:
    """Return `clean_path` of each cell."""
    if not isinstance(cells, TextLines):
        return strings([clean_path(cell) for cell in cells])
    if cells.has("\\") or cells.has("\0") or cells.size.max(initial=0) > LONGEST_PATH:
        return TextLines.of(map(clean_path, cells))
    return cells


class ImageFiles(ABC):
    """Image files of N rows. Loader workers get a copy of the object by fork or pickle; the copies must not share open files."""

    names: Names  # [N]: names of the photographs, used in messages, in the fingerprint and for the split
    keeps: ClassVar[bool] = True  # True if an object keeps opened or read data, so that a new object for each block of rows would be slow

    @abstractmethod
    def sizes(self) -> np.ndarray:
        """Return the sizes in bytes, int64 [N]. A size of 0 or less means that the file cannot be used, for the reason `REASONS[size]`.

        Raise OSError for an error that may be temporary and remains after three attempts."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> "ImageFiles":
        """Return the files of the rows with the numbers `rows`, int64 [M]."""

    @abstractmethod
    def read(self, row: int) -> bytes:
        """Return the bytes of a file. Raise `NotAnImage` if the file can never be read, `OSError` if it may be readable later."""

    def head(self, row: int) -> IO[bytes]:
        """Return a file object with the first bytes of the image file, at least its header."""
        return io.BytesIO(self.read(row))

    def decoded_size(self, row: int, short_side: int, max_pixels: int) -> int:
        """Return the number of bytes of the pixels that `decode` returns, from the header of the file; 0 if the header cannot be read."""
        try:
            with self.head(row) as file:
                return stored_size(file, short_side, max_pixels)
        except (OSError, NotAnImage):
            return 0  # `read` raises the error

    def decode(self, row: int, short_side: int, max_pixels: int) -> np.ndarray:
        """Return the pixels of a photograph, uint8 [H, W, 3], as `decoding.decode` does. Raise the errors of `read` and of
        `decoding.decode`."""
        return decode(self.read(row), short_side, max_pixels)

    def inspect(self, row: int, short_side: int, max_pixels: int) -> tuple[bytes, np.ndarray, tuple[int, int]]:
        """Return the bytes of a file, the pixels as `decode` returns them, and (width, height) of the image in the file."""
        data = self.read(row)
        return data, *decode_sized(data, short_side, max_pixels)


class FolderFiles(ImageFiles):
    """Files of the folder `root`. `names`: paths of the files, absolute or relative to `root`."""

    keeps = False

    def __init__(self, root: Path | str, names: Sequence[str] | np.ndarray, listed: bool = False, present: bool = True) -> None:
        """Take the paths of the files, relative to `root`.

        listed: the names are those of the file system, in which a backslash is a letter; False: cells of a table (`clean_path`). present:
        the files were there at the start, so that one that is missing later may come back, and is read again."""
        self.root, self.final = str(root), ((errno.EACCES, errno.EPERM) if present else FINAL_ERRORS)
        self.pipes = True  # False: `read` refuses a named pipe
        if isinstance(names, np.ndarray) or (listed and isinstance(names, TextLines)):
            self.names = names
        else:
            self.names = np.array(names, dtype=object) if listed else clean_paths(names)  # objects: names that are not UTF-8, too

    def sizes(self) -> np.ndarray:
        return sizes_in_threads(self.names, lambda name: _size(self._path(name)), BLOCK)

    def take(self, rows: np.ndarray) -> "FolderFiles":
        taken = copy(self)
        taken.names = self.names[rows]
        return taken

    def unseen(self) -> "FolderFiles":
        """Return these files for a caller that does not call `sizes`: `read` tries only once to read a missing file, and raises
        `NotAnImage` for a named pipe, which it would otherwise wait for."""
        unseen = copy(self)
        unseen.final, unseen.pipes = FINAL_ERRORS, False
        return unseen

    def read(self, row: int) -> bytes:
        path = self.path(row)
        if not self.pipes and is_pipe(path):
            raise NotAnImage(REASONS[NOT_A_FILE])
        return read_file(path, final=self.final)

    def head(self, row: int) -> IO[bytes]:
        return open(self.path(row), "rb")

    def path(self, row: int) -> str:
        """Return the path of a file."""
        return self._path(str(self.names[row]))

    def _path(self, name: str) -> str:
        return os.path.join(self.root, name) if name else ""


def sizes_in_threads(names: np.ndarray | TextLines, size_of: Callable[[str], int], block: int) -> np.ndarray:
    """Return the sizes of the files `names`, int64 [N], and show the progress. `block`: files per task of a thread."""
    sizes = np.empty(len(names), dtype=np.int64)

    def look(first: int) -> None:
        sizes[first : first + block] = [size_of(name) for name in names[first : first + block].tolist()]

    blocks = range(0, len(sizes), block)
    progress = PreparationProgress("looking for photographs", len(blocks), f"{len(sizes):,}")
    with progress, ThreadPoolExecutor(THREADS) as pool:
        for _ in progress.each(pool.map(look, blocks)):
            pass
    return sizes


def _size(path: str) -> int:
    if not path:
        return NO_PATH
    try:
        info = retry(lambda: os.stat(path), final=FINAL_ERRORS)
    except OSError as error:
        if error.errno not in FINAL_ERRORS:
            raise
        return FINAL_ERRORS[error.errno]
    if not stat.S_ISREG(info.st_mode):
        return NOT_A_FILE
    return info.st_size if info.st_size <= LARGEST_FILE else TOO_LARGE


def is_pipe(path: str) -> bool:
    """Return True for a named pipe, or a link to one: a read would wait for a writer."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def read_file(path: str, final: Collection[int] = ()) -> bytes:
    """Return the bytes of a file. Raise `NotAnImage` for a file larger than `LARGEST_FILE`, and `OSError` if the file cannot be read: at
    once for an errno in `final`, otherwise after three attempts."""

    def read() -> bytes:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return file.read() if size <= LARGEST_FILE else file.read(LARGEST_FILE + 1)

    data = retry(read, final)
    if len(data) > LARGEST_FILE:
        raise NotAnImage(REASONS[TOO_LARGE])
    return data
