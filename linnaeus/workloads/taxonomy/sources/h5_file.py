"""Open the HDF5 files of the original linnaeus. h5py is in the extra `h5`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError, one_line, quoted, shorten

# h5py raises all of them for damaged files
_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, UnicodeError, MemoryError, OverflowError)


@contextmanager
def opened(path: Path, key: str) -> Iterator[Any]:
    """Open an HDF5 file for reading, and close it. Raise ConfigError, with the configuration key `key`, if it cannot be read."""
    try:
        import h5py
    except ImportError as error:
        raise ConfigError("data=labels_h5 needs h5py; install it with pip install -e '.[h5]'") from error
    if not os.path.isfile(path):
        raise ConfigError(f"{key}: {quoted(str(path), 200)} is not a file; set an HDF5 file of the original linnaeus")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except ConfigError:
        raise
    except _ERRORS as error:
        raise ConfigError(f"{key}: {quoted(str(path), 160)} cannot be read as HDF5: {shorten(one_line(error), 160)}") from error


def is_text(data: Any) -> bool:
    """Return True if a dataset contains strings."""
    import h5py

    return h5py.check_string_dtype(data.dtype) is not None
