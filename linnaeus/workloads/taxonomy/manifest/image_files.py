"""Check the image files of a manifest before training, and read them during training.

`file_sizes` finds missing and empty files by `stat` before the first step. `ManifestImages` reads photographs from disk, and from
shared memory once they are decoded. An error of the file system may be temporary: the read is repeated, then the error is raised, and
the run saves and stops. Bytes that are not an image raise `UndecodableImage`, and the photograph is quarantined.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from linnaeus.workloads.taxonomy.image_cache import SharedImageCache
from linnaeus.workloads.taxonomy.manifest.decoding import NotAnImage, decode, stored_size
from linnaeus.workloads.taxonomy.manifest.table import Column, strings
from linnaeus.workloads.taxonomy.observations import UndecodableImage

THREADS = 16  # stat waits for the network on shared file systems; on a local disk threads make no difference
LARGEST_FILE = 256 << 20  # bytes; a larger file is not read, and counts as damaged
LONGEST_PATH = 4096  # bytes; Linux opens no longer path
NO_PATH, MISSING, NOT_A_FILE, NOT_ALLOWED, TOO_LARGE, EMPTY = -1, -2, -3, -4, -5, 0
REASONS = {
    NO_PATH: "no image path",
    MISSING: "image file missing",
    NOT_A_FILE: "image path is not a file",
    NOT_ALLOWED: "no permission to access the image file",
    TOO_LARGE: f"image file larger than {LARGEST_FILE >> 20} MiB",
    EMPTY: "image file empty",
}
FINAL_ERRORS = dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG), MISSING)  # other errors may be temporary
FINAL_ERRORS |= dict.fromkeys((errno.EACCES, errno.EPERM), NOT_ALLOWED)

RETRY_DELAYS = (0.1, 0.5)  # seconds before the second and the third attempt
CACHE_LIMIT = 512 << 20  # bytes of decoded photographs in memory; above it every read decodes again, with the same pixels
DETAIL = 2  # short side that is kept, in sides of the model's square: a crop of a quarter of the area still fills the square

Result = TypeVar("Result")


def retry(action: Callable[[], Result], final: Collection[int] = ()) -> Result:
    """Return `action()`. It is called up to three times while it raises OSError; an errno in `final` is raised at once."""
    for delay in RETRY_DELAYS:
        try:
            return action()
        except OSError as error:
            if error.errno in final:
                raise
            time.sleep(delay)
    return action()


def clean_path(cell: str) -> str:
    """Return a path with forward slashes (manifests made on Windows have backslashes), or "" if it cannot be a path."""
    return "" if len(cell.encode(errors="replace")) > LONGEST_PATH or "\0" in cell else cell.replace("\\", "/")


def file_sizes(root: Path, column: Column) -> tuple[np.ndarray, np.ndarray]:
    """Return the paths [N] (strings) and the file sizes in bytes, int64 [N]. A size of 0 or less is a key of `REASONS`.

    Raises OSError for an error that may be temporary and remains after three attempts."""
    paths = [clean_path(value) for value in column.values]
    full = [f"{root}/{path}" if path[:1] not in ("", "/") else path for path in paths]
    with ThreadPoolExecutor(THREADS) as pool:
        blocks = [full[i : i + 1000] for i in range(0, len(full), 1000)]
        sizes = [size for block in pool.map(lambda block: [_size(path) for path in block], blocks) for size in block]
    return strings(paths)[column.codes], np.array(sizes, dtype=np.int64)[column.codes]


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


def read_file(path: str, final: Collection[int] = ()) -> bytes:
    """Return the bytes of a file. Raise `NotAnImage` if it is larger than `LARGEST_FILE`, and `OSError` as `retry` does."""

    def read() -> bytes:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return file.read() if size <= LARGEST_FILE else file.read(LARGEST_FILE + 1)

    data = retry(read, final)
    if len(data) > LARGEST_FILE:
        raise NotAnImage(REASONS[TOO_LARGE])
    return data


class ManifestImages:
    """An `ImageReader` of the photographs `paths` [N] (unicode), relative to `root`. A file is open only while it is read."""

    def __init__(self, root: str, paths: np.ndarray, image_size: int, max_pixels: int) -> None:
        self.root, self.paths = root, paths
        self.short_side, self.max_pixels = DETAIL * image_size, max_pixels
        self.cache = self._build_cache()

    def read(self, samples: np.ndarray) -> list[np.ndarray]:
        """Return uint8 [H, W, 3] RGB for each observation number (int64 [B]), with a short side of at most 2 x image_size.

        Raises UndecodableImage for a photograph that can never be read, OSError for one that may be readable later."""
        return [self._read(int(sample)) for sample in samples]

    def path(self, sample: int) -> str:
        """Return the path of a photograph's file."""
        return os.path.join(self.root, str(self.paths[sample]))

    def _read(self, sample: int) -> np.ndarray:
        image = self.cache.get(sample) if self.cache is not None else None
        if image is None:
            try:
                image = decode(read_file(self.path(sample)), self.short_side, self.max_pixels)
            except NotAnImage as error:
                raise UndecodableImage(sample, str(error)) from error
            if self.cache is not None:
                self.cache.put(sample, image)
        return image

    def _build_cache(self) -> SharedImageCache | None:
        """Return a cache if all photographs fit within CACHE_LIMIT, otherwise None.

        Headers are read (0.1 ms each) unless the number of photographs alone exceeds the limit."""
        if len(self.paths) * 3 * (self.short_side // DETAIL) ** 2 > CACHE_LIMIT:
            return None
        sizes = np.array([self._decoded_size(sample) for sample in range(len(self.paths))], dtype=np.int64)
        return SharedImageCache(sizes) if sizes.sum() <= CACHE_LIMIT else None

    def _decoded_size(self, sample: int) -> int:
        try:
            with open(self.path(sample), "rb") as file:
                return stored_size(file, self.short_side, self.max_pixels)
        except OSError:
            return 0  # `read` raises the error
