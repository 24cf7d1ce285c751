"""One linear classifier per taxonomic rank. Ranks know nothing of each other, so predicted paths may contradict the tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.heads.base import INIT_STD, Head, Priors, Scores, wide
from linnaeus.workloads.taxonomy.ranges import argmax, range_logsumexp
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class SiblingRanges(nn.Module):
    """`rank<r>`, int64 [C_r + 1, 2]: where the classes with the same parent as a class begin and end, in the numbering of the rank.
    The last row, of the null label, is the whole rank."""

    def __init__(self, tree: TaxonomyTree, null: bool) -> None:
        super().__init__()
        for r, anchor in enumerate(tree.anchor):
            begins = np.flatnonzero(np.diff(anchor, prepend=-2))
            ends = np.append(begins[1:], len(anchor))
            group = np.repeat(np.arange(len(begins)), ends - begins)
            table = np.stack([begins[group], ends[group]], 1)
            table = np.concatenate([table, [[0, len(anchor) + null]]])
            self.register_buffer(f"rank{r}", torch.from_numpy(table), persistent=False)

    def of(self, rank: int, label: Tensor) -> Tensor:
        """[B, 2] for labels int64 [B]."""
        return self.get_buffer(f"rank{rank}")[label]


class LinearScores(Scores):
    """`logits`: per rank [B, C_r], or [B, C_r + 1] with the null label last. A softmax over the rank makes them probabilities."""

    consistent = False

    def __init__(self, logits: Sequence[Tensor], sizes: Sequence[int], siblings: SiblingRanges) -> None:
        self.logits, self.sizes, self.siblings = tuple(logits), tuple(sizes), siblings
        self._log_probs: tuple[Tensor, ...] | None = None

    def at(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The conditional is taken within the rank: the softmax over the classes that share the label's parent."""
        found = [self._at_rank(r, label[:, r]) for r in range(len(self.logits))]
        return [marginal for marginal, _ in found], [conditional for _, conditional in found]

    def _at_rank(self, rank: int, label: Tensor) -> tuple[Tensor, Tensor]:
        z, known, label = self.logits[rank], label >= 0, label.clamp(min=0)
        begin, end = self.siblings.of(rank, label).unbind(1)
        first = torch.stack([label, torch.zeros_like(label), begin], 1)
        last = torch.stack([label + 1, torch.full_like(label, z.shape[1]), end], 1)
        own, everything, siblings = range_logsumexp(wide(z), first, last).unbind(1)
        return torch.where(known, own - everything, 0.0), torch.where(known, own - siblings, 0.0)

    def log_probs(self) -> tuple[Tensor, ...]:
        if self._log_probs is None:
            self._log_probs = tuple(F.log_softmax(wide(z), 1) for z in self.logits)
        return self._log_probs

    def path(self) -> Tensor:
        """The best class of each rank for itself, the first of equals."""
        return torch.stack([argmax(z[:, :size]) for z, size in zip(self.logits, self.sizes, strict=True)], 1)

    def adjusted(self, priors: Priors, strength: float) -> LinearScores:
        moved = [wide(z) + strength * prior[: z.shape[1]] for z, prior in zip(self.logits, priors.ranks, strict=True)]
        return LinearScores(moved, self.sizes, self.siblings)


class LinearHead(Head):
    """See above; every rank reads its own feature."""

    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False) -> None:
        super().__init__()
        self.sizes = tree.sizes
        self.ranks = nn.ModuleList(nn.Linear(width, size + null) for size in tree.sizes)
        self.siblings = SiblingRanges(tree, null)

    def init_weights(self) -> None:
        for layer in self.ranks:
            assert isinstance(layer, nn.Linear)
            nn.init.trunc_normal_(layer.weight, std=INIT_STD)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> LinearScores:
        logits = [layer(feature) for layer, feature in zip(self.ranks, features.unbind(1), strict=True)]
        return LinearScores(logits, self.sizes, self.siblings)


def linear_scores(tree: TaxonomyTree, logits: Sequence[Tensor]) -> LinearScores:
    """Scores of given logits, per rank [B, C_r] or [B, C_r + 1]."""
    null = logits[0].shape[1] > tree.sizes[0]
    return LinearScores(logits, tree.sizes, SiblingRanges(tree, null).to(logits[0].device))
