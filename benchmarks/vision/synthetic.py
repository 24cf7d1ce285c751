"""Data source of random photographs with labels of a random taxonomic tree: `data=synthetic_photographs`.

The photographs of all rows are a few arrays in memory, so reading one costs nothing. Labels and metadata are drawn per row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.big_trees import big_tree, draw_labels
from linnaeus.config.registry import register
from linnaeus.config.setting import setting
from linnaeus.workloads.taxonomy.config import TaxonomyDataConfig
from linnaeus.workloads.taxonomy.manifest.labels.ranks import choose_ranks
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Metadata, Source

DIFFERENT = 16  # photographs in memory


@dataclass(frozen=True)
class SyntheticConfig(TaxonomyDataConfig):
    train_samples: int = setting("rows for training", low=1)
    species: int = setting("leaves of the tree", low=2)


@register("data", "synthetic_photographs", SyntheticConfig)
def build(config: SyntheticConfig) -> Source:
    tree = big_tree(config.species)
    count = config.train_samples + DIFFERENT
    ranks, _ = choose_ranks(config, tree.ranks, tree.sizes)
    labels = draw_labels(tree, count, nulls=0.0)[:, [tree.ranks.index(rank) for rank in ranks]]
    draws = np.random.default_rng(0)
    values = {name: draws.uniform(low, high, count).astype(np.float32) for name, (low, high) in METADATA.items()}
    return Source(
        tree=tree.subset(ranks),
        ids=np.arange(count).astype(str),
        labels=labels,
        metadata=Metadata(**values),
        split=np.where(np.arange(count) < config.train_samples, TRAIN, VALIDATION).astype(np.int8),
        images=Photographs(config.image_size),
        fingerprint=f"synthetic:{config.train_samples}:{config.species}:{config.image_size}",
    )


METADATA = {
    "latitude": (-60, 70), "longitude": (-180, 180), "uncertainty": (1, 1000), "day": (0, 1), "hour": (0, 24), "elevation": (0, 3000),
}  # fmt: skip


class Photographs:
    """`ImageReader` of `DIFFERENT` random photographs, uint8 [size, size, 3]; row i has photograph i mod `DIFFERENT`."""

    def __init__(self, size: int) -> None:
        self.images = np.random.default_rng(0).integers(0, 256, (DIFFERENT, size, size, 3), dtype=np.uint8)

    def read(self, samples: np.ndarray) -> list[np.ndarray]:
        return [self.images[sample % DIFFERENT] for sample in samples.tolist()]
