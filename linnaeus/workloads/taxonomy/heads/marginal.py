"""Define the marginal head: one softmax over all leaves; the probability of a taxon is the sum over the leaves below it.

Leaves are numbered depth first, so the leaves below a taxon are a range, and the loss of a label at any rank costs no more than the softmax
itself. Sums are taken in log space: a leaf with a log-probability of -80 still gets its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.heads.conditional import SiblingScores, from_leaves
from linnaeus.workloads.taxonomy.heads.decision import best_path
from linnaeus.workloads.taxonomy.heads.head import IMPOSSIBLE, Head, Priors, Scores, at_least_float32, group_mean, log_mean
from linnaeus.workloads.taxonomy.heads.layout import Layout
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.taxonomy.tree.ranges import argmax, log_softmax, range_logsumexp
from linnaeus.workloads.taxonomy.tree.sibling_softmax import group_logsumexp


class MarginalScores(Scores):
    """Scores with one softmax over all leaves. `logits`: [B, L], in the order of `Layout.leaf_node`. The leaves include null nodes."""

    consistent = True

    def __init__(self, layout: Layout, logits: Tensor) -> None:
        self.layout, self.logits = layout, logits
        self._log_probs: tuple[Tensor, ...] | None = None
        self._by_siblings: SiblingScores | None = None

    def label_log_probs(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        z = at_least_float32(self.logits)
        return log_probs_of_nodes(self.layout, label, lambda first, last: range_logsumexp(z, first, last))

    def log_probs(self) -> tuple[Tensor, ...]:
        if self._log_probs is None:
            leaves = log_softmax(at_least_float32(self.logits))
            self._log_probs = self._by_level(leaves) if self.layout.regular else self._by_rank(leaves)
        return self._log_probs

    def _by_level(self, leaves: Tensor) -> tuple[Tensor, ...]:
        """Return the log-probabilities of the classes of each rank, per rank [B, C_r], for a regular layout (see `layout.py`).

        `leaves`: log-probabilities of the leaves, [B, L]. A level is computed from the next finer level, by the log-sum-exp over each group
        of siblings."""
        layout, ranks, found = self.layout, [leaves], leaves.t().contiguous()
        for level in range(layout.ranks - 1, 0, -1):
            found = group_logsumexp(found, layout.table("group", level), layout.group_counts[level])
            ranks.insert(0, found.t())
        return tuple(ranks)

    def _by_rank(self, leaves: Tensor) -> tuple[Tensor, ...]:
        """Return the log-probabilities of the classes of each rank, for a regular or an irregular layout (see `layout.py`).

        `leaves`: log-probabilities of the leaves, [B, L]. The result of a class is the log-sum-exp over the leaves at or below the class.
        The result of a rank is [B, C_r] for a layout without null nodes; leaves without a class at this rank are left out. With null nodes
        the result is [B, C_r + 1]: the last column is the null class, the log-sum-exp over the leaves without a class at this rank."""
        ranks, by_leaf = [], leaves.t().contiguous()
        for r, size in enumerate(self.layout.tree.sizes):
            found = group_logsumexp(by_leaf, self.layout.table("class", r), size + 1).t()
            ranks.append(found if self.layout.null else found[:, :size])
        return tuple(ranks)

    def path(self) -> Tensor:
        return best_path(self.layout, self.log_probs())

    def greedy_path(self) -> Tensor:
        """Return the path to the most probable leaf, int64 [B, R]. This needs no sums over the tree."""
        layout = self.layout
        z = self.logits
        if layout.null:
            z = z.masked_fill(layout.leaf_node >= layout.taxa, -torch.inf)
        return layout.path[layout.leaf_node[argmax(z)]]

    def adjusted(self, priors: Priors, strength: float) -> MarginalScores:
        prior = self.layout.node_priors(priors)[self.layout.leaf_node]
        return MarginalScores(self.layout, at_least_float32(self.logits) + strength * prior)

    def mean(self, others: Sequence[Self]) -> MarginalScores:
        return MarginalScores(self.layout, log_mean([log_softmax(at_least_float32(view.logits)) for view in (self, *others)]))

    def product(self, others: Sequence[Self], group: Tensor, count: int, weight: Tensor | None = None) -> MarginalScores:
        logits = log_softmax(at_least_float32(torch.cat([batch.logits for batch in (self, *others)])))
        return MarginalScores(self.layout, group_mean(logits, group, count, weight))

    def raised(self, exponent: Tensor) -> MarginalScores:
        return MarginalScores(self.layout, at_least_float32(self.logits) * exponent.unsqueeze(1))

    def among(self, possible: Tensor) -> MarginalScores:
        impossible = ~self.layout.possible_nodes(possible)[self.layout.leaf_node]
        return MarginalScores(self.layout, at_least_float32(self.logits).masked_fill(impossible, IMPOSSIBLE))

    def weighted(self, log_weights: Tensor) -> MarginalScores:
        weights = self.layout.node_weights(log_weights).index_select(1, self.layout.leaf_node)
        return MarginalScores(self.layout, at_least_float32(self.logits) + weights)

    def tempered(self, temperature: Sequence[float]) -> SiblingScores:
        return self._siblings().tempered(temperature)

    def choices(self, rank: int, label: Tensor) -> tuple[Tensor, Tensor]:
        return self._siblings().choices(rank, label)

    def _siblings(self) -> SiblingScores:
        """Return scores with equal probabilities and a softmax among siblings. Later calls return the same object."""
        if self._by_siblings is None:
            leaves = log_softmax(at_least_float32(self.logits)).t()
            found = leaves.new_zeros(sum(self.layout.level_sizes), leaves.shape[1])
            found[self.layout.index_of(self.layout.leaf_node)] = leaves
            self._by_siblings = from_leaves(self.layout, found)
        return self._by_siblings


def log_probs_of_nodes(layout: Layout, label: Tensor, logsumexp: Callable[[Tensor, Tensor], Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the result of `Scores.label_log_probs` for one softmax over all leaves.

    `logsumexp(first, last)`: the log-sum-exps of the logits over ranges of leaves, [B, K] from int64 [B, K]. The range of a missing label
    is empty, and the result for it is not used."""
    nodes = layout.nodes(label)
    known = nodes >= 0
    bounds = torch.where(known.unsqueeze(2), layout.leaves[nodes], 0)
    zero = torch.zeros_like(nodes[:, :1])
    first = torch.cat([zero, bounds[..., 0]], 1)
    last = torch.cat([zero + len(layout.leaf_node), bounds[..., 1]], 1)
    found = logsumexp(first, last)  # column 0: all leaves
    marginal = torch.where(known, found[:, 1:] - found[:, :1], 0.0)
    # Column of the nearest known coarser label, by a running maximum; 0, all leaves, if no coarser label is known.
    columns = torch.where(known, torch.arange(1, label.shape[1] + 1, device=label.device), 0).cummax(1).values
    above = torch.cat([torch.zeros_like(columns[:, :1]), columns[:, :-1]], 1)
    conditional = torch.where(known, found[:, 1:] - found.gather(1, above), 0.0)
    return list(marginal.unbind(1)), list(conditional.unbind(1))


class MarginalHead(Head):
    """Head with one linear classifier over the leaves. It reads the feature of the finest rank."""

    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False, sharded: bool = False) -> None:
        """`sharded`: True if training on several processes replaces this head by a `ShardedMarginalHead`."""
        super().__init__()
        self.layout, self.sharded = Layout(tree, null), sharded
        self.leaves = nn.Linear(width, len(self.layout.leaf_node))

    def forward(self, features: Tensor) -> MarginalScores:
        return MarginalScores(self.layout, self.leaves(features[:, -1]))
