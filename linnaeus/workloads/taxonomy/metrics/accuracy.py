"""Accuracy of each rank and of whole paths."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.counting import ratio, zeros
from linnaeus.workloads.taxonomy.metrics.tables import TreeTables

TOP_K = 5


class Accuracy:
    """`<rank>/top1`, `<rank>/top5`, and for hierarchical heads `<rank>/marginal_top1`."""

    def __init__(self, tables: TreeTables, device: torch.device, consistent: bool) -> None:
        """`consistent`: the head is hierarchical."""
        self.ranks = tables.ranks
        self.shown = {"top1": "top1", "top5": "top5"} | ({"marginal_top1": "marginal"} if consistent else {})
        self.counts = {name: zeros(device, len(tables.ranks)) for name in ("n", "top1", "top5", "marginal")}

    def count(self, view: BatchView) -> None:
        coarser = [places(log_p, view.label[:, r]) < TOP_K for r, log_p in enumerate(view.log_probs[:-1])]
        finest = (view.decisions.likeliest[:, :TOP_K] == view.label[:, -1:]).any(1)
        numbers = ~view.best_log_p.isnan()
        among = torch.stack([*coarser, finest], 1) & numbers
        self.counts["n"] += view.known.sum(0)
        self.counts["top1"] += view.right.sum(0)
        self.counts["top5"] += (among & view.known).sum(0)
        self.counts["marginal"] += ((view.best == view.label) & view.known & numbers).sum(0)

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        shares = {name: ratio(counts[key], counts["n"]).tolist() for name, key in self.shown.items()}
        return {f"{rank}/{name}": share[r] for r, rank in enumerate(self.ranks) for name, share in shares.items()}


class Paths:
    """`chain`, `partial_chain`, and `inconsistent`: some predicted class is not the one on the path of the deepest. A rank at which that
    path has no class is not looked at: a head without null labels must say something there."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        self.counts = {name: zeros(device, 2) for name in ("chain", "partial_chain", "inconsistent")}  # hits, samples

    def count(self, view: BatchView) -> None:
        complete, labelled = view.known.all(1), view.known.any(1)
        agrees = (view.right | ~view.known).all(1)
        self.counts["chain"] += torch.stack([agrees & complete, complete]).sum(1)
        self.counts["partial_chain"] += torch.stack([agrees & labelled, labelled]).sum(1)
        scored = view.real & ~view.best_log_p.isnan().any(1)
        contradicts = ((view.predicted_path >= 0) & (view.path != view.predicted_path)).any(1)
        self.counts["inconsistent"] += torch.stack([contradicts & scored, scored]).sum(1)

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        return {name: ratio(*counts[name]).item() for name in ("chain", "partial_chain", "inconsistent")}


def places(values: Tensor, label: Tensor) -> Tensor:
    """int64 [B]: how many classes come before the label when sorted by falling value, then by index."""
    index = label.clamp(min=0).unsqueeze(1)
    own = values.gather(1, index)
    earlier = torch.arange(values.shape[1], device=values.device) < index
    return ((values > own) | ((values == own) & earlier)).sum(1)
