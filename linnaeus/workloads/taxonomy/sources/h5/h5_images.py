"""`H5Images`: read the photographs in an `images.h5` of the original linnaeus, dataset `images`, uint8 [N, H, W, 3] RGB.

A photograph is returned as an uncompressed BMP file, so that it is decoded, resized and compared like a file of any other source.

HDF5 does not support files that are open during a fork. Each process opens the file when it reads from it, and closes it before a fork.
"""

from __future__ import annotations

import io
import os
import struct
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from linnaeus.errors import ConfigError, quoted
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names, strings
from linnaeus.workloads.taxonomy.images.image_files import LARGEST_FILE, TOO_LARGE, ImageFiles, retry
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.sources.h5.h5_file import opened

_HEADER = 54  # bytes of the headers of a BMP with 24 bits per pixel
_lock = threading.RLock()  # for all files: h5py reads only one at a time anyway
_open_ones: weakref.WeakSet[H5Images] = weakref.WeakSet()


class H5Images(ImageFiles):
    """M photographs of an images.h5, all of `height` x `width` pixels. `rows`: int64 [M], their rows in the dataset. `names`: [M]."""

    def __init__(self, path: str, names: Names, rows: np.ndarray, height: int, width: int) -> None:
        self.path, self.names, self.rows, self.height, self.width = path, names, rows, height, width
        self._file: Any = None

    @classmethod
    def of(cls, path: Path, names: Sequence[str]) -> H5Images:
        """Return all photographs of a file, with the given names. Raise `ConfigError` if the dataset `images` does not have one photograph
        per name."""
        with opened(path, "data.images") as file:
            data = file.get("images")
            shape: tuple[int, ...] = getattr(data, "shape", ())
            dtype = getattr(data, "dtype", None)
        if len(shape) != 4 or shape[3] != 3 or dtype != np.uint8 or shape[0] != len(names) or 0 in shape[1:3]:
            found = f"{dtype} {list(shape)}" if shape else "not there"
            raise ConfigError(
                f"data.images: the dataset 'images' of {quoted(str(path), 120)} is {found}; it must be uint8 "
                f"[{len(names)}, height, width, 3], a photograph per row of data.path"
            )
        return cls(str(path), strings(names), np.arange(len(names)), shape[1], shape[2])

    def sizes(self) -> np.ndarray:
        size = _HEADER + self.height * _stride(self.width)
        return np.full(len(self.rows), size if size <= LARGEST_FILE else TOO_LARGE, dtype=np.int64)

    def take(self, rows: np.ndarray) -> H5Images:
        return H5Images(self.path, self.names[rows], self.rows[rows], self.height, self.width)

    def read(self, row: int) -> bytes:
        pixels = retry(lambda: self._pixels(int(self.rows[row])))
        lines = np.zeros((self.height, _stride(self.width)), dtype=np.uint8)
        lines[:, : 3 * self.width] = pixels[:, :, ::-1].reshape(self.height, -1)  # BMP has blue first
        return _bmp_header(self.width, self.height) + lines.tobytes()

    def head(self, row: int) -> IO[bytes]:
        return io.BytesIO(_bmp_header(self.width, self.height))

    def close(self) -> None:
        """Close the file. The next read opens it again."""
        with _lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _pixels(self, row: int) -> np.ndarray:
        import h5py

        try:
            with _lock:
                if self._file is None:
                    self._file = h5py.File(self.path, "r")
                    _open_ones.add(self)
                return self._file["images"][row]
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise NotAnImage("the photograph cannot be read from images.h5") from error
        except OSError as error:
            self.close()
            if error.errno is None and "errno = " not in str(error):  # not an error of the file system: a block is damaged
                raise NotAnImage("the photograph is damaged in images.h5") from error
            raise

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_file": None}


def _close_all() -> None:
    """Close all files, and keep the lock until the process has forked, so that no file is opened before."""
    _lock.acquire()
    for images in list(_open_ones):
        images.close()


os.register_at_fork(before=_close_all, after_in_parent=_lock.release, after_in_child=_lock.release)


def _stride(width: int) -> int:
    """Return the number of bytes of a line of pixels in a BMP file, which is a multiple of 4."""
    return (3 * width + 3) // 4 * 4


def _bmp_header(width: int, height: int) -> bytes:
    """Return the headers of a BMP file with 24 bits per pixel. The height in the header is negative: the first line of pixels is the top of
    the image."""
    size = height * _stride(width)
    return struct.pack("<2sIHHI", b"BM", _HEADER + size, 0, 0, _HEADER) + struct.pack(
        "<IiiHHIIiiII", 40, width, -height, 1, 24, 0, size, 0, 0, 0, 0
    )
