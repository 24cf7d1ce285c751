"""Reads a manifest's photographs: from disk, patiently, and from shared memory once they have been decoded.

An error of the file system may pass: the read is tried again, then raised, and the run saves and stops. Bytes that are not an image
never become one: `UndecodableImage`, and the photograph is quarantined.
"""

from __future__ import annotations

import os

import numpy as np

from linnaeus.workloads.taxonomy.image_cache import SharedImageCache
from linnaeus.workloads.taxonomy.manifest.decoding import NotAnImage, decode, stored_size
from linnaeus.workloads.taxonomy.manifest.retrying import retried
from linnaeus.workloads.taxonomy.observations import UndecodableImage

CACHE_LIMIT = 512 << 20  # bytes of decoded photographs kept in memory; beyond it every read decodes anew, with the same pixels
DETAIL = 2  # short side kept, in sides of the model's square: a crop of a quarter of the area still fills it


class ManifestImages:
    """`ImageReader` of the photographs `paths` [N] (unicode), relative to `root`. Opens a file only while it is read."""

    def __init__(self, root: str, paths: np.ndarray, image_size: int, max_pixels: int) -> None:
        self.root, self.paths = root, paths
        self.short_side, self.max_pixels = DETAIL * image_size, max_pixels
        self.cache = self._small_enough()

    def read(self, samples: np.ndarray) -> list[np.ndarray]:
        """uint8 [H, W, 3] RGB for each observation number (int64 [B]), short side at most 2 x image_size.

        Raises UndecodableImage for one that can never be read, OSError for one that may be readable later."""
        return [self._read(int(sample)) for sample in samples]

    def path(self, sample: int) -> str:
        return os.path.join(self.root, str(self.paths[sample]))

    def _read(self, sample: int) -> np.ndarray:
        image = self.cache.get(sample) if self.cache is not None else None
        if image is None:
            try:
                image = decode(retried(lambda: _content(self.path(sample))), self.short_side, self.max_pixels)
            except NotAnImage as error:
                raise UndecodableImage(sample, str(error)) from error
            if self.cache is not None:
                self.cache.put(sample, image)
        return image

    def _small_enough(self) -> SharedImageCache | None:
        """A cache if all photographs fit. Headers are read (0.1 ms each) only where the number of photographs leaves it open."""
        if len(self.paths) * 3 * (self.short_side // DETAIL) ** 2 > CACHE_LIMIT:
            return None
        sizes = np.array([self._header(sample) for sample in range(len(self.paths))], dtype=np.int64)
        return SharedImageCache(sizes) if sizes.sum() <= CACHE_LIMIT else None

    def _header(self, sample: int) -> int:
        try:
            with open(self.path(sample), "rb") as file:
                return stored_size(file, self.short_side, self.max_pixels)
        except OSError:
            return 0  # said when it is read


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
