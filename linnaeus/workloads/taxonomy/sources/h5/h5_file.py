"""Open the HDF5 files of the original linnaeus (an earlier program). This needs h5py, from the extra `h5`."""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError, one_line, quoted, shorten

_HEADER = 16  # bytes of the header of a heap, and of that of an entry
# h5py raises all of them for damaged files
_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, UnicodeError, MemoryError, OverflowError)


@contextmanager
def opened(path: Path, key: str) -> Iterator[Any]:
    """Open an HDF5 file for reading; close it at the end of the block.

    Raise `ConfigError` if the file cannot be read. `key`: configuration key of the path, for messages."""
    try:
        import h5py
    except ImportError as error:
        raise ConfigError("data=labels_h5 needs h5py; install it with pip install 'linnaeus[h5]'") from error
    if not os.path.isfile(path):
        raise ConfigError(f"{key}: {quoted(str(path), 200)} is not a file; set an HDF5 file of the original linnaeus")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except ConfigError:
        raise
    except _ERRORS as error:
        raise ConfigError(f"{key}: {quoted(str(path), 160)} cannot be read as HDF5: {shorten(one_line(error), 160)}") from error


def check_texts(path: Path, key: str) -> None:
    """Raise `ConfigError` if a heap of texts in a file has an entry of number 0 and size 0, such as zeros in an incomplete download.

    HDF5 1.14 does not return from reading such an entry. Format (HDF5 File Format Specification 3.0, III.E): a heap begins with GCOL, a
    version, and the size of the heap in bytes. An entry begins with its number, its reference count and its size in bytes, and is filled up
    to a multiple of 8."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(b"GCOL\x01\0\0\0")
        while start >= 0:
            place = start + _HEADER
            end = min(start + int.from_bytes(data[start + 8 : start + 16], "little"), len(data))
            number = 1 if data.find(bytes(_HEADER), place, end) >= 0 else 0  # without 16 zero bytes the heap has no such entry
            while number and place + _HEADER <= end:
                number, size = struct.unpack_from("<H6xQ", data, place)
                if number == size == 0:
                    problem = f"the texts at byte {place} are damaged; copy it again"
                    raise ConfigError(f"{key}: {quoted(str(path), 160)} cannot be read as HDF5: {problem}")
                place += _HEADER + (size + 7) // 8 * 8
            start = data.find(b"GCOL\x01\0\0\0", start + _HEADER)


def is_text(data: Any) -> bool:
    """Return True if an HDF5 dataset contains strings."""
    import h5py

    return h5py.check_string_dtype(data.dtype) is not None
