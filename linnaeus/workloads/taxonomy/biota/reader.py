"""The image reader of biota: photographs are rendered at the first read and kept in memory that forked loader workers share.

The memory is an anonymous shared mapping. Pages are allocated when they are written, nothing can be left in /dev/shm, and the kernel
frees the memory with the last process. A reader pickled to a spawned process starts with an empty cache of its own.
"""

from __future__ import annotations

import mmap

import numpy as np

from linnaeus.workloads.taxonomy.biota.render import render

CACHE_LIMIT = 2 << 30  # bytes; above it there is no cache and every read renders again, with the same pixels


class BiotaReader:
    """An `ImageReader` of `count` individuals of a world, at `size` x `size` pixels."""

    def __init__(self, world: int, count: int, size: int) -> None:
        self.world, self.count, self.size = world, count, size
        self._photographs: np.ndarray | None = None
        if count * size * size * 3 <= CACHE_LIMIT:
            self._photographs = np.frombuffer(mmap.mmap(-1, count * size * size * 3), np.uint8).reshape(count, size, size, 3)
            self._checksums = np.frombuffer(mmap.mmap(-1, count * 4), np.uint32)  # 1 + sum of the bytes; 0: not rendered yet

    def __getstate__(self) -> tuple[int, int, int]:
        return self.world, self.count, self.size

    def __setstate__(self, state: tuple[int, int, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def read(self, samples: np.ndarray) -> list[np.ndarray]:
        """Return uint8 [size, size, 3] RGB for each number in `samples` (int64 [B]). Raises IndexError for a number out of range."""
        samples = np.asarray(samples, np.int64)
        if len(samples) and (samples.min() < 0 or samples.max() >= self.count):
            raise IndexError(f"individual numbers must be in 0 to {self.count - 1}")
        if self._photographs is None:
            return list(render(self.world, samples, self.size))
        photographs = self._photographs[samples]
        # A checksum, not a flag: on weakly ordered machines a flag can arrive before the pixels another worker wrote.
        missing = np.flatnonzero(self._checksums[samples] != _checksums(photographs))
        if len(missing):
            rendered = render(self.world, samples[missing], self.size)
            photographs[missing] = rendered
            self._photographs[samples[missing]] = rendered
            self._checksums[samples[missing]] = _checksums(rendered)
        return list(photographs)


def _checksums(photographs: np.ndarray) -> np.ndarray:
    """Return uint32 [B]: 1 + the sum of the bytes of each photograph. 0 marks a photograph that is not rendered yet."""
    return photographs.sum(axis=(1, 2, 3), dtype=np.uint32) + np.uint32(1)
