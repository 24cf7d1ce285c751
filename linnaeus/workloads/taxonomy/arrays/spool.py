"""Keep long arrays in temporary files without names, which the kernel can remove from the memory when it is short.

The files are in the folder of the environment variable TMPDIR, by default /tmp, and are deleted when the process ends."""

import tempfile
from typing import IO, Any

import numpy as np

from linnaeus.errors import ConfigError

IN_MEMORY = 1 << 20  # bytes; a smaller array stays in memory
BLOCK = 1 << 16  # entries that are written together


class Spool:
    """Bytes that are appended, and then read as an array: in memory up to `IN_MEMORY` bytes, otherwise memory-mapped from a file."""

    def __init__(self) -> None:
        self._last = bytearray()  # bytes that are not in the file yet
        self._file: IO[bytes] | None = None

    def write(self, data: Any) -> None:
        """Append bytes, or the bytes of an array. Raise `ConfigError` if the temporary file cannot be written."""
        self._last += data
        if len(self._last) > IN_MEMORY:
            self._flush()

    def array(self, dtype: Any = np.uint8) -> np.ndarray:
        """Return the bytes that were appended so far, as an array of one dimension, which cannot be changed."""
        if self._file is None:
            return np.frombuffer(bytes(self._last), dtype)
        self._flush()
        return np.asarray(np.memmap(self._file, dtype, "r"))

    def _flush(self) -> None:
        try:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
            self._file.write(self._last)
            self._file.flush()
        except OSError as error:
            raise ConfigError(f"TMPDIR: a temporary file cannot be written ({error}); set it to a folder on a disk with space") from error
        self._last = bytearray()


def spooled(array: np.ndarray) -> np.ndarray:
    """Return the same array; a large one is memory-mapped from a temporary file."""
    if array.nbytes <= IN_MEMORY:
        return array
    spool = Spool()
    for first in range(0, len(array), BLOCK):
        spool.write(array[first : first + BLOCK].tobytes())
    return spool.array(array.dtype).reshape(array.shape)
