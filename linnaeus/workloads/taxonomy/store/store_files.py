"""`StoreFiles`: read the photographs of a store. Each process maps a part into memory when it first reads from it."""

import math
from pathlib import Path

import numpy as np

from linnaeus.workloads.taxonomy.arrays.text_arrays import Names
from linnaeus.workloads.taxonomy.images.decoding import limited_pixels, limited_size
from linnaeus.workloads.taxonomy.images.image_files import ImageFiles
from linnaeus.workloads.taxonomy.store.store_layout import part_path, read_array


class StoreFiles(ImageFiles):
    """Photographs of a store. `names`: N paths. `place`: int64 [N, 3], number of the part, offset and size in bytes.

    `shape`: int32 [N, 2], height and width if raw pixels are stored; None if image files are stored."""

    def __init__(self, store: Path, names: Names, place: np.ndarray, shape: np.ndarray | None) -> None:
        self.store, self.names, self.place, self.shape = store, names, place, shape
        self._parts: dict[int, np.ndarray] = {}

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_parts": {}}

    def sizes(self) -> np.ndarray:
        return np.asarray(self.place[:, 2])

    def take(self, rows: np.ndarray) -> "StoreFiles":
        return StoreFiles(self.store, self.names[rows], self.place[rows], None if self.shape is None else self.shape[rows])

    def read(self, row: int) -> bytes:
        return self._bytes(row).tobytes()

    def decoded_size(self, row: int, short_side: int, max_pixels: int) -> int:
        if self.shape is None:
            return super().decoded_size(row, short_side, max_pixels)
        height, width = self.shape[row].tolist()
        return 3 * math.prod(limited_size(width, height, short_side))

    def decode(self, row: int, short_side: int, max_pixels: int) -> np.ndarray:
        if self.shape is None:
            return super().decode(row, short_side, max_pixels)
        height, width = self.shape[row].tolist()
        return limited_pixels(self._bytes(row).reshape(height, width, 3), short_side)

    def inspect(self, row: int, short_side: int, max_pixels: int) -> tuple[bytes, np.ndarray, tuple[int, int]]:
        if self.shape is None:
            return super().inspect(row, short_side, max_pixels)
        height, width = self.shape[row].tolist()
        return self.read(row), self.decode(row, short_side, max_pixels), (width, height)

    def originals(self) -> np.ndarray | None:
        """Return `wide_hash` of the original files, uint8 [N, 16]; None if an earlier program, which did not hash them, has made the store.

        They are read from the disk at each call, because training does not need them. Raise `ConfigError` if they cannot be read."""
        path = self.store / "originals.npy"
        if not path.exists():
            return None
        stored, own = (array[:, 0] << 40 | array[:, 1] for array in (read_array(self.store / "place.npy", mapped=True), self.place))
        return read_array(path, mapped=True)[np.searchsorted(stored, own)]  # a part is smaller than 2^40 bytes; the places are sorted

    def _bytes(self, row: int) -> np.ndarray:
        """Return the stored bytes of a photograph, uint8 [size], memory-mapped. Raise `OSError` if the file is too short."""
        part, offset, size = self.place[row].tolist()
        if part not in self._parts:
            self._parts[part] = np.memmap(part_path(self.store, part), dtype=np.uint8, mode="r")
        found = self._parts[part][offset : offset + size]
        if len(found) != size:
            raise OSError(f"{part_path(self.store, part)} is shorter than the place.npy of the store requires; prepare the store again")
        return found
