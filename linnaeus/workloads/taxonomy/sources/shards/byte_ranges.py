"""`ByteRanges`: read image files that are byte ranges of larger files, such as members of tar files and cells of Arrow files."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from linnaeus.workloads.taxonomy.arrays.text_arrays import Names
from linnaeus.workloads.taxonomy.images.image_files import LARGEST_FILE, TOO_LARGE, ImageFiles, retry
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage


class ByteRanges(ImageFiles):
    """N image files. Image i has `length[i]` bytes of the file `files[number[i]]`, from byte `start[i]` on. No file stays open.

    `names`: [N], names of the images. `number`: int32 [N]. `start`, `length`: int64 [N]. A length of 0 or less means that the image cannot
    be read, for the reason `REASONS[length]`."""

    keeps = False

    def __init__(self, files: Sequence[str], names: Names, number: np.ndarray, start: np.ndarray, length: np.ndarray) -> None:
        self.files, self.names, self.number, self.start, self.length = list(files), names, number, start, length

    def sizes(self) -> np.ndarray:
        return np.where(self.length > LARGEST_FILE, TOO_LARGE, self.length)

    def take(self, rows: np.ndarray) -> ByteRanges:
        return ByteRanges(self.files, self.names[rows], self.number[rows], self.start[rows], self.length[rows])

    def read(self, row: int) -> bytes:
        path, start, length = self.files[int(self.number[row])], int(self.start[row]), int(self.length[row])
        data = retry(lambda: read_range(path, start, length), final=(errno.EACCES, errno.EPERM))
        if len(data) < length:
            raise NotAnImage(f"{Path(path).name} is shorter than at the start")
        return data


def read_range(path: str, start: int, length: int) -> bytes:
    """Return `length` bytes of a file from byte `start` on, or fewer at its end. Raise `OSError` if the file cannot be read."""
    handle = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while length > 0 and (part := os.pread(handle, length, start)):  # one call reads at most 2 GiB
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return b"".join(parts)
    finally:
        os.close(handle)
