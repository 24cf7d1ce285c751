"""Conditional heads: a softmax among siblings for every taxon, multiplied down the tree.

p(taxon) = p(taxon | parent) p(parent), so the probabilities are one distribution on the tree whatever the raw scores are. The loss of a
label needs the scores of its siblings and of its ancestors' siblings only (`at`); all probabilities (`log_probs`) are for validation,
and for smoothed targets above the finest rank. Nodes come first, [n, B]; see `segments.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.heads.base import Head, Priors, Scores, init_classifiers, wide
from linnaeus.workloads.taxonomy.heads.layout import Layout
from linnaeus.workloads.taxonomy.ranges import argmax, range_logsumexp, range_sum
from linnaeus.workloads.taxonomy.segments import sibling_log_softmax
from linnaeus.workloads.taxonomy.softmax_sums import softmax_range_sums
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class SiblingScores(Scores):
    """`logits`: per level [n_l, B], in the places of `Layout`; a softmax over siblings makes them conditional probabilities.

    `greedy`: predict by `quick_path`, going down from the top, the best child at a time, which needs few of the scores; else the path to
    the most probable leaf."""

    consistent = True

    def __init__(self, layout: Layout, logits: list[Tensor], greedy: bool = False) -> None:
        self.layout, self.logits, self.greedy = layout, logits, greedy
        self._levels: list[Tensor] = []
        self._log_probs: tuple[Tensor, ...] | None = None

    # -- of labels -------------------------------------------------------------------------------------------------------

    def at(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        nodes = self.layout.nodes(label)
        conditional = self._conditionals(nodes)
        marginal, above = [], torch.zeros((), device=label.device)
        for node, own in zip(nodes.unbind(1), conditional, strict=True):
            marginal.append(torch.where(node >= 0, above + own, 0.0))
            above = above + (torch.where(node < self.layout.taxa, own, 0.0) if self.layout.null else own)  # a null node has none below
        if self.layout.null:
            before = nodes.cummax(1).values[:, :-1]
            repeated = (nodes[:, 1:] >= self.layout.taxa) & (nodes[:, 1:] == before)  # implied by a null label above
            finer = [own.masked_fill(again, 0.0) for own, again in zip(conditional[1:], repeated.unbind(1), strict=True)]
            conditional = [conditional[0], *finer]
        return marginal, conditional

    def _conditionals(self, nodes: Tensor) -> list[Tensor]:
        """Per rank log p(node | parent) [B] of nodes [B, R], 0 where there is none."""
        layout = self.layout
        level = torch.where(nodes >= 0, layout.level[nodes], -1)
        own, siblings = layout.place[nodes], layout.siblings[nodes]
        total: list[Tensor] = [torch.zeros((), device=nodes.device)] * layout.ranks
        for number, z in enumerate(self.logits):
            if not len(z):
                continue
            columns = slice(number, number + 1) if layout.plain else slice(number, None)  # a level holds finer ranks below holes
            here = level[:, columns] == number
            place, group = own[:, columns], siblings[:, columns]
            first = torch.where(here, torch.stack([place, group[..., 0]]), 0)
            last = torch.where(here, torch.stack([place + 1, group[..., 1]]), 1)
            longest = layout.widths[number] + layout.null
            score, normaliser = range_logsumexp(wide(z).t(), torch.cat(list(first), 1), torch.cat(list(last), 1), longest).chunk(2, 1)
            for r, part in enumerate(torch.where(here, score - normaliser, 0.0).unbind(1), start=number):
                total[r] = total[r] + part
        return total

    # -- of all taxa -----------------------------------------------------------------------------------------------------

    def _level_log_probs(self, number: int) -> Tensor:
        """[n_l, B]: log-probability of every node of a level; computed once, top down."""
        layout = self.layout
        while len(self._levels) <= number:
            level = len(self._levels)
            z, group = wide(self.logits[level]), layout.of("group", level)
            self._levels.append(sibling_log_softmax(z, self._above(level), group, layout.group_counts[level]))
        return self._levels[number]

    def _above(self, level: int) -> Tensor | None:
        """[G_l, B]: log-probability of the parent of each group of a level; None for the top."""
        return self.rank_log_probs(level - 1).index_select(0, self.layout.of("above", level)) if level else None

    def rank_log_probs(self, rank: int) -> Tensor:
        """[C_r, B]: log-probability of the classes of a rank."""
        found = self._level_log_probs(rank)
        return found if self.layout.plain else torch.cat(self._levels[: rank + 1]).index_select(0, self.layout.of("where", rank))

    def log_probs(self) -> tuple[Tensor, ...]:
        if self._log_probs is None:
            ranks = [self.rank_log_probs(r) for r in range(self.layout.ranks)]
            if self.layout.null:
                everything = torch.cat(self._levels)
                null = [everything.index_select(0, self.layout.of("without", r)).logsumexp(0, keepdim=True) for r in range(len(ranks))]
                ranks = [torch.cat(pair) for pair in zip(ranks, null, strict=True)]
            self._log_probs = tuple(found.t() for found in ranks)
        return self._log_probs

    def range_sums(self, rank: int, first: Tensor, last: Tensor) -> Tensor:
        """Those of the finest rank, by far the largest, without its log-probabilities."""
        layout = self.layout
        if not layout.plain:
            return super().range_sums(rank, first, last)
        if rank < layout.ranks - 1 or len(self._levels) > rank:
            return range_sum(self._level_log_probs(rank).t(), first, last)
        tables = layout.of("group", rank), layout.of("starts", rank)
        return softmax_range_sums(wide(self.logits[rank]), self._above(rank), *tables, first, last)

    # -- predictions -----------------------------------------------------------------------------------------------------

    def path(self) -> Tensor:
        return self.quick_path() if self.greedy else self._best_path()

    def _best_path(self) -> Tensor:
        layout = self.layout
        if layout.plain:
            return layout.path[layout.offsets[-1] + argmax(self.log_probs()[-1].contiguous())]
        self._level_log_probs(layout.ranks - 1)
        best = argmax(torch.cat(self._levels).index_select(0, layout.taxon_leaf_places).t().contiguous())
        return layout.path[layout.node_at[layout.taxon_leaf_places[best]]]

    def quick_path(self) -> Tensor:
        """At each level the best child, among the places of the widest family there, of where the path has come to."""
        layout = self.layout
        node = torch.full_like(self.logits[0][0], -1, dtype=torch.int64)
        for number, z in enumerate(self.logits):
            if not layout.widths[number]:
                continue
            first, last = layout.family[node].unbind(1)
            place = first + torch.arange(layout.widths[number], device=z.device).unsqueeze(1)
            found = z.gather(0, place.clamp(max=len(z) - 1))
            best = found.masked_fill(place >= last, -torch.inf).argmax(0)
            child = layout.node_at[layout.bounds[number] + (first + best).clamp(max=len(z) - 1)]
            here = (layout.next_level[node] == number) & (last > first)
            node = torch.where(here, child, node)
        return layout.path[node]

    def adjusted(self, priors: Priors, strength: float) -> SiblingScores:
        """Siblings share what is above them, so adding log p(taxon) adds log p(taxon | parent)."""
        taxa = torch.cat([prior[:size] for prior, size in zip(priors.ranks, self.layout.rank_sizes, strict=True)])
        prior = torch.cat([taxa, priors.null.index_select(0, self.layout.null_parent)]).index_select(0, self.layout.node_at)
        parts = prior.mul(strength).split([len(z) for z in self.logits])
        return SiblingScores(self.layout, [wide(z) + part.unsqueeze(1) for z, part in zip(self.logits, parts, strict=True)], self.greedy)


class NodeLinear(nn.Linear):
    """[n, B] of features [B, D]: the transpose of what `nn.Linear` returns, forward and backward in 0.85 of its time on a CPU."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias.unsqueeze(1), self.weight, features.contiguous().t())


class ConditionalHead(Head):
    """Every level reads the feature of its own rank. A level without nodes has no layer: parameters that no loss reaches are an error
    under DDP."""

    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False) -> None:
        super().__init__()
        self.layout = Layout(tree, null)
        self.levels = nn.ModuleDict({str(n): NodeLinear(width, size) for n, size in enumerate(self.layout.level_sizes) if size})

    def init_weights(self) -> None:
        init_classifiers(self.levels.values())

    def forward(self, features: Tensor) -> SiblingScores:
        return SiblingScores(self.layout, [self._raw(n, feature) for n, feature in enumerate(features.unbind(1))])

    def _raw(self, level: int, feature: Tensor) -> Tensor:
        """[n_l, B] raw scores of a level."""
        return self.levels[str(level)](feature) if self.layout.level_sizes[level] else feature.new_empty(0, len(feature))
