"""The heads `linear`, `conditional` and `marginal` with their classes divided over the processes (`head.sharded`), for more classes than
one process can hold or all-reduce.

Process p holds consecutive rows of each weight and bias, the classes of its shard, and computes their logits for the samples of all
processes. `sharded_scores.py` has the losses and predictions. The parameters have the names that they have in the whole head."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from linnaeus.config.registry import registered
from linnaeus.config.schema import ANYWHERE, Config
from linnaeus.distributed import DistributedContext
from linnaeus.distributed.row_shards import row_bounds
from linnaeus.distributed.sample_blocks import SampleBlocks, agree_on_blocks
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import SoftmaxHeadConfig
from linnaeus.workloads.taxonomy.heads.conditional import ConditionalHead
from linnaeus.workloads.taxonomy.heads.head import Head, LinearHead, at_least_float32
from linnaeus.workloads.taxonomy.heads.marginal import MarginalHead
from linnaeus.workloads.taxonomy.heads.sharded_scores import (
    ShardedLinearScores,
    ShardedMarginalScores,
    ShardedScores,
    ShardedSiblingScores,
)
from linnaeus.workloads.taxonomy.loss_config import SoftLabelsConfig, TaxonomicSmoothingConfig

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
    if head.name != "linear" and smoothed:
        raise ConfigError(
            f"head={head.name} head.sharded=true: the smoothed targets of loss={loss.name} need the probabilities of all taxa; use "
            "loss=cross_entropy without smoothing, loss=marginal, or head=linear"
        )


class ShardedHead(Head):
    """Part of a head on one of several processes. rows: name of a parameter -> number of rows of the whole parameter."""

    context: DistributedContext
    rows: dict[str, int]

    def join(self) -> ShardedScores:
        """Run the collectives of `forward` on a process without a sample, and return empty scores."""
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
        """Return (the features of all processes, [W P, k, D], the blocks of samples) from the features of this process, [B, k, D].

        W, P: see `SampleBlocks`. k: number of features of a sample. B = k = 0 if this process does not have a sample."""
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
        found, blocks = self._gather(distinct(features))
        logits = [layer(found[:, min(r, found.shape[1] - 1)]) for r, layer in enumerate(self.ranks)]
        return ShardedLinearScores(self.tree, logits, self.sizes, blocks)


class ShardedConditionalHead(ShardedHead, ConditionalHead):
    """Part of a `ConditionalHead` on one of several processes."""

    def __init__(self, whole: ConditionalHead, context: DistributedContext) -> None:
        """Take the layers of `whole`, and keep this process's rows of them."""
        nn.Module.__init__(self)
        self.layout, self.levels, self.sharded = whole.layout, whole.levels, True
        self._keep_own_rows(context)

    def forward(self, features: Tensor) -> Any:
        """Return the scores for features [B, R, D]. A feature that is repeated for every rank, by `expand`, is sent once."""
        found, blocks = self._gather(distinct(features))
        levels = range(self.layout.ranks)
        return ShardedSiblingScores(self.layout, [self._level_logits(n, found[:, min(n, found.shape[1] - 1)]) for n in levels], blocks)


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


def distinct(features: Tensor) -> Tensor:
    """Return features [B, R, D] without repetitions: [B, 1, D] if one feature is repeated for every rank, by `expand`."""
    return features[:, :1] if features.shape[1] > 1 and features.stride(1) == 0 else features


def shard_head(head: nn.Module, context: DistributedContext) -> ShardedHead | None:
    """Return the part of `head` that this process holds; None with one process, or if the head is not to be divided."""
    if context.world_size == 1 or not getattr(head, "sharded", False):
        return None
    if isinstance(head, LinearHead):
        return ShardedLinearHead(head, context)
    if isinstance(head, ConditionalHead):
        return ShardedConditionalHead(head, context)
    return ShardedMarginalHead(cast(MarginalHead, head), context)
