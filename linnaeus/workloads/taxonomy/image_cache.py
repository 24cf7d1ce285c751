"""A cache of decoded photographs in memory shared by forked loader workers, for data that fit.

The memory is an anonymous shared mapping made before the workers are forked. Its pages are not allocated before a photograph is stored
there, it does not use /dev/shm, which is small by default in containers, and it disappears with the processes. Two workers that decode the
same photograph write the same bytes to the same address. A pickled cache (spawned workers) starts empty.
"""

from __future__ import annotations

import mmap

import numpy as np


class SharedImageCache:
    """Photographs uint8 [H, W, 3] by number. `capacity`: int64 [N], bytes reserved for each; 0: not cached."""

    def __init__(self, capacity: np.ndarray) -> None:
        self._capacity = np.asarray(capacity, dtype=np.int64)
        self._start = np.cumsum(self._capacity) - self._capacity
        self._pixels = np.frombuffer(mmap.mmap(-1, max(1, int(self._capacity.sum()))), dtype=np.uint8)
        self._shape = np.frombuffer(mmap.mmap(-1, max(1, 8 * len(self._capacity))), dtype=np.int32)[: 2 * len(self._capacity)]

    def __reduce__(self) -> tuple[type[SharedImageCache], tuple[np.ndarray]]:
        return SharedImageCache, (self._capacity,)

    def get(self, sample: int) -> np.ndarray | None:
        """Return a copy of the photograph, or None if it is not cached yet."""
        width = int(self._shape[2 * sample + 1])
        if width == 0:
            return None
        height, start = int(self._shape[2 * sample]), int(self._start[sample])
        return self._pixels[start : start + height * width * 3].reshape(height, width, 3).copy()

    def put(self, sample: int, image: np.ndarray) -> None:
        """Store the photograph if its capacity suffices."""
        if image.size > self._capacity[sample]:
            return
        start = int(self._start[sample])
        self._pixels[start : start + image.size] = image.reshape(-1)
        self._shape[2 * sample] = image.shape[0]
        self._shape[2 * sample + 1] = image.shape[1]  # written last: a width above 0 marks a complete photograph
