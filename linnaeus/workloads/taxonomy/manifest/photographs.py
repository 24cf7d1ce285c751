"""`PhotographReader`: the `ImageReader` of a source of records. It reads photographs from their files, and from shared memory once they
are decoded. Bytes that are not an image raise `UndecodableImage`, and the photograph is quarantined.
"""

import numpy as np

from linnaeus.workloads.taxonomy.image_cache import SharedImageCache
from linnaeus.workloads.taxonomy.manifest.decoding import stored_size
from linnaeus.workloads.taxonomy.manifest.image_files import ImageFiles
from linnaeus.workloads.taxonomy.manifest.integrity import NotAnImage
from linnaeus.workloads.taxonomy.observations import UndecodableImage

CACHE_LIMIT = 512 << 20  # bytes of decoded photographs in memory; above it every read decodes again, with the same pixels
DETAIL = 2  # short side that is kept, in sides of the model's square: a crop of a quarter of the area still fills the square


class PhotographReader:
    """An `ImageReader` of the photographs `files` of N observations."""

    def __init__(self, files: ImageFiles, image_size: int, max_pixels: int) -> None:
        self.files = files
        self.short_side, self.max_pixels = DETAIL * image_size, max_pixels
        self.cache = self._build_cache()

    def read(self, samples: np.ndarray) -> list[np.ndarray]:
        """Return uint8 [H, W, 3] RGB for each observation number (int64 [B]), with a short side of at most 2 x image_size.

        Raise UndecodableImage for a photograph that can never be read, OSError for one that may be readable later."""
        return [self._read(int(sample)) for sample in samples]

    def _read(self, sample: int) -> np.ndarray:
        image = self.cache.get(sample) if self.cache is not None else None
        if image is None:
            try:
                image = self.files.decode(sample, self.short_side, self.max_pixels)
            except NotAnImage as error:
                raise UndecodableImage(sample, str(error)) from error
            if self.cache is not None:
                self.cache.put(sample, image)
        return image

    def _build_cache(self) -> SharedImageCache | None:
        """Return a cache if all photographs fit within CACHE_LIMIT, otherwise None.

        Headers are read (0.1 ms each) unless the number of photographs alone exceeds the limit."""
        count = len(self.files.names)
        if count * 3 * (self.short_side // DETAIL) ** 2 > CACHE_LIMIT:
            return None
        sizes = np.array([self._decoded_size(sample) for sample in range(count)], dtype=np.int64)
        return SharedImageCache(sizes) if sizes.sum() <= CACHE_LIMIT else None

    def area(self, sample: int) -> int:
        """Return the number of pixels of a photograph, from its header; 0 if it cannot be read."""
        return self._decoded_size(sample, 1 << 30) // 3

    def _decoded_size(self, sample: int, short_side: int | None = None) -> int:
        try:
            with self.files.head(sample) as file:
                return stored_size(file, short_side or self.short_side, self.max_pixels)
        except (OSError, NotAnImage):
            return 0  # `read` raises the error
