"""Streaming metrics of the taxonomy workload: exact, linear in the classes, the same in any order and over any processes.

Float sums ([loss sums, valid weights] per rank) go back to the caller, who adds them in batch order; everything else is an
integer count on the device. Definitions, over real samples (weight > 0):

    <rank>/loss        mean cross-entropy over the valid labels
    loss               mean of <rank>/loss over the ranks that have any: every task counts the same, whatever its training weight
    <rank>/top1, top5  share of labelled samples whose label is first, or among the min(5, C) first; ties go to the lower index
    <rank>/macro_top1  mean over the classes that occur of the share of their samples that is right
    chain              share right at every rank, of the samples labelled at every rank
    partial_chain      share right at all the ranks they are labelled at, of the samples labelled at any
    inconsistent       share of predictions that are no path of the tree: the nearest known ancestor of some predicted class
                       is not the class predicted at that ancestor's rank

A metric without a single sample is NaN. Validation losses are plain cross-entropy, whatever smoothing training uses.
`TrainingMetrics` are few, for they are counted at each step: the training loss, and top-1 against the dominant label of a
mixed sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.workloads.base import Batch
from linnaeus.workloads.taxonomy.losses import cross_entropy, rank_loss_sums, valid_counts
from linnaeus.workloads.taxonomy.preparation import masking_counts
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

TOP_K = 5


class TrainingMetrics:
    """`loss`, `<rank>/loss` and `<rank>/top1` of training batches, and `masked/<COMPONENT>`, the realised share of the known
    metadata that was hidden. Implements `base.Metrics`."""

    def __init__(self, tree: TaxonomyTree, device: torch.device, components: Sequence[str] = ()) -> None:
        self.tree, self.components = tree, tuple(components)
        self.width = 2 * len(tree.ranks)
        self.counts: dict[str, Tensor] = {name: _zeros(device, len(tree.ranks)) for name in ("top1", "n")}
        self._sizes = torch.tensor(tree.sizes, device=device)
        if self.components:
            self.counts["components"] = _zeros(device, 2, len(self.components))  # known, and still shown

    def sums(self, outputs: Any, batch: Batch) -> Tensor:
        """float64 [2R]: loss sums, then valid weights; the losses are those `loss_sums` has just computed."""
        return torch.cat([outputs["loss_sums"].double(), valid_counts(batch)])

    def count(self, outputs: Any, batch: Batch) -> None:
        label, known = self._labels(batch)
        self._count_top1((_predictions(self._scores(outputs)) == label) & known, known)
        if self.components:
            self.counts["components"] += masking_counts(batch)

    def _scores(self, outputs: Any) -> list[Tensor]:
        """[B, C_r] per rank, without the null class of a head that has one."""
        return [z[:, :size] for z, size in zip(outputs["logits"], self.tree.sizes, strict=True)]

    def _labels(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Labels int64 [B, R], of a mixed sample those with the larger share, and where they are known and the sample real."""
        label = batch["label"]
        if "label2" in batch:
            label = torch.where((batch["share"] >= 0.5).unsqueeze(1), label, batch["label2"])
        return label, (label >= 0) & (label < self._sizes) & (batch["weight"] > 0).unsqueeze(1)

    def _count_top1(self, right: Tensor, known: Tensor) -> None:
        self.counts["top1"] += right.sum(0)
        self.counts["n"] += known.sum(0)

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        losses = _ratio(*sums.double().view(2, -1))
        results = {"loss": losses.nanmean().item()}
        for r, rank in enumerate(self.tree.ranks):
            results[f"{rank}/loss"] = losses[r].item()
            results[f"{rank}/top1"] = _ratio(counts["top1"][r], counts["n"][r]).item()
        if self.components:
            hidden = 1 - _ratio(counts["components"][1], counts["components"][0])
            results |= {f"masked/{name}": hidden[m].item() for m, name in enumerate(self.components)}
        return results


class TaxonomyMetrics(TrainingMetrics):
    """All of the above, for validation. Its largest counts are two integers per class."""

    def __init__(self, tree: TaxonomyTree, device: torch.device) -> None:
        super().__init__(tree, device)
        self._offsets = torch.as_tensor(tree.offsets[:-1], device=device)
        self._ancestor = torch.as_tensor(tree.node_parent, device=device)
        self.counts["top5"] = _zeros(device, len(tree.ranks))
        self.counts |= {name: _zeros(device, 2) for name in ("chain", "partial_chain", "inconsistent")}  # hits, samples
        self.counts |= {f"{rank}/classes": _zeros(device, 2, size) for rank, size in zip(tree.ranks, tree.sizes, strict=True)}

    def sums(self, outputs: Any, batch: Batch) -> Tensor:
        """float64 [2R]: sums of plain cross-entropy, then valid weights."""
        return torch.cat([rank_loss_sums(self._scores(outputs), batch, cross_entropy, 0.0).double(), valid_counts(batch)])

    def count(self, outputs: Any, batch: Batch) -> None:
        (label, known), scores = self._labels(batch), self._scores(outputs)
        predicted = _predictions(scores)
        right = (predicted == label) & known
        self._count_top1(right, known)
        self._count_top5(scores, label, known)
        self._count_classes(right, label, known)
        self._count_chains(right, known)
        self._count_paths(predicted, batch["weight"] > 0)

    def _count_top5(self, logits: Sequence[Tensor], label: Tensor, known: Tensor) -> None:
        among = torch.stack([_places(z, label[:, r]) < TOP_K for r, z in enumerate(logits)], 1)
        self.counts["top5"] += (among & known).sum(0)

    def _count_classes(self, right: Tensor, label: Tensor, known: Tensor) -> None:
        """A null adds 0 to class 0; `bincount` would wait for the device."""
        for r, rank in enumerate(self.tree.ranks):
            votes = torch.stack([right[:, r], known[:, r]]).long()
            self.counts[f"{rank}/classes"].index_add_(1, label[:, r].clamp(min=0), votes)

    def _count_chains(self, right: Tensor, known: Tensor) -> None:
        complete, labelled = known.all(1), known.any(1)
        agrees = (right | ~known).all(1)
        self.counts["chain"] += torch.stack([agrees & complete, complete]).sum(1)
        self.counts["partial_chain"] += torch.stack([agrees & labelled, labelled]).sum(1)

    def _count_paths(self, predicted: Tensor, real: Tensor) -> None:
        nodes = predicted + self._offsets
        ancestor = self._ancestor[nodes]
        agrees = (ancestor.unsqueeze(2) == nodes.unsqueeze(1)).any(2) | (ancestor < 0)
        self.counts["inconsistent"] += torch.stack([~agrees.all(1) & real, real]).sum(1)

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        results = super().compute(sums, counts)
        for r, rank in enumerate(self.tree.ranks):
            results[f"{rank}/top5"] = _ratio(counts["top5"][r], counts["n"][r]).item()
            results[f"{rank}/macro_top1"] = _ratio(*counts[f"{rank}/classes"]).nanmean().item()
        for name in ("chain", "partial_chain", "inconsistent"):
            results[name] = _ratio(*counts[name]).item()
        return results


def _zeros(device: torch.device, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=device)


def _ratio(hits: Tensor, total: Tensor) -> Tensor:
    """float64, NaN where the total is 0."""
    return hits.double() / torch.where(total > 0, total.double(), torch.nan)


def _predictions(scores: Sequence[Tensor]) -> Tensor:
    """int64 [B, R]: the first class with the largest score."""
    return torch.stack([z.argmax(1) for z in scores], 1)


def _places(logits: Tensor, label: Tensor) -> Tensor:
    """int64 [B]: how many classes come before the label when sorted by falling score, then by index. `topk` leaves ties to
    the device; counting also puts a NaN score before everything."""
    index = label.clamp(min=0).unsqueeze(1)
    own = logits.gather(1, index)
    earlier = torch.arange(logits.shape[1], device=logits.device) < index
    return (~(logits <= own) | ((logits == own) & earlier)).sum(1)
