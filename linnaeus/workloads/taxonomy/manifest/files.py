"""Looks at every photograph's file once, before training: missing and empty files are found by `stat`, not after an hour."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from linnaeus.workloads.taxonomy.manifest.retrying import retried
from linnaeus.workloads.taxonomy.manifest.table import Column

THREADS = 16  # stat waits for the network on shared file systems; on a local disk it makes no difference
LONGEST_PATH = 4096  # bytes; Linux opens no longer one
NO_PATH, MISSING, NOT_A_FILE, NOT_ALLOWED, EMPTY = -1, -2, -3, -4, 0
REASONS = {
    NO_PATH: "no image path",
    MISSING: "image file missing",
    NOT_A_FILE: "image path is not a file",
    NOT_ALLOWED: "no permission to look at the image file",
    EMPTY: "image file empty",
}
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)  # other errors may pass
_FORBIDDEN = (errno.EACCES, errno.EPERM)


def clean_path(cell: str) -> str:
    """A relative path as this system writes it; "" where there is none. Backslashes come from manifests made on Windows."""
    too_long = 4 * len(cell) > LONGEST_PATH and len(cell.encode(errors="replace")) > LONGEST_PATH
    return "" if too_long or "\0" in cell else cell.replace("\\", "/")


def file_sizes(root: Path, column: Column) -> tuple[np.ndarray, np.ndarray]:
    """Paths [N] (unicode) and sizes in bytes int64 [N]; a size of 0 or less is a key of `REASONS`. Raises OSError where the file
    system gives an error that may pass, after it was tried again."""
    paths = [clean_path(value) for value in column.values]
    full = [f"{root}/{path}" if path[:1] not in ("", "/") else path for path in paths]
    if len(full) < 1000:
        sizes = [_size(path) for path in full]
    else:
        with ThreadPoolExecutor(THREADS) as pool:
            blocks = [full[i : i + 1000] for i in range(0, len(full), 1000)]
            sizes = [size for block in pool.map(lambda block: [_size(path) for path in block], blocks) for size in block]
    return np.array(paths, dtype=str)[column.codes], np.array(sizes, dtype=np.int64)[column.codes]


def _size(path: str) -> int:
    if not path:
        return NO_PATH
    try:
        info = retried(lambda: os.stat(path), final=_NOT_THERE + _FORBIDDEN)
    except OSError as error:
        if error.errno not in _NOT_THERE + _FORBIDDEN:
            raise
        return NOT_ALLOWED if error.errno in _FORBIDDEN else MISSING
    return info.st_size if stat.S_ISREG(info.st_mode) else NOT_A_FILE
