"""The marginal head: one softmax over the leaves; a taxon's probability is the sum over the leaves below it.

Leaves are laid out depth first, so those below a taxon are a range, and the loss of a label at any rank costs no more than the
softmax itself. Sums are taken in log space: a leaf that is 80 nats down still has its gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.heads.base import Head, Priors, Scores, init_classifiers, wide
from linnaeus.workloads.taxonomy.heads.layout import Layout
from linnaeus.workloads.taxonomy.ranges import argmax, range_logsumexp
from linnaeus.workloads.taxonomy.segments import group_logsumexp
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class MarginalScores(Scores):
    """`logits` [B, L] of the leaves of `Layout`, null nodes among them."""

    consistent = True

    def __init__(self, layout: Layout, logits: Tensor) -> None:
        self.layout, self.logits = layout, logits
        self._log_probs: tuple[Tensor, ...] | None = None

    def at(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        nodes = self.layout.nodes(label)
        known = nodes >= 0
        bounds = torch.where(known.unsqueeze(2), self.layout.leaves[nodes], 0)
        everything = torch.zeros_like(nodes[:, :1])
        first = torch.cat([everything, bounds[..., 0]], 1)
        last = torch.cat([everything + self.logits.shape[1], bounds[..., 1]], 1)
        found = range_logsumexp(wide(self.logits), first, last)
        marginal = torch.where(known, found[:, 1:] - found[:, :1], 0.0)
        # The nearest known coarser node has the largest number of those before; the top, column 0, where there is none.
        columns = torch.where(known, torch.arange(1, label.shape[1] + 1, device=label.device), 0).cummax(1).values
        above = torch.cat([torch.zeros_like(columns[:, :1]), columns[:, :-1]], 1)
        conditional = torch.where(known, found[:, 1:] - found.gather(1, above), 0.0)
        return list(marginal.unbind(1)), list(conditional.unbind(1))

    def log_probs(self) -> tuple[Tensor, ...]:
        if self._log_probs is None:
            leaves = F.log_softmax(wide(self.logits), 1)
            self._log_probs = self._up_the_tree(leaves) if self.layout.plain else self._of_each_rank(leaves)
        return self._log_probs

    def _up_the_tree(self, leaves: Tensor) -> tuple[Tensor, ...]:
        layout, ranks, found = self.layout, [leaves], leaves.t().contiguous()
        for level in range(layout.ranks - 1, 0, -1):
            found = group_logsumexp(found, layout.of("group", level), layout.group_counts[level])
            ranks.insert(0, found.t())
        return tuple(ranks)

    def _of_each_rank(self, leaves: Tensor) -> tuple[Tensor, ...]:
        """The leaves that have no class at a rank are its null label."""
        ranks, by_leaf = [], leaves.t().contiguous()
        for r, size in enumerate(self.layout.rank_sizes):
            found = group_logsumexp(by_leaf, self.layout.of("class", r), size + 1).t()
            ranks.append(found if self.layout.null else found[:, :size])
        return tuple(ranks)

    def path(self) -> Tensor:
        layout = self.layout
        z = self.logits
        if layout.null:
            z = z.masked_fill(layout.leaf_node >= layout.taxa, -torch.inf)
        return layout.path[layout.leaf_node[argmax(z)]]

    def adjusted(self, priors: Priors, strength: float) -> MarginalScores:
        taxa = torch.cat([prior[:size] for prior, size in zip(priors.ranks, self.layout.rank_sizes, strict=True)])
        prior = torch.cat([taxa, priors.null.index_select(0, self.layout.null_parent)])
        return MarginalScores(self.layout, wide(self.logits) + strength * prior[self.layout.leaf_node])


class MarginalHead(Head):
    """Reads the feature of the finest rank alone."""

    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False) -> None:
        super().__init__()
        self.layout = Layout(tree, null)
        self.leaves = nn.Linear(width, len(self.layout.leaf_node))

    def init_weights(self) -> None:
        init_classifiers([self.leaves])

    def forward(self, features: Tensor) -> MarginalScores:
        return MarginalScores(self.layout, self.leaves(features[:, -1]))
