"""What is kept of each validation sample: 24 bytes, for what cannot be made of sums (risk-coverage curves, resampling).

Every sample belongs to one batch of one process, so rows are added into zeros, and adding up the processes completes them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.counting import zeros
from linnaeus.workloads.taxonomy.metrics.tables import TreeTables

RECORD = "record"  # the counts' name: int64 [N, 3] of flags, height, confidence
MAX_RANKS = 31  # two bits each in the flags


class SampleRecord:
    """Fills the record, which `Samples` reads."""

    def __init__(self, tables: TreeTables, device: torch.device, size: int) -> None:
        assert len(tables.ranks) <= MAX_RANKS, f"at most {MAX_RANKS} ranks"
        self.counts = {RECORD: zeros(device, size, 3)}
        self._bits = 1 << torch.arange(2 * len(tables.ranks), device=device)

    def count(self, view: BatchView) -> None:
        flags = (torch.cat([view.known, view.right], 1) * self._bits).sum(1)
        height = torch.where(view.finest_known, view.height, 0)
        rows = torch.stack([flags, height, _float_bits(_confidence(view))], 1)
        self.counts[RECORD].index_add_(0, view.sample, torch.where(view.real.unsqueeze(1), rows, 0))


class Samples:
    """A record as arrays on the host, N samples in the order of the dataset."""

    def __init__(self, record: Tensor, ranks: int) -> None:
        flags, height, bits = record.cpu().numpy().T
        columns = (flags[:, None] >> np.arange(2 * ranks)) & 1
        self.known = columns[:, :ranks].astype(bool)  # [N, R]
        self.right = columns[:, ranks:].astype(bool)  # [N, R]
        self.height = height  # int64 [N] of lca(y, p), 0 where there is no finest label
        self.confidence = bits.astype(np.int32).view(np.float32)  # [N] of the deepest predicted class


def _confidence(view: BatchView) -> Tensor:
    """float32 [B]: probability of the deepest predicted class, at its rank; 0 where nothing is predicted."""
    own = torch.stack([log_p.gather(1, view.path[:, r : r + 1].clamp(min=0))[:, 0] for r, log_p in enumerate(view.log_probs)], 1)
    deepest = (view.path == view.predicted_path) & (view.tables.rank_number[view.predicted].unsqueeze(1) == view.tables.numbers)
    return torch.where(deepest, own.exp().nan_to_num(nan=0.0), 0.0).sum(1).clamp(max=1).float()


def _float_bits(x: Tensor) -> Tensor:
    """int64 of non-negative float32."""
    return x.view(torch.int32).long()
