"""Decoded photographs kept in memory that forked loader workers share, for data small enough to fit.

The arena is an anonymous shared mapping made before the workers are forked: pages cost nothing until a photograph is first
put there, /dev/shm with its small container default is not involved, and nothing is left behind when the processes end. Two
workers that decode the same photograph write the same bytes to the same place. A pickled cache (workers that are spawned)
arrives empty and is filled again.
"""

from __future__ import annotations

import mmap

import numpy as np


class SharedImageCache:
    """uint8 [H, W, 3] photographs by number; `capacity` int64 [N] is the room for each, in bytes (0: never kept)."""

    def __init__(self, capacity: np.ndarray) -> None:
        self._capacity = np.asarray(capacity, dtype=np.int64)
        self._start = np.cumsum(self._capacity) - self._capacity
        self._pixels = np.frombuffer(mmap.mmap(-1, max(1, int(self._capacity.sum()))), dtype=np.uint8)
        self._shape = np.frombuffer(mmap.mmap(-1, max(1, 8 * len(self._capacity))), dtype=np.int32)[: 2 * len(self._capacity)]

    def __reduce__(self) -> tuple[type[SharedImageCache], tuple[np.ndarray]]:
        return SharedImageCache, (self._capacity,)

    @property
    def nbytes(self) -> int:
        """Bytes the cache takes once full."""
        return int(self._capacity.sum())

    def get(self, sample: int) -> np.ndarray | None:
        """A copy of the photograph, or None if it is not there yet."""
        width = int(self._shape[2 * sample + 1])
        if width == 0:
            return None
        height, start = int(self._shape[2 * sample]), int(self._start[sample])
        return self._pixels[start : start + height * width * 3].reshape(height, width, 3).copy()

    def put(self, sample: int, image: np.ndarray) -> None:
        """Keep the photograph if there is room for it."""
        if image.size > self._capacity[sample]:
            return
        start = int(self._start[sample])
        self._pixels[start : start + image.size] = image.reshape(-1)
        self._shape[2 * sample] = image.shape[0]
        self._shape[2 * sample + 1] = image.shape[1]  # last: a width says that the rest is there
