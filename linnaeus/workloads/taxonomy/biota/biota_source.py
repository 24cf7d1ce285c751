"""Implement the `Source` of biota: the table of individuals is built at the start, photographs are rendered when they are read.

Rendered photographs are stored in an anonymous memory mapping that forked loader workers share. Its pages are allocated when they are
written, no file can be left in /dev/shm, and the kernel frees the memory when the last process ends. A reader that is pickled to a spawned
process starts with an empty cache.
"""

from __future__ import annotations

import hashlib
import mmap
from typing import TYPE_CHECKING

import numpy as np

from linnaeus.workloads.taxonomy.biota.individuals import draw_metadata, labels_of, species_of
from linnaeus.workloads.taxonomy.biota.render import render
from linnaeus.workloads.taxonomy.biota.world import GENERATOR_VERSION, build_world
from linnaeus.workloads.taxonomy.manifest.labels.ranks import choose_ranks
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Source

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.config import BiotaConfig

CACHE_LIMIT = 2 << 30  # bytes; above it there is no cache and every read renders again, with the same pixels


def fingerprint(config: BiotaConfig) -> str:
    """Return a hash of everything that determines a photograph or a number of the source, as 16 hexadecimal digits."""
    counts = (config.train_samples, config.validation_samples)
    parts = (GENERATOR_VERSION, config.world, *counts, config.image_size, *(config.ranks or ()))
    return hashlib.sha256(("biota:" + ":".join(map(str, parts))).encode()).hexdigest()[:16]


def build_source(config: BiotaConfig) -> Source:
    """Return the source that `config` describes. Individuals 0 to `train_samples` - 1 are for training, the next `validation_samples` for
    validation.

    10,000 individuals take about 20 ms. Raise `ConfigError` if `data.ranks` contains a rank that the world does not have, or is not ordered
    coarse to fine."""
    world = build_world(config.world)
    count = config.train_samples + config.validation_samples
    samples = np.arange(count)
    species = species_of(world, samples)
    orders, families, genera, _ = world.tree.sizes
    ranks, _ = choose_ranks(config, world.tree.ranks, world.tree.sizes)
    return Source(
        tree=world.tree.subset(ranks),
        ids=np.char.add(f"biota-{config.world}-", samples.astype(str)),
        labels=labels_of(world, species, samples)[:, [world.tree.ranks.index(rank) for rank in ranks]],
        metadata=draw_metadata(world, species, samples),
        split=np.where(samples < config.train_samples, TRAIN, VALIDATION).astype(np.int8),
        images=BiotaReader(config.world, count, config.image_size),
        fingerprint=fingerprint(config),
        notes=(
            f"biota world {config.world}: {orders} orders, {families} families, {genera} genera, {len(world.prior)} species; "
            f"{config.train_samples:,} individuals for training, {config.validation_samples:,} others for validation",
        ),
    )


class BiotaReader:
    """`ImageReader` that renders photographs of `size` x `size` pixels for `count` individuals of a world, and caches them if they fit in
    `CACHE_LIMIT`."""

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
        """Return an RGB photograph, uint8 [size, size, 3], for each individual number in `samples` (int64 [B]). Raise `IndexError` for a
        number out of range."""
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
    """Return 1 + the sum of the bytes of each photograph, uint32 [B]. In the cache, 0 marks a photograph that is not rendered yet."""
    return photographs.sum(axis=(1, 2, 3), dtype=np.uint32) + np.uint32(1)
