"""One linear classifier per taxonomic rank. Ranks know nothing of each other, so predicted paths may contradict the tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.heads.base import Head, Priors, Scores, init_classifiers, wide
from linnaeus.workloads.taxonomy.ranges import argmax, range_logsumexp
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class LinearScores(Scores):
    """`logits`: per rank [B, C_r], or [B, C_r + 1] with the null label last. A softmax over the rank makes them probabilities."""

    consistent = False

    def __init__(self, logits: Sequence[Tensor], sizes: Sequence[int]) -> None:
        self.logits, self.sizes = tuple(logits), tuple(sizes)
        self._log_probs: tuple[Tensor, ...] | None = None

    def at(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Ranks are independent, so what is known of the coarser ones changes nothing: the conditional is the same."""
        marginal = [self._at_rank(z, own) for z, own in zip(self.logits, label.unbind(1), strict=True)]
        return marginal, marginal

    def _at_rank(self, z: Tensor, label: Tensor) -> Tensor:
        known, label = label >= 0, label.clamp(min=0)
        first = torch.stack([label, torch.zeros_like(label)], 1)
        last = torch.stack([label + 1, torch.full_like(label, z.shape[1])], 1)
        own, everything = range_logsumexp(wide(z), first, last).unbind(1)
        return torch.where(known, own - everything, 0.0)

    def log_probs(self) -> tuple[Tensor, ...]:
        if self._log_probs is None:
            self._log_probs = tuple(F.log_softmax(wide(z), 1) for z in self.logits)
        return self._log_probs

    def path(self) -> Tensor:
        """The best class of each rank for itself, the first of equals."""
        return torch.stack([argmax(z[:, :size]) for z, size in zip(self.logits, self.sizes, strict=True)], 1)

    def adjusted(self, priors: Priors, strength: float) -> LinearScores:
        moved = [wide(z) + strength * prior[: z.shape[1]] for z, prior in zip(self.logits, priors.ranks, strict=True)]
        return LinearScores(moved, self.sizes)


class LinearHead(Head):
    """See above; every rank reads its own feature."""

    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False) -> None:
        super().__init__()
        self.sizes = tree.sizes
        self.ranks = nn.ModuleList(nn.Linear(width, size + null) for size in tree.sizes)

    def init_weights(self) -> None:
        init_classifiers(self.ranks)

    def forward(self, features: Tensor) -> LinearScores:
        logits = [layer(feature) for layer, feature in zip(self.ranks, features.unbind(1), strict=True)]
        return LinearScores(logits, self.sizes)


def linear_scores(tree: TaxonomyTree, logits: Sequence[Tensor]) -> LinearScores:
    """Scores of given logits, per rank [B, C_r] or [B, C_r + 1]."""
    return LinearScores(logits, tree.sizes)
