"""Count the taxa and rows of each rank, and describe the long tail: many taxa with few rows."""

from typing import NamedTuple

import numpy as np

from linnaeus.errors import escaped
from linnaeus.reporting.formatting import format_percent
from linnaeus.workloads.taxonomy.doctor.findings import Inspected


class RankCounts(NamedTuple):
    """Numbers of rows of the taxa of one taxonomic rank. At least one row has a label at the rank."""

    rank: str
    sizes: np.ndarray  # int64 [C]: rows of each taxon, the largest first
    null_share: float  # share without a label at this rank, of the rows that training does not leave out

    @property
    def single(self) -> int:
        """Return the number of taxa with a single row; such a row is only used for training."""
        return int((self.sizes == 1).sum())

    @property
    def half(self) -> int:
        """Return the smallest number of taxa that together have half of the rows."""
        return int(np.searchsorted(np.cumsum(self.sizes), self.sizes.sum() / 2) + 1)

    def cells(self) -> dict[str, str]:
        """Return the table row of this rank in the report, as heading -> cell."""
        return {
            "rank": escaped(self.rank),
            "taxa": f"{len(self.sizes):,}",
            "rows": f"{int(self.sizes.sum()):,}",
            "without": format_percent(self.null_share),
            "largest": f"{self.sizes[0]:,}",
            "median": f"{self.sizes[len(self.sizes) // 2]:,}",
            "with 1 row": f"{self.single:,}",
            "half of the rows in": f"{self.half:,}",
        }


def rank_counts(records: Inspected) -> list[RankCounts]:
    """Return the numbers of rows of the taxa, for each rank that has at least one label, from coarse to fine."""
    counts = []
    used = int((records.labels >= 0).any(axis=1).sum())
    for r, rank in enumerate(records.tree.ranks):
        labels = records.labels[:, r][records.labels[:, r] >= 0]
        sizes = np.bincount(labels)
        if len(labels):
            counts.append(RankCounts(rank, np.sort(sizes[sizes > 0])[::-1], 1 - len(labels) / used))
    return counts
