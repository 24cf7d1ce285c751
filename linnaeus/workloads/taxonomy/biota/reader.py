"""Reads biota's photographs: drawn when first asked for, then kept in memory that forked loader workers share.

The memory is an anonymous shared mapping: pages exist only once written, it has no name (nothing can be left in /dev/shm) and
the kernel frees it with the last process. A reader that is pickled to a spawned process starts an empty one of its own.
"""

from __future__ import annotations

import mmap

import numpy as np

from linnaeus.workloads.taxonomy.biota.draw import draw

CACHE_LIMIT = 2 << 30  # bytes; beyond it every read draws anew, and nothing else changes


class BiotaReader:
    """`ImageReader` of `count` individuals of a world, drawn at `size` x `size` pixels."""

    def __init__(self, world: int, count: int, size: int) -> None:
        self.world, self.count, self.size = world, count, size
        self._photographs: np.ndarray | None = None
        if count * size * size * 3 <= CACHE_LIMIT:
            self._photographs = np.frombuffer(mmap.mmap(-1, count * size * size * 3), np.uint8).reshape(count, size, size, 3)
            self._stamps = np.frombuffer(mmap.mmap(-1, count * 4), np.uint32)  # 1 + sum of the bytes; 0: not drawn yet

    def __getstate__(self) -> tuple[int, int, int]:
        return self.world, self.count, self.size

    def __setstate__(self, state: tuple[int, int, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def read(self, samples: np.ndarray) -> list[np.ndarray]:
        """uint8 [size, size, 3] RGB for each number in `samples` (int64 [B]). Raises IndexError for a number out of range."""
        samples = np.asarray(samples, np.int64)
        if len(samples) and (samples.min() < 0 or samples.max() >= self.count):
            raise IndexError(f"individuals are numbered 0 to {self.count - 1}")
        if self._photographs is None:
            return list(draw(self.world, samples, self.size))
        taken = self._photographs[samples]
        # The stamp is checked, not only seen: on weakly ordered machines it could arrive before the pixels of another worker.
        fresh = np.flatnonzero(self._stamps[samples] != _stamps(taken))
        if len(fresh):
            drawn = draw(self.world, samples[fresh], self.size)
            taken[fresh] = drawn
            self._photographs[samples[fresh]] = drawn
            self._stamps[samples[fresh]] = _stamps(drawn)
        return list(taken)


def _stamps(photographs: np.ndarray) -> np.ndarray:
    """uint32 [B], never 0 for what was drawn: 1 + the sum of the bytes."""
    return photographs.sum(axis=(1, 2, 3), dtype=np.uint32) + np.uint32(1)
