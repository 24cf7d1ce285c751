"""Accuracy by class: the mean over all that occur, and over those with many, a medium number of and few training labels.

The bounds are those of Liu et al. (CVPR 2019, "Large-scale long-tailed recognition in an open world") and of most papers since: more than
100, 20 to 100, fewer than 20, an unseen class among the last. A class counts once, however many validation samples it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.counting import ratio, zeros
from linnaeus.workloads.taxonomy.metrics.tables import TreeTables

MANY, FEW = 100, 20  # more than; fewer than


class ClassAccuracy:
    """`<rank>/macro_top1`, `<rank>/many`, `<rank>/medium`, `<rank>/few`. Two integers per class."""

    def __init__(self, tables: TreeTables, device: torch.device, training_counts: Sequence[np.ndarray]) -> None:
        """`training_counts`: per rank int64 [C_r], training labels of each class."""
        self.ranks = tables.ranks
        self.training_counts = [torch.as_tensor(count) for count in training_counts]
        assert tuple(len(count) for count in self.training_counts) == tables.sizes, "training counts of every class of every rank"
        self.counts = {f"{rank}/classes": zeros(device, 2, size) for rank, size in zip(tables.ranks, tables.sizes, strict=True)}

    def count(self, view: BatchView) -> None:
        """A null adds 0 to class 0; `bincount` would wait for the device."""
        for r, rank in enumerate(self.ranks):
            votes = torch.stack([view.right[:, r], view.known[:, r]]).long()
            self.counts[f"{rank}/classes"].index_add_(1, view.label[:, r].clamp(min=0), votes)

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        results = {}
        for rank, seen in zip(self.ranks, self.training_counts, strict=True):
            share = ratio(*counts[f"{rank}/classes"])
            results[f"{rank}/macro_top1"] = share.nanmean().item()
            buckets = {"many": seen > MANY, "medium": (seen >= FEW) & (seen <= MANY), "few": seen < FEW}
            results |= {f"{rank}/{name}": share[bucket].nanmean().item() for name, bucket in buckets.items()}
        return results
