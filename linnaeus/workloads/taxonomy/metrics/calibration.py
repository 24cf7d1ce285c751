"""Expected calibration error (Guo et al., ICML 2017) of each rank: the mean over 15 bins of equal width, weighted by their samples, of
|share right - mean confidence|, where the confidence is the probability of the rank's likeliest class. Bins are (i/15, (i+1)/15]."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.counting import UNIT, fixed, ratio, zeros
from linnaeus.workloads.taxonomy.metrics.tables import TreeTables

BINS = 15


class Calibration:
    """`<rank>/ece`."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        self.ranks = tables.ranks
        self.counts = {"calibration": zeros(device, 3, len(tables.ranks) * BINS)}  # samples, right, confidence in fixed point
        self._first_bin = torch.arange(len(tables.ranks), device=device) * BINS

    def count(self, view: BatchView) -> None:
        confidence = view.best_log_p.double().exp().clamp(max=1)
        known = view.known & ~confidence.isnan()
        place = (confidence.nan_to_num() * BINS).ceil().long().sub(1).clamp(0, BINS - 1) + self._first_bin
        votes = torch.stack([known.long(), ((view.best == view.label) & known).long(), torch.where(known, fixed(confidence), 0)])
        self.counts["calibration"].index_add_(1, place.flatten(), votes.flatten(1))

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        samples, right, confidence = counts["calibration"].double().view(3, -1, BINS)
        error = (right - confidence / UNIT).abs().sum(1)
        return {f"{rank}/ece": v for rank, v in zip(self.ranks, ratio(error, samples.sum(1)).tolist(), strict=True)}
