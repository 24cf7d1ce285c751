"""The numbers of taxa and rows of each rank, and the shape of the tail: many taxa with few rows."""

from typing import NamedTuple

import numpy as np

from linnaeus.workloads.taxonomy.doctor.findings import Inspected


class RankCounts(NamedTuple):
    """The counts of a rank with at least one label."""

    rank: str
    sizes: np.ndarray  # int64 [C]: rows of each taxon, the largest first
    null_share: float  # of the rows that are not left out

    @property
    def single(self) -> int:
        """Return the number of taxa with one row: they are only in training."""
        return int((self.sizes == 1).sum())

    @property
    def half(self) -> int:
        """Return the number of the largest taxa that together have half of the rows."""
        return int(np.searchsorted(np.cumsum(self.sizes), self.sizes.sum() / 2) + 1)


def rank_counts(records: Inspected) -> list[RankCounts]:
    """Return the counts of each rank with a label, coarse to fine."""
    counts = []
    used = int((records.labels >= 0).any(axis=1).sum())
    for r, rank in enumerate(records.tree.ranks):
        labels = records.labels[:, r][records.labels[:, r] >= 0]
        sizes = np.bincount(labels)
        if len(labels):
            counts.append(RankCounts(rank, np.sort(sizes[sizes > 0])[::-1], 1 - len(labels) / used))
    return counts
