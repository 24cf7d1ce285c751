"""Cache decoded photographs in memory that forked loader workers share, for data that fit into this memory.

The memory is an anonymous shared mapping, which is made before the workers are forked. Pages of memory are allocated only when photographs
are stored in them. The mapping does not use /dev/shm, which is small by default in containers, and is freed with the last process. Two
workers that decode the same photograph write the same bytes to the same address. A pickled copy of a cache (for spawned workers) starts
empty."""

from __future__ import annotations

import mmap

import numpy as np


class SharedImageCache:
    """Cache of N photographs, uint8 [H, W, 3]. `capacity`: int64 [N], bytes reserved for each photograph; 0: the photograph is not
    cached."""

    def __init__(self, capacity: np.ndarray) -> None:
        self._capacity = np.asarray(capacity, dtype=np.int64)
        self._start = np.cumsum(self._capacity) - self._capacity
        self._pixels = np.frombuffer(mmap.mmap(-1, max(1, int(self._capacity.sum()))), dtype=np.uint8)
        self._shape = np.frombuffer(mmap.mmap(-1, max(1, 8 * len(self._capacity))), dtype=np.int32)[: 2 * len(self._capacity)]

    def __reduce__(self) -> tuple[type[SharedImageCache], tuple[np.ndarray]]:
        return SharedImageCache, (self._capacity,)

    def get(self, sample: int) -> np.ndarray | None:
        """Return a copy of photograph number `sample`; None if the photograph is not cached."""
        width = int(self._shape[2 * sample + 1])
        if width == 0:
            return None
        height, start = int(self._shape[2 * sample]), int(self._start[sample])
        return self._pixels[start : start + height * width * 3].reshape(height, width, 3).copy()

    def put(self, sample: int, image: np.ndarray) -> None:
        """Store photograph number `sample`, if the bytes reserved for it suffice."""
        if image.size > self._capacity[sample]:
            return
        start = int(self._start[sample])
        self._pixels[start : start + image.size] = image.reshape(-1)
        self._shape[2 * sample] = image.shape[0]
        self._shape[2 * sample + 1] = image.shape[1]  # written last: a width above 0 marks a complete photograph
