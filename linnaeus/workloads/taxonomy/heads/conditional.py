"""Conditional heads: a softmax among siblings for every taxon, multiplied down the tree; optionally with routing.

p(taxon) = p(taxon | parent) p(parent), so the probabilities are one distribution on the tree for any raw scores. The loss of a label needs
only the scores of its siblings and of its ancestors' siblings (`label_log_probs`). All probabilities (`log_probs`) are computed for
validation, and for smoothed targets above the finest rank. Tensors of nodes are [n, B]: dimension 0 is the node, dimension 1 the sample;
see `sibling_softmax.py`. Levels and nodes are defined in `layout.py`.

`ConditionalHead` scores each level from the feature of its rank. `HierarchicalSoftmaxHead` adds routing: before a level is scored, a
weighted mean of the embeddings of the taxa of the rank above is added to the feature. The weights are the routing distribution r over these
taxa. With p the log-probabilities of these taxa,

    soft     r = softmax(p / temperature)
    hard     r = one-hot of the most probable taxon, with the gradient of soft (straight through, Bengio et al. 2013)
    gumbel   r = softmax((p + g) / temperature), g Gumbel noise (Jang et al. 2017); soft in evaluation

Routing changes features only: the reported probabilities remain products of conditionals, so they obey the tree. With hard routing the
predicted path is greedy, too: the most probable child at each level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from linnaeus.workloads.taxonomy.heads.decision import best_path
from linnaeus.workloads.taxonomy.heads.head import IMPOSSIBLE, INIT_STD, Head, Priors, Scores, at_least_float32, group_mean, log_mean
from linnaeus.workloads.taxonomy.heads.layout import Layout
from linnaeus.workloads.taxonomy.ranges import range_logsumexp, range_sum
from linnaeus.workloads.taxonomy.sibling_softmax import group_logsumexp, sibling_log_softmax, sibling_log_softmax_range_sums
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


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
        total: list[Tensor] = [torch.zeros((), device=nodes.device)] * layout.ranks
        for number, z in enumerate(self.logits):
            if not len(z):
                continue
            columns = slice(number, number + 1) if layout.regular else slice(number, None)  # a level holds finer ranks below holes
            at_level = level[:, columns] == number
            position, group = own[:, columns], siblings[:, columns]
            first = torch.where(at_level, torch.stack([position, group[..., 0]]), 0)
            last = torch.where(at_level, torch.stack([position + 1, group[..., 1]]), 1)
            longest = layout.widths[number] + layout.null
            ranges = torch.cat(list(first), 1), torch.cat(list(last), 1)
            score, normaliser = range_logsumexp(at_least_float32(z).t(), *ranges, longest).chunk(2, 1)
            for r, part in enumerate(torch.where(at_level, score - normaliser, 0.0).unbind(1), start=number):
                total[r] = total[r] + part
        return total

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
        layout = self.layout
        node = torch.full_like(self.logits[0][0], -1, dtype=torch.int64)
        for number, z in enumerate(self.logits):
            if not layout.widths[number]:
                continue
            first, last = layout.child_range[node].unbind(1)
            position = first + torch.arange(layout.widths[number], device=z.device).unsqueeze(1)
            found = z.gather(0, position.clamp(max=len(z) - 1))
            best = found.masked_fill(position >= last, -torch.inf).argmax(0)
            child = layout.node_at[layout.level_starts[number] + (first + best).clamp(max=len(z) - 1)]
            at_level = (layout.child_level[node] == number) & (last > first)
            node = torch.where(at_level, child, node)
        return layout.path[node]

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

    def product(self, others: Sequence[Self], group: Tensor, count: int) -> SiblingScores:
        """Return the scores of groups of samples (see `Scores.product`).

        The raw scores are averaged: their means have the same softmax among siblings as the means of log-probabilities."""
        levels = zip(*(batch.logits for batch in (self, *others)), strict=True)
        logits = [group_mean(at_least_float32(torch.cat(parts, 1)).t(), group, count).t() for parts in levels]
        return SiblingScores(self.layout, logits, self.greedy)

    def among(self, possible: Tensor) -> SiblingScores:
        """Return the scores given that the taxon is an allowed leaf (see `Scores.among`). The raw scores of the result are log p(taxon and
        an allowed leaf), summed from the leaves up."""
        impossible = ~self.layout.possible_nodes(possible)[self.layout.node_at]
        return self._from_leaves(self._log_probs_by_index().masked_fill(impossible.unsqueeze(1), IMPOSSIBLE))

    def weighted(self, log_weights: Tensor) -> SiblingScores:
        weights = self.layout.node_weights(log_weights).index_select(1, self.layout.node_at)
        return self._from_leaves(self._log_probs_by_index() + weights.t())

    def _log_probs_by_index(self) -> Tensor:
        """Return the log-probabilities of the N nodes for B samples, [N, B]. Row i is the node with index i (`Layout.index_of`)."""
        self._level_log_probs(self.layout.ranks - 1)
        return torch.cat(self._levels)

    def _from_leaves(self, found: Tensor) -> SiblingScores:
        """Return scores under which the probability of a leaf is proportional to exp(its log-weight).

        `found`: [N, B], a row per node, by index (`Layout.index_of`). The rows of leaves are the log-weights. The other rows are not read;
        they are overwritten, in place, by the logsumexp of the rows of the node's children."""
        layout = self.layout
        for level in range(layout.ranks - 1, 0, -1):
            if layout.level_sizes[level]:
                own = found[layout.level_starts[level] : layout.level_starts[level + 1]]
                own = own.clone() if own.requires_grad else own  # kept for the backward pass; `found` is changed in place
                parents = layout.index_of(layout.table("parent", level) + layout.offsets[level - 1])
                found[parents] = group_logsumexp(own, layout.table("group", level), layout.group_counts[level])
        return SiblingScores(layout, list(found.split(layout.level_sizes)), self.greedy)


class NodeLinear(nn.Linear):
    """Linear layer that returns [n, B] for features [B, D], the transpose of `nn.Linear`. Forward and backward take 0.85 of the time of
    `nn.Linear` on a CPU."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias.unsqueeze(1), self.weight, features.contiguous().t())


class ConditionalHead(Head):
    """Head with one `NodeLinear` per level. The layer of a level reads the feature of the level's rank. A level without nodes has no layer,
    since DDP fails for parameters that get no gradient."""

    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False) -> None:
        super().__init__()
        self.layout = Layout(tree, null)
        self.levels = nn.ModuleDict({str(n): NodeLinear(width, size) for n, size in enumerate(self.layout.level_sizes) if size})

    def forward(self, features: Tensor) -> SiblingScores:
        return SiblingScores(self.layout, [self._level_logits(n, feature) for n, feature in enumerate(features.unbind(1))])

    def _level_logits(self, level: int, feature: Tensor) -> Tensor:
        """Return the raw scores [n_l, B] of a level from the feature [B, D] of its rank."""
        return self.levels[str(level)](feature) if self.layout.level_sizes[level] else feature.new_empty(0, len(feature))


class HierarchicalSoftmaxHead(ConditionalHead):
    """Conditional head with routing: before a level is scored, a weighted mean of the embeddings of the taxa of the rank above is added to
    the feature of the level (see module)."""

    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False, *, routing: str, temperature: float) -> None:
        """`routing`: soft, hard or gumbel. `temperature`: temperature of the routing distribution, above 0."""
        super().__init__(width, tree, null)
        self.routing, self.temperature = routing, temperature
        finer = self.layout.level_sizes[1:]
        self.embeddings = nn.ParameterDict({str(r): torch.empty(tree.sizes[r], width) for r, size in enumerate(finer) if size})

    def init_weights(self) -> None:
        super().init_weights()
        for embedding in self.embeddings.values():
            nn.init.trunc_normal_(embedding, std=INIT_STD)

    def forward(self, features: Tensor) -> SiblingScores:
        logits: list[Tensor] = []
        scores = SiblingScores(self.layout, logits, greedy=self.routing == "hard")
        for level, feature in enumerate(features.unbind(1)):
            if level and self.layout.level_sizes[level]:
                embedding = self.embeddings[str(level - 1)].to(feature.dtype)
                feature = feature + self._routed_embedding(scores.rank_log_probs(level - 1), embedding)
            logits.append(self._level_logits(level, feature))
        return scores

    def _routed_embedding(self, log_probs: Tensor, embedding: Tensor) -> Tensor:
        """Return the mean [B, D] of the embeddings [C, D] of a rank, weighted by the routing distribution (see module). `log_probs`:
        log-probabilities of the classes of this rank, [C, B]."""
        best = log_probs.argmax(0) if self.routing == "hard" else None
        if self.routing == "gumbel" and self.training:
            tiny = torch.finfo(log_probs.dtype).tiny  # a draw of exactly 0 would be infinite noise
            # Minus Gumbel noise, in a fifth of the time of `exponential_`.
            log_probs = log_probs - torch.rand_like(log_probs).clamp_(min=tiny).log_().neg_().log_()
        return cast(Tensor, _WeightedMean.apply(log_probs, embedding, self.temperature, best))


class _WeightedMean(torch.autograd.Function):
    """Autograd function: the mean [B, D] of embeddings [C, D] with weights softmax(raw / temperature), raw [C, B]. With `best`, int64 [B],
    the result is the embedding of each sample's class `best`; the gradient by `raw` is still computed for the mean (straight through).

    Softmax and product are differentiated together, as in attention: with p the weights and g the gradient by the mean m, the gradient by
    raw_c / temperature is p_c (g . embedding_c - g . m). The weights are saved before the division by their sum; dividing the product [B,
    D] instead costs less than dividing [C, B]."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, embedding: Tensor, temperature: float, best: Tensor | None) -> Tensor:
        weight = torch.sub(raw, raw.amax(0))
        weight = (weight if temperature == 1 else weight.div_(temperature)).exp_()
        total = weight.sum(0).unsqueeze(1)
        narrow = weight.to(embedding.dtype)
        found = (narrow.t() @ embedding / total).to(embedding.dtype) if best is None else embedding.index_select(0, best)
        ctx.temperature = temperature
        ctx.save_for_backward(weight, total, embedding, best, found)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, total, embedding, best, found = ctx.saved_tensors
        g = grads[0] / total
        narrow = g.to(embedding.dtype)
        by_weight = (embedding @ narrow.t()).to(weight.dtype)  # [C, B]
        if best is None:
            mean = (g * found).sum(1)
            by_embedding = weight.to(embedding.dtype) @ narrow
        else:
            mean = (weight * by_weight).sum(0) / total.squeeze(1)
            by_embedding = torch.zeros_like(embedding).index_add_(0, best, grads[0])
        return by_weight.sub_(mean).mul_(weight).div_(ctx.temperature), by_embedding, None, None
