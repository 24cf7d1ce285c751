"""A record of 24 bytes for each validation sample, for metrics that cannot be computed from sums (risk-coverage curves, resampling).

Every sample is in one batch of one process, so each process adds its rows to zeros, and the sum over the processes is the record.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.confidence import area_under_risk_coverage
from linnaeus.workloads.taxonomy.metrics.training_metrics import zero_counts
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables

RECORD = "record"  # name of the counts: int64 [N, 3] of flags, height, confidence
MAX_RANKS = 31  # each rank has two bits of the flags


class SampleRecord:
    """`aurc`, and the counter that fills the record. `Samples` reads it."""

    def __init__(self, tables: TreeTables, device: torch.device, size: int) -> None:
        assert len(tables.ranks) <= MAX_RANKS, f"at most {MAX_RANKS} ranks"
        self.counts = {RECORD: zero_counts(device, size, 3)}
        self._bits = 1 << torch.arange(2 * len(tables.ranks), device=device)

    def count(self, view: BatchView) -> None:
        flags = (torch.cat([view.known, view.right], 1) * self._bits).sum(1)
        height = torch.where(view.finest_known, view.height, 0)
        rows = torch.stack([flags, height, _confidence(view).view(torch.int32).long()], 1)
        self.counts[RECORD].index_add_(0, view.sample, torch.where(view.real.unsqueeze(1), rows, 0))

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        samples = Samples(counts[RECORD], len(self._bits) // 2)
        known = samples.known[:, -1]
        return {"aurc": area_under_risk_coverage(~samples.right[known, -1], samples.confidence[known])}


class Samples:
    """A complete record as arrays on the host, N samples in dataset order."""

    def __init__(self, record: Tensor, ranks: int) -> None:
        flags, height, bits = record.cpu().numpy().T
        columns = (flags[:, None] >> np.arange(2 * ranks)) & 1
        self.known = columns[:, :ranks].astype(bool)  # [N, R]
        self.right = columns[:, ranks:].astype(bool)  # [N, R]
        self.height = height  # int64 [N]: height of lca(y, p), 0 without a label at the finest rank
        self.confidence = bits.astype(np.int32).view(np.float32)  # [N]: probability of the deepest predicted class


def _confidence(view: BatchView) -> Tensor:
    """Return the probability of the deepest predicted class at its rank, float32 [B]; 0 if nothing is predicted."""
    own = torch.stack([log_p.gather(1, view.path[:, r : r + 1].clamp(min=0))[:, 0] for r, log_p in enumerate(view.log_probs)], 1)
    deepest = (view.path == view.predicted_path) & (view.tables.rank_number[view.predicted].unsqueeze(1) == view.tables.numbers)
    return torch.where(deepest, own.exp().nan_to_num(nan=0.0), 0.0).sum(1).clamp(max=1).float()
