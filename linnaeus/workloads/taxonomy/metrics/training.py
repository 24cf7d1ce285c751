"""Metrics of training batches. Few and cheap, for they are counted at each step: of the scores nothing is asked but a path that few of
them lead to, also where validation predicts by all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import Metrics
from linnaeus.workloads.taxonomy.losses import rank_loss_sums, valid_counts
from linnaeus.workloads.taxonomy.metrics.batch_view import labels_of
from linnaeus.workloads.taxonomy.metrics.counting import ratio, zeros
from linnaeus.workloads.taxonomy.preparation import masking_counts
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class TrainingMetrics(Metrics):
    """`loss`, `<rank>/loss` and `<rank>/top1` (of a mixed sample against the label with the larger share), and `masked/<COMPONENT>`, the
    realised share of the known metadata that was hidden. Implements `base.Metrics`."""

    def __init__(self, tree: TaxonomyTree, device: torch.device, components: Sequence[str] = ()) -> None:
        self.ranks, self.components = tree.ranks, tuple(components)
        self.width = 2 * len(tree.ranks)
        self.counts: dict[str, Tensor] = {name: zeros(device, len(tree.ranks)) for name in ("top1", "n")}
        self._size = torch.tensor(tree.sizes, device=device)
        if self.components:
            self.counts["components"] = zeros(device, 2, len(self.components))  # known, and still shown

    def sums(self, outputs: Any, batch: Batch) -> Tensor:
        """float64 [2R]: plain cross-entropy summed, and the labels. In training the loop adds up its own losses instead."""
        return loss_and_labels(outputs, batch)

    def count(self, outputs: Any, batch: Batch) -> None:
        label, known = labels_of(batch, self._size)
        self.counts["top1"] += ((outputs["scores"].quick_path() == label) & known).sum(0)
        self.counts["n"] += known.sum(0)
        if self.components:
            self.counts["components"] += masking_counts(batch)

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        results = losses(self.ranks, sums)
        results |= {f"{rank}/top1": v for rank, v in zip(self.ranks, ratio(counts["top1"], counts["n"]).tolist(), strict=True)}
        if self.components:
            hidden = 1 - ratio(counts["components"][1], counts["components"][0])
            results |= {f"masked/{name}": v for name, v in zip(self.components, hidden.tolist(), strict=True)}
        return results


def loss_and_labels(outputs: Any, batch: Batch) -> Tensor:
    """float64 [2R]: sums of plain cross-entropy, whatever training uses, and the weight of the labels."""
    return torch.cat([rank_loss_sums(outputs["scores"], batch).double(), valid_counts(batch)])


def losses(ranks: Sequence[str], sums: Tensor) -> dict[str, float]:
    """`<rank>/loss`, and `loss`, their mean over the ranks that have labels: every task counts the same, whatever its training weight."""
    means = ratio(*sums.double().cpu().view(2, -1))
    return {"loss": means.nanmean().item()} | {f"{rank}/loss": v for rank, v in zip(ranks, means.tolist(), strict=True)}
