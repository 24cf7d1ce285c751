"""`PhotographReader`: read the photographs of a manifest during training, from their files, or from shared memory once they are decoded.

Bytes that are not an image raise `UndecodableImage`; the photograph is then quarantined (`quarantine.py`).
"""

import numpy as np

from linnaeus.workloads.taxonomy.images.image_cache import SharedImageCache
from linnaeus.workloads.taxonomy.images.image_files import ImageFiles
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.observations import UndecodableImage

CACHE_LIMIT = 512 << 20  # bytes; if all decoded photographs need more, none is kept, and every read decodes again, to the same pixels
DETAIL = 2  # photographs are scaled down to a short side of 2 x image_size: a crop of a quarter of the area still fills the square


class PhotographReader:
    """`ImageReader` for the photographs in `files`, one per row. `image_size`: side of the model's input in pixels."""

    def __init__(self, files: ImageFiles, image_size: int, max_pixels: int) -> None:
        self.files = files
        self.short_side, self.max_pixels = DETAIL * image_size, max_pixels
        self.cache = self._build_cache()

    def read(self, samples: np.ndarray) -> list[np.ndarray]:
        """Return the pixels of the photographs with the row numbers `samples`, int64 [B]: uint8 [H, W, 3] RGB each.

        The shorter side of a photograph is at most 2 x image_size. Raise `UndecodableImage` for a photograph that can never be read,
        `OSError` for a photograph that may be readable later."""
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
        """Return a cache if all decoded photographs fit into `CACHE_LIMIT`, otherwise None.

        The size of the decoded photographs is computed from their headers (0.1 ms each). Headers are not read if there are so many
        photographs that the limit is exceeded in any case."""
        count = len(self.files.names)
        if count * 3 * (self.short_side // DETAIL) ** 2 > CACHE_LIMIT:
            return None
        sizes = np.array([self.files.decoded_size(sample, self.short_side, self.max_pixels) for sample in range(count)], dtype=np.int64)
        return SharedImageCache(sizes) if sizes.sum() <= CACHE_LIMIT else None

    def area(self, sample: int) -> int:
        """Return the number of pixels of a photograph, from its header; 0 if the header cannot be read."""
        return self.files.decoded_size(sample, 1 << 30, self.max_pixels) // 3
