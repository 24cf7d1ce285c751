"""The heads `linear` and `marginal` with their classes divided over the processes (`head.sharded`), for more classes than one process can
hold or all-reduce.

Process p holds consecutive rows of each weight and bias, the classes of its shard, and computes their logits for the samples of all
processes. `over_shards.py` has the formulas. The parameters have the names that they have in the whole head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from linnaeus.config.registry import registered
from linnaeus.config.schema import ANYWHERE, Config
from linnaeus.distributed import DistributedContext
from linnaeus.distributed.row_shards import row_bounds
from linnaeus.distributed.sample_blocks import SampleBlocks, agree_on_blocks
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import SoftLabelsConfig, SoftmaxHeadConfig, TaxonomicSmoothingConfig
from linnaeus.workloads.taxonomy.heads.head import Head, LinearHead, LinearScores, Priors, Scores, at_least_float32
from linnaeus.workloads.taxonomy.heads.layout import Layout
from linnaeus.workloads.taxonomy.heads.marginal import MarginalHead, MarginalScores, log_probs_of_nodes
from linnaeus.workloads.taxonomy.heads.over_shards import (
    best_class,
    combined,
    gathered,
    label_terms,
    ranges_in_shard,
    shard_logsumexp,
    shard_range_logsumexp,
    shard_range_sum,
)
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

# optimizers that update each weight of a head without reading the others; Muon leaves heads to AdamW
ELEMENTWISE = ("adamw", "sgd", "muon")


def check_sharded(config: Config) -> None:
    """Raise `ConfigError` if `head.sharded` is true and another setting does not work with it."""
    head, loss = config.head, config.loss
    if not (isinstance(head, SoftmaxHeadConfig) and head.sharded):
        return
    if config.trainer.deterministic == ANYWHERE:
        raise ConfigError("head.sharded=true sums over the processes in the order of the shards; use trainer.deterministic=true or false")
    if head.reduce_precision != "full":
        raise ConfigError("head.sharded=true exchanges no gradients of the head; leave out head.reduce_precision")
    if config.optimizer.name not in ELEMENTWISE:
        raise ConfigError(
            f"head.sharded=true needs an optimizer that updates each weight by itself, and optimizer={config.optimizer.name} may not; "
            f"use {', '.join(ELEMENTWISE[:-1])} or {ELEMENTWISE[-1]}"
        )
    if registered("loss", loss.name) is not None:
        raise ConfigError(f"head.sharded=true: loss={loss.name} of a plugin may read all classes; use a loss of the program")
    smoothed = isinstance(loss, TaxonomicSmoothingConfig | SoftLabelsConfig) or getattr(loss, "label_smoothing", 0) > 0
    if head.name == "marginal" and smoothed:
        raise ConfigError(
            f"head=marginal head.sharded=true: the smoothed targets of loss={loss.name} need the probabilities of all taxa; use "
            "loss=cross_entropy without smoothing, loss=marginal, or head=linear"
        )


class ShardedScores(Scores):
    """Scores of which this process holds the logits of its classes for the N samples of all processes. The results are those of the B
    samples of this process. All methods but `adjusted` are collectives."""

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


class ShardedHead(Head):
    """Part of a head on one of several processes. rows: name of a parameter -> number of rows of the whole parameter."""

    context: DistributedContext
    rows: dict[str, int]

    def join(self) -> ShardedScores:
        """Return the scores of no sample: take part in `forward` of the other processes."""
        weight = next(self.parameters())
        return cast(ShardedScores, self(weight.new_zeros(0, 0, weight.shape[1])))

    def _keep_own_rows(self, context: DistributedContext) -> None:
        """Set `context` and `rows`, and replace the parameters by this process's rows of them."""
        self.context, self.rows = context, {name: len(parameter) for name, parameter in self.named_parameters()}
        for layer in [module for module in self.modules() if isinstance(module, nn.Linear)]:
            first, last = row_bounds(layer.out_features, context.world_size)[context.rank]
            for name, parameter in list(layer.named_parameters()):
                own = parameter.detach()[first:last].clone()
                layer.register_parameter(name, nn.Parameter(own, requires_grad=parameter.requires_grad))
            layer.out_features = last - first

    def _gather(self, features: Tensor) -> tuple[Tensor, SampleBlocks]:
        """Return the features of all processes, [W P, k, D], from those of this process, [B, k, D]. B = k = 0: without a sample."""
        samples, number = features.shape[:2]
        if features.is_meta:
            blocks = SampleBlocks(self.context, samples, samples)
        else:
            blocks, number = agree_on_blocks(self.context, samples, number)
        own = features if samples else features.new_zeros(0, number, features.shape[2])
        return blocks.gather(at_least_float32(own)), blocks


class ShardedLinearHead(ShardedHead, LinearHead):
    """Part of a `LinearHead` on one of several processes."""

    def __init__(self, whole: LinearHead, context: DistributedContext) -> None:
        """Take the layers of `whole`, and keep this process's rows of them."""
        nn.Module.__init__(self)
        self.tree, self.ranks, self.sharded = whole.tree, whole.ranks, True
        self.sizes = [cast(nn.Linear, layer).out_features for layer in self.ranks]
        self._keep_own_rows(context)

    def forward(self, features: Tensor) -> Any:
        """Return the scores for features [B, R, D]. A feature that is repeated for every rank, by `expand`, is sent once."""
        repeated = features.shape[1] > 1 and features.stride(1) == 0
        found, blocks = self._gather(features[:, :1] if repeated else features)
        logits = [layer(found[:, min(r, found.shape[1] - 1)]) for r, layer in enumerate(self.ranks)]
        return ShardedLinearScores(self.tree, logits, self.sizes, blocks)


class ShardedMarginalHead(ShardedHead, MarginalHead):
    """Part of a `MarginalHead` on one of several processes."""

    def __init__(self, whole: MarginalHead, context: DistributedContext) -> None:
        """Take the layer of `whole`, and keep this process's rows of it."""
        nn.Module.__init__(self)
        self.layout, self.leaves, self.sharded = whole.layout, whole.leaves, True
        self._keep_own_rows(context)

    def forward(self, features: Tensor) -> Any:
        """Return the scores for features [B, R, D], of which only those of the finest rank are sent."""
        found, blocks = self._gather(features[:, -1:])
        return ShardedMarginalScores(self.layout, self.leaves(found[:, 0]), blocks)


def shard_head(head: nn.Module, context: DistributedContext) -> ShardedLinearHead | ShardedMarginalHead | None:
    """Return the part of `head` that this process holds; None with one process, or if the head is not to be divided."""
    if context.world_size == 1 or not getattr(head, "sharded", False):
        return None
    return ShardedLinearHead(head, context) if isinstance(head, LinearHead) else ShardedMarginalHead(cast(MarginalHead, head), context)
