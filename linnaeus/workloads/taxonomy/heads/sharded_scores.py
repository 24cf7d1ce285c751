"""Scores of heads whose classes are divided over the processes. Each process holds the logits of its classes for the samples of all
processes. `over_shards.py` has the formulas, `sharded.py` the heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from linnaeus.distributed.row_shards import row_bounds
from linnaeus.distributed.sample_blocks import SampleBlocks
from linnaeus.workloads.taxonomy.heads.conditional import SiblingScores
from linnaeus.workloads.taxonomy.heads.head import LinearScores, Priors, Scores, at_least_float32
from linnaeus.workloads.taxonomy.heads.layout import Layout
from linnaeus.workloads.taxonomy.heads.marginal import MarginalScores, log_probs_of_nodes
from linnaeus.workloads.taxonomy.heads.over_shards import (
    best_class,
    combined,
    gathered,
    label_terms,
    lowest_of_largest,
    ranges_in_shard,
    shard_logsumexp,
    shard_range_logsumexp,
    shard_range_sum,
    within,
)
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class ShardedScores(Scores):
    """Scores whose classes are divided over the processes. This process holds the logits of its classes for the N samples of all processes.

    Results are for the B samples of this process. All methods that compute results, and `gathered`, are collectives; `adjusted` is not."""

    blocks: SampleBlocks

    def log_probs(self) -> tuple[Tensor, ...]:
        """Raise `RuntimeError`: no process has the scores of all classes. `gathered` returns scores that have them."""
        raise RuntimeError("the classes of a sharded head are divided over the processes; use `gathered()` for those of some samples")

    def bounds(self, size: int) -> list[tuple[int, int]]:
        """Return (first class, last class + 1) of each process, for `size` classes."""
        return row_bounds(size, self.blocks.context.world_size)


class ShardedLinearScores(ShardedScores):
    """Shards of `LinearScores`. `logits`: per rank [N, C_rp], the classes of the shard."""

    consistent = False

    def __init__(self, tree: TaxonomyTree, logits: Sequence[Tensor], sizes: Sequence[int], blocks: SampleBlocks) -> None:
        """`sizes`: per rank the number of all classes, with the null class if there is one."""
        self.tree, self.logits, self.sizes, self.blocks = tree, tuple(logits), tuple(sizes), blocks
        self.starts = [self.bounds(size)[blocks.context.rank][0] for size in sizes]

    def label_log_probs(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return two equal lists, as `LinearScores` does."""
        columns = self.blocks.gathered(label.clamp(min=0)).unbind(1)
        found = [label_terms(z, column - start) for z, column, start in zip(self._wide(), columns, self.starts, strict=True)]
        totals, own = combined(self.blocks, [total for _, total in found], [own for own, _ in found])
        known = (label >= 0).unbind(1)
        marginal = [torch.where(k, (z - total).squeeze(1), 0.0) for k, z, total in zip(known, own, totals, strict=True)]
        return marginal, marginal

    def range_sums(self, rank: int, first: Tensor, last: Tensor) -> Tensor:
        z = self._wide()[rank]
        sums = shard_range_sum(z, *ranges_in_shard(self.blocks, z, self.starts[rank], first, last))
        (total,), (found,) = combined(self.blocks, [shard_logsumexp(z)], [sums])
        return found - (last - first) * total

    def path(self) -> Tensor:
        known = zip(self.logits, self.starts, self.tree.sizes, strict=True)
        return best_class(self.blocks, [z[:, : max(size - start, 0)] for z, start, size in known], self.starts)  # no null class

    def adjusted(self, priors: Priors, strength: float) -> ShardedLinearScores:
        parts = zip(self._wide(), self.starts, priors.ranks, strict=True)
        logits = [z + strength * prior[start : start + z.shape[1]] for z, start, prior in parts]
        return ShardedLinearScores(self.tree, logits, self.sizes, self.blocks)

    def gathered(self) -> LinearScores:
        ranks = zip(self.logits, self.sizes, strict=True)
        return LinearScores(self.tree, [gathered(self.blocks, z, self.bounds(size)) for z, size in ranks])

    def _wide(self) -> list[Tensor]:
        return [at_least_float32(z) for z in self.logits]


class ShardedMarginalScores(ShardedScores):
    """Shards of `MarginalScores`. `logits`: [N, L_p], the leaves of the shard, in the order of `Layout.leaf_node`."""

    consistent = True

    def __init__(self, layout: Layout, logits: Tensor, blocks: SampleBlocks) -> None:
        self.layout, self.logits, self.blocks = layout, logits, blocks
        self.start, self.end = self.bounds(len(layout.leaf_node))[blocks.context.rank]

    def label_log_probs(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return log_probs_of_nodes(self.layout, label, self._range_logsumexp)

    def _range_logsumexp(self, first: Tensor, last: Tensor) -> Tensor:
        z = at_least_float32(self.logits)
        found = shard_range_logsumexp(z, *ranges_in_shard(self.blocks, z, self.start, first, last))
        return combined(self.blocks, [found])[0][0]

    def path(self) -> Tensor:
        """Return the path to the most probable leaf, int64 [B, R], as `MarginalScores.greedy_path` does."""
        null = self.layout.leaf_node[self.start : self.end] >= self.layout.taxa
        leaf = best_class(self.blocks, [self.logits.masked_fill(null, -torch.inf)], [self.start]).squeeze(1)
        return self.layout.path[self.layout.leaf_node[leaf.clamp(max=len(self.layout.leaf_node) - 1)]]  # the clamp is for NaN

    def adjusted(self, priors: Priors, strength: float) -> ShardedMarginalScores:
        prior = self.layout.node_priors(priors)[self.layout.leaf_node[self.start : self.end]]
        return ShardedMarginalScores(self.layout, at_least_float32(self.logits) + strength * prior, self.blocks)

    def gathered(self) -> MarginalScores:
        return MarginalScores(self.layout, gathered(self.blocks, self.logits, self.bounds(len(self.layout.leaf_node))))


class ShardedSiblingScores(ShardedScores, SiblingScores):
    """Shards of `SiblingScores`. `logits`: per level [n_lp, N], the nodes of the shard, in the order of their positions."""

    def __init__(self, layout: Layout, logits: list[Tensor], blocks: SampleBlocks) -> None:
        SiblingScores.__init__(self, layout, logits, greedy=True)
        self.blocks = blocks
        self.starts = [self.bounds(size)[blocks.context.rank][0] for size in layout.level_sizes]

    def _range_logsumexps(self, ranges: Sequence[tuple[int, Tensor, Tensor]]) -> list[Tensor]:
        edges = self.blocks.gathered(torch.cat([edge for _, *bounds in ranges for edge in bounds], 1))  # all levels are sent together
        parts, shares = edges.split([first.shape[1] for _, first, _ in ranges for _ in range(2)], 1), []
        for (number, _, _), first, last in zip(ranges, parts[::2], parts[1::2], strict=True):
            z, start = at_least_float32(self.logits[number]).t(), self.starts[number]
            shares.append(shard_range_logsumexp(z, within(first, z, start), within(last, z, start)))
        return combined(self.blocks, shares)[0]

    def path(self) -> Tensor:
        """Return the path of `SiblingScores.greedy_path`, int64 [B, R]. Each process sends two numbers per sample and level."""
        return self.layout.path[self.blocks.own(self._greedy_nodes())]

    def greedy_path(self) -> Tensor:
        return self.path()

    def _level_log_probs(self, number: int) -> Tensor:
        """Raise `RuntimeError`, as `log_probs` does: siblings may be in several shards."""
        return self.log_probs()[number]

    @torch.no_grad()
    def _best_positions(self, level: int, first: Tensor, last: Tensor) -> Tensor:
        z, start = self.logits[level], self.starts[level]
        value, best = z.new_full(first.shape, -torch.inf), torch.zeros_like(first)
        if len(z):
            position = first - start + torch.arange(self.layout.widths[level], device=z.device).unsqueeze(1)
            inside = (position >= 0) & (position < (last - start).clamp(max=len(z)))
            found = z.gather(0, position.clamp(0, len(z) - 1)).masked_fill(~inside, -torch.inf)
            index = found.argmax(0, keepdim=True)
            value, best = found.gather(0, index)[0], position.gather(0, index)[0] + start
        return lowest_of_largest(self.blocks, value, best)

    def adjusted(self, priors: Priors, strength: float) -> ShardedSiblingScores:
        prior = self.layout.node_priors(priors).index_select(0, self.layout.node_at).mul(strength)
        levels = zip(self.logits, prior.split(self.layout.level_sizes), self.starts, strict=True)
        logits = [at_least_float32(z) + own[start : start + len(z)].unsqueeze(1) for z, own, start in levels]
        return ShardedSiblingScores(self.layout, logits, self.blocks)

    def gathered(self) -> SiblingScores:
        levels = zip(self.logits, self.layout.level_sizes, strict=True)
        return SiblingScores(self.layout, [gathered(self.blocks, z.t(), self.bounds(size)).t() for z, size in levels])
