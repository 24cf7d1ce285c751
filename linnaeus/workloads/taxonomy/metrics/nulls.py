"""How well a head that learns null labels (`head.nulls`) says "not known at this rank"."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.counting import ratio, zeros
from linnaeus.workloads.taxonomy.metrics.tables import TreeTables


class Nulls:
    """`<rank>/null_recall`, `<rank>/null_precision`: null is said where it is likelier than every class of the rank. A sample without a
    label there is one of which it should be said, though its taxon may be known to somebody."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        self.ranks = tables.ranks
        self.counts = {name: zeros(device, len(tables.ranks)) for name in ("null", "null_said", "null_right")}

    def count(self, view: BatchView) -> None:
        null = ~view.known & view.real.unsqueeze(1)
        said = view.null_likeliest & view.real.unsqueeze(1)
        for name, found in zip(self.counts, (null, said, null & said), strict=True):
            self.counts[name] += found.sum(0)

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        shares = {"null_recall": counts["null"], "null_precision": counts["null_said"]}
        found = {name: ratio(counts["null_right"], total).tolist() for name, total in shares.items()}
        return {f"{rank}/{name}": share[r] for r, rank in enumerate(self.ranks) for name, share in found.items()}
