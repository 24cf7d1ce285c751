"""Conditional heads: a softmax among siblings for every taxon, multiplied down the tree.

p(taxon) = p(taxon | parent) p(parent), so the probabilities are one distribution on the tree for any raw scores. The loss of a label needs
only the scores of its siblings and of its ancestors' siblings (`label_log_probs`). All probabilities (`log_probs`) are computed for
validation, and for smoothed targets above the finest rank. Tensors of nodes are [n, B]: dimension 0 is the node, dimension 1 the sample;
see `sibling_softmax.py`. Levels and nodes are defined in `layout.py`. `routing.py` has a head that adds routing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.heads.decision import best_path
from linnaeus.workloads.taxonomy.heads.head import IMPOSSIBLE, Head, Priors, Scores, at_least_float32, group_mean, log_mean
from linnaeus.workloads.taxonomy.heads.layout import Layout
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.taxonomy.tree.ranges import range_logsumexp, range_sum
from linnaeus.workloads.taxonomy.tree.sibling_softmax import group_logsumexp, sibling_log_softmax, sibling_log_softmax_range_sums


class SiblingScores(Scores):
    """Scores with a softmax among siblings. `logits`: one tensor [n_l, B] per level l, in the order of the positions of `Layout`.

    `greedy`: True: predict by `greedy_path`, which needs few of the scores; False: predict by `best_path`."""

    consistent = True

    def __init__(self, layout: Layout, logits: list[Tensor], greedy: bool = False) -> None:
        self.layout, self.logits, self.greedy = layout, logits, greedy
        self._levels: list[Tensor] = []
        self._log_probs: tuple[Tensor, ...] | None = None

    # -- labels ----------------------------------------------------------------------------------------------------------

    def label_log_probs(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        nodes = self.layout.nodes(label)
        given, complete = nodes >= 0, self._with_ancestors(nodes)
        marginal, conditional = [], []
        above = since = torch.zeros((), device=label.device)  # sums over all coarser ranks, and over those since the last label
        for node, known, own in zip(complete.unbind(1), given.unbind(1), self._conditional_log_probs(complete), strict=True):
            marginal.append(torch.where(known, above + own, 0.0))
            conditional.append(torch.where(known, since + own, 0.0))
            own = torch.where(node < self.layout.taxa, own, 0.0) if self.layout.null else own  # null nodes have no children
            above, since = above + own, torch.where(known, 0.0, since + own)
        if self.layout.null:
            before = nodes.cummax(1).values[:, :-1]
            repeated = (nodes[:, 1:] >= self.layout.taxa) & (nodes[:, 1:] == before)  # implied by a null label above
            finer = [own.masked_fill(again, 0.0) for own, again in zip(conditional[1:], repeated.unbind(1), strict=True)]
            conditional = [conditional[0], *finer]
        return marginal, conditional

    def _with_ancestors(self, nodes: Tensor) -> Tensor:
        """Return a copy of `nodes` in which missing labels of ranks coarser than the finest known taxon are replaced by its ancestors.
        `nodes`: int64 [B, R], -1 for no label."""
        layout = self.layout
        finest = torch.where(nodes < layout.taxa, nodes, -1).amax(1)  # finer taxa have larger numbers
        path = layout.path[finest]
        return torch.maximum(nodes, torch.where(path >= 0, path + layout.offsets, -1))

    def _conditional_log_probs(self, nodes: Tensor) -> list[Tensor]:
        """Return log p(node | parent) of `nodes` int64 [B, R], as a list of [B] per rank; 0 for node -1."""
        layout = self.layout
        level = torch.where(nodes >= 0, layout.level[nodes], -1)
        own, siblings = layout.position[nodes], layout.siblings[nodes]
        present: list[Tensor] = []
        ranges: list[tuple[int, Tensor, Tensor]] = []  # `list[...]()` would break the compiled loss into several graphs
        for number in range(len(self.logits)):
            if not layout.level_sizes[number]:
                continue
            columns = slice(number, number + 1) if layout.regular else slice(number, None)  # a level holds finer ranks below holes
            at_level = level[:, columns] == number
            position, group = own[:, columns], siblings[:, columns]
            first = torch.where(at_level, torch.stack([position, group[..., 0]]), 0)
            last = torch.where(at_level, torch.stack([position + 1, group[..., 1]]), 1)
            present.append(at_level)
            ranges.append((number, torch.cat(list(first), 1), torch.cat(list(last), 1)))
        total: list[Tensor] = [torch.zeros((), device=nodes.device)] * layout.ranks
        for at_level, (number, _, _), found in zip(present, ranges, self._range_logsumexps(ranges), strict=True):
            score, normaliser = found.chunk(2, 1)
            for r, part in enumerate(torch.where(at_level, score - normaliser, 0.0).unbind(1), start=number):
                total[r] = total[r] + part
        return total

    def _range_logsumexps(self, ranges: Sequence[tuple[int, Tensor, Tensor]]) -> list[Tensor]:
        """Return the log-sum-exps of the raw scores over ranges of positions within groups of siblings, [B, K] for each of `ranges`.

        `ranges`: (level, first position, last position + 1), int64 [B, K] each."""
        found = []
        for number, first, last in ranges:
            longest = self.layout.widths[number] + self.layout.null
            found.append(range_logsumexp(at_least_float32(self.logits[number]).t(), first, last, longest))
        return found

    # -- all taxa --------------------------------------------------------------------------------------------------------

    def _level_log_probs(self, number: int) -> Tensor:
        """Return the log-probability of every node of level `number`, [n_l, B]. Levels are computed from the top down, each level once."""
        layout = self.layout
        while len(self._levels) <= number:
            level = len(self._levels)
            z, group = at_least_float32(self.logits[level]), layout.table("group", level)
            self._levels.append(sibling_log_softmax(z, self._parent_log_probs(level), group, layout.group_counts[level]))
        return self._levels[number]

    def _parent_log_probs(self, level: int) -> Tensor | None:
        """Return the log-probability of the parent of each group of a level, [G_l, B]; None for the top level."""
        return self.rank_log_probs(level - 1).index_select(0, self.layout.table("parent", level)) if level else None

    def rank_log_probs(self, rank: int) -> Tensor:
        """Return the log-probability of each class of a rank, [C_r, B]."""
        found = self._level_log_probs(rank)
        return found if self.layout.regular else torch.cat(self._levels[: rank + 1]).index_select(0, self.layout.table("index", rank))

    def log_probs(self) -> tuple[Tensor, ...]:
        if self._log_probs is None:
            ranks = [self.rank_log_probs(r) for r in range(self.layout.ranks)]
            if self.layout.null:
                nodes = torch.cat(self._levels)
                null = [nodes.index_select(0, self.layout.table("no_class", r)).logsumexp(0, keepdim=True) for r in range(len(ranks))]
                ranks = [torch.cat(pair) for pair in zip(ranks, null, strict=True)]
            self._log_probs = tuple(found.t() for found in ranks)
        return self._log_probs

    def range_sums(self, rank: int, first: Tensor, last: Tensor) -> Tensor:
        """Return the sums of log-probabilities over ranges of classes (see `Scores.range_sums`). At the finest rank the log-probabilities
        of all classes, by far the largest tensor, are not computed."""
        layout = self.layout
        if not layout.regular:
            return super().range_sums(rank, first, last)
        if rank < layout.ranks - 1 or len(self._levels) > rank:
            return range_sum(self._level_log_probs(rank).t(), first, last)
        tables = layout.table("group", rank), layout.table("start", rank)
        return sibling_log_softmax_range_sums(at_least_float32(self.logits[rank]), self._parent_log_probs(rank), *tables, first, last)

    # -- predictions -----------------------------------------------------------------------------------------------------

    def path(self) -> Tensor:
        return self.greedy_path() if self.greedy else best_path(self.layout, self.log_probs())

    def greedy_path(self) -> Tensor:
        """Return the classes on the path that starts at the top and takes the most probable child at each level, int64 [B, R]; -1 for
        none."""
        return self.layout.path[self._greedy_nodes()]

    def _greedy_nodes(self) -> Tensor:
        """Return the node at the end of the path of `greedy_path` for each sample of `logits`, int64."""
        layout, scores = self.layout, self.logits[0]
        node = torch.full(scores.shape[1:], -1, dtype=torch.int64, device=scores.device)
        for number in range(len(self.logits)):
            if not layout.widths[number]:
                continue
            first, last = layout.child_range[node].unbind(1)
            best = self._best_positions(number, first, last).clamp(max=layout.level_sizes[number] - 1)
            at_level = (layout.child_level[node] == number) & (last > first)
            node = torch.where(at_level, layout.node_at[layout.level_starts[number] + best], node)
        return node

    def _best_positions(self, level: int, first: Tensor, last: Tensor) -> Tensor:
        """Return the position with the largest raw score in first..last - 1, int64 of the shape of `first`; of equal ones the lowest. Any
        number for an empty range. No range is longer than `Layout.widths[level]`."""
        z = self.logits[level]
        position = first + torch.arange(self.layout.widths[level], device=z.device).unsqueeze(1)
        found = z.gather(0, position.clamp(max=len(z) - 1))
        return first + found.masked_fill(position >= last, -torch.inf).argmax(0)

    def adjusted(self, priors: Priors, strength: float) -> SiblingScores:
        """Return scores with `strength` x log prior added (see `Scores.adjusted`). Siblings have the same parent, so adding log p(taxon)
        equals adding log p(taxon | parent)."""
        prior = self.layout.node_priors(priors).index_select(0, self.layout.node_at)
        parts = prior.mul(strength).split([len(z) for z in self.logits])
        logits = [at_least_float32(z) + part.unsqueeze(1) for z, part in zip(self.logits, parts, strict=True)]
        return SiblingScores(self.layout, logits, self.greedy)

    def mean(self, others: Sequence[Self]) -> SiblingScores:
        """Return scores whose probabilities are the means over the views of each sample, such as the image and its mirror image. The raw
        scores of the result are log-probabilities; their softmax among siblings is p(taxon) / p(parent)."""
        views, levels = (self, *others), range(len(self.logits))
        return SiblingScores(self.layout, [log_mean([view._level_log_probs(n) for view in views]) for n in levels], self.greedy)

    def product(self, others: Sequence[Self], group: Tensor, count: int, weight: Tensor | None = None) -> SiblingScores:
        """Return the scores of groups of samples (see `Scores.product`).

        The raw scores are averaged: their means have the same softmax among siblings as the means of log-probabilities."""
        levels = zip(*(batch.logits for batch in (self, *others)), strict=True)
        logits = [group_mean(at_least_float32(torch.cat(parts, 1)).t(), group, count, weight).t() for parts in levels]
        return SiblingScores(self.layout, logits, self.greedy)

    def raised(self, exponent: Tensor) -> SiblingScores:
        return SiblingScores(self.layout, [at_least_float32(z) * exponent for z in self.logits], self.greedy)

    def among(self, possible: Tensor) -> SiblingScores:
        """Return the scores given that the taxon is an allowed leaf (see `Scores.among`). The raw scores of the result are log p(taxon and
        an allowed leaf), summed from the leaves up."""
        impossible = ~self.layout.possible_nodes(possible)[self.layout.node_at]
        found = self._log_probs_by_index().masked_fill(impossible.unsqueeze(1), IMPOSSIBLE)
        return from_leaves(self.layout, found, self.greedy)

    def weighted(self, log_weights: Tensor) -> SiblingScores:
        weights = self.layout.node_weights(log_weights).index_select(1, self.layout.node_at)
        return from_leaves(self.layout, self._log_probs_by_index() + weights.t(), self.greedy)

    def tempered(self, temperature: Sequence[float]) -> SiblingScores:
        logits = [at_least_float32(z) / t for z, t in zip(self.logits, temperature, strict=True)]
        return SiblingScores(self.layout, logits, self.greedy)

    def choices(self, rank: int, label: Tensor) -> tuple[Tensor, Tensor]:
        """Return the raw scores of the children of the true taxon of rank - 1, and the place of the true child (see `Scores.choices`).
        Samples without such a taxon are left out. W is the largest number of siblings."""
        layout = self.layout
        nodes = self._with_ancestors(layout.nodes(label))
        at_level = (nodes >= 0) & (nodes < layout.taxa) & (layout.level[nodes] == rank)
        sample, column = at_level.nonzero(as_tuple=True)
        node = nodes[sample, column]
        first, last = layout.siblings[node].unbind(1)
        place = first.unsqueeze(1) + torch.arange(layout.widths[rank], device=node.device)
        outside = place >= (last - int(layout.null)).unsqueeze(1)
        z = at_least_float32(self.logits[rank])[place.clamp(max=max(layout.level_sizes[rank] - 1, 0)), sample.unsqueeze(1)]
        return z.masked_fill(outside, -torch.inf), layout.position[node] - first

    def _log_probs_by_index(self) -> Tensor:
        """Return the log-probabilities of the N nodes for B samples, [N, B]. Row i is the node with index i (`Layout.index_of`)."""
        self._level_log_probs(self.layout.ranks - 1)
        return torch.cat(self._levels)


def from_leaves(layout: Layout, found: Tensor, greedy: bool = False) -> SiblingScores:
    """Return scores under which the probability of a leaf is proportional to exp(its log-weight).

    `found`: [N, B], a row per node, by index (`Layout.index_of`). The rows of leaves are the log-weights. The other rows are not read; they
    are overwritten, in place, by the logsumexp of the rows of the node's children. `greedy`: as in `SiblingScores`."""
    for level in range(layout.ranks - 1, 0, -1):
        if layout.level_sizes[level]:
            own = found[layout.level_starts[level] : layout.level_starts[level + 1]]
            own = own.clone() if own.requires_grad else own  # kept for the backward pass; `found` is changed in place
            parents = layout.index_of(layout.table("parent", level) + layout.offsets[level - 1])
            found[parents] = group_logsumexp(own, layout.table("group", level), layout.group_counts[level])
    return SiblingScores(layout, list(found.split(layout.level_sizes)), greedy)


class NodeLinear(nn.Linear):
    """Linear layer that returns [n, B] for features [B, D], the transpose of `nn.Linear`. Forward and backward take 0.85 of the time of
    `nn.Linear` on a CPU."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias.unsqueeze(1), self.weight, features.contiguous().t())


class ConditionalHead(Head):
    """Head with one `NodeLinear` per level. The layer of a level reads the feature of the level's rank. A level without nodes has no layer,
    since DDP fails for parameters that get no gradient."""

    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False, sharded: bool = False) -> None:
        """`sharded`: True if training on several processes replaces this head by a `ShardedConditionalHead`."""
        super().__init__()
        self.layout, self.sharded = Layout(tree, null), sharded
        self.levels = nn.ModuleDict({str(n): NodeLinear(width, size) for n, size in enumerate(self.layout.level_sizes) if size})

    def task_parameters(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the layer of each rank; of the ranks that are not in `Layout.own_levels`, []."""
        return [list(self.levels[str(r)].parameters()) if r in self.layout.own_levels else [] for r in range(self.layout.ranks)]

    def forward(self, features: Tensor) -> SiblingScores:
        return SiblingScores(self.layout, [self._level_logits(n, feature) for n, feature in enumerate(features.unbind(1))])

    def _level_logits(self, level: int, feature: Tensor) -> Tensor:
        """Return the raw scores [n_l, B] of a level from the feature [B, D] of its rank."""
        return self.levels[str(level)](feature) if self.layout.level_sizes[level] else feature.new_empty(0, len(feature))
