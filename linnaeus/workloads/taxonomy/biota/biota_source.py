"""The `Source` of biota: the table of individuals is built at the start, photographs are rendered when they are read."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from linnaeus.workloads.taxonomy.biota.individuals import draw_metadata, labels_of, species_of
from linnaeus.workloads.taxonomy.biota.reader import BiotaReader
from linnaeus.workloads.taxonomy.biota.world import GENERATOR_VERSION, build_world
from linnaeus.workloads.taxonomy.manifest.columns import choose_ranks
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Source

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.config import BiotaConfig


def fingerprint(config: BiotaConfig) -> str:
    """Return a hash of everything that determines a photograph or a number of the source: 16 hex digits."""
    counts = (config.train_samples, config.validation_samples)
    parts = (GENERATOR_VERSION, config.world, *counts, config.image_size, *(config.ranks or ()))
    return hashlib.sha256(("biota:" + ":".join(map(str, parts))).encode()).hexdigest()[:16]


def build_source(config: BiotaConfig) -> Source:
    """Return the source. Individuals 0..train_samples-1 are for training, the next `validation_samples` for validation.

    10,000 individuals take about 20 ms. Raises ConfigError when `data.ranks` does not fit the ranks of the world."""
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
            f"{config.train_samples} individuals for training, {config.validation_samples} others for validation",
        ),
    )
