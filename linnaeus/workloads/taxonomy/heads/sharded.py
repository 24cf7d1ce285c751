"""Linear head with its classes divided over the processes (`head.sharded`), for more classes than one process can hold or all-reduce.

Process p holds consecutive rows of each rank's weight and bias, the classes of its shard. It computes the logits z of its classes for the
samples of all processes. With s_p the log-sum-exp of z over the shard p, and y the label of a sample,

    m = max_p s_p        lse = m + log sum_p exp(s_p - m)        log p(y) = sum_p [y in shard p] z_y - lse

so two numbers per sample and rank are summed over the processes, whatever the number of classes. The gradient with respect to the logits of
a shard is g_y [c = y] - g exp(s_p - lse) exp(z_c - s_p), with g the gradients of the sample's own process. Features and these numbers are
exchanged by `distributed/sample_blocks.py`; the gradient of a weight stays where the weight is, and is complete: no all-reduce follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from linnaeus.config.registry import registered
from linnaeus.config.schema import ANYWHERE, Config
from linnaeus.distributed import DistributedContext
from linnaeus.distributed.row_shards import row_bounds
from linnaeus.distributed.sample_blocks import SampleBlocks, agree_on_blocks
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import LinearHeadConfig
from linnaeus.workloads.taxonomy.heads.head import LinearHead, LinearScores, Priors, Scores, at_least_float32
from linnaeus.workloads.taxonomy.ranges import argmax, range_logsumexp, range_sum
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

ELEMENTWISE = (
    "adamw",
    "sgd",
    "muon",
)  # optimizers that update each weight of a head without reading the others; Muon leaves heads to AdamW


def check_sharded(config: Config) -> None:
    """Raise `ConfigError` if `head.sharded` is true and another setting does not work with it."""
    if not (isinstance(config.head, LinearHeadConfig) and config.head.sharded):
        return
    if config.trainer.deterministic == ANYWHERE:
        raise ConfigError("head.sharded=true sums over the processes in the order of the shards; use trainer.deterministic=true or false")
    if config.optimizer.name not in ELEMENTWISE:
        raise ConfigError(
            f"head.sharded=true needs an optimizer that updates each weight by itself, and optimizer={config.optimizer.name} may not; "
            f"use {', '.join(ELEMENTWISE[:-1])} or {ELEMENTWISE[-1]}"
        )
    if registered("loss", config.loss.name) is not None:
        raise ConfigError(f"head.sharded=true: loss={config.loss.name} of a plugin may read all classes; use a loss of the program")


class ShardedScores(Scores):
    """Scores of ranks that are independent of each other, of which this process holds the logits of its classes for the N samples of all
    processes. The results are those of the B samples of this process. All methods but `adjusted` are collectives."""

    consistent = False

    def __init__(self, tree: TaxonomyTree, logits: Sequence[Tensor], sizes: Sequence[int], blocks: SampleBlocks) -> None:
        """`logits`: per rank [N, C_rp], the classes of the shard. `sizes`: per rank the number of all classes, with the null class if there
        is one."""
        self.tree, self.logits, self.sizes, self.blocks = tree, tuple(logits), tuple(sizes), blocks
        context = blocks.context
        self.bounds = [row_bounds(size, context.world_size) for size in sizes]
        self.starts = [bounds[context.rank][0] for bounds in self.bounds]

    def label_log_probs(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return two equal lists, as `LinearScores` does."""
        columns = self.blocks.gathered(label.clamp(min=0)).unbind(1)
        found = [_label_terms(z, column - start) for z, column, start in zip(self._wide(), columns, self.starts, strict=True)]
        totals, own = self._over_shards([total for _, total in found], [own.unsqueeze(1) for own, _ in found])
        known = (label >= 0).unbind(1)
        marginal = [torch.where(k, z.squeeze(1) - total, 0.0) for k, z, total in zip(known, own, totals, strict=True)]
        return marginal, marginal

    def range_sums(self, rank: int, first: Tensor, last: Tensor) -> Tensor:
        z, start = self._wide()[rank], self.starts[rank]
        ranges = (self.blocks.gathered(torch.cat([first, last], 1)) - start).clamp(0, z.shape[1])
        sums = range_sum(z, *ranges.chunk(2, 1)) if z.shape[1] else z.sum(1, keepdim=True).expand(-1, first.shape[1])
        (total,), (found,) = self._over_shards([_logsumexp(z)], [sums])
        return found - (last - first) * total.unsqueeze(1)

    def _over_shards(self, totals: list[Tensor], terms: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the log-sum-exps over all classes, a list of [B], and the sums of `terms` over the shards, a list of [B, k].

        totals: log-sum-exps over the shard, a list of [N]. terms: a list of [N, k]."""
        largest = self.blocks.maximum(torch.stack(totals, 1))
        shares = [(total - most).exp().unsqueeze(1) for total, most in zip(totals, largest.unbind(1), strict=True)]
        summed = self.blocks.sum(*shares, *terms)
        columns = zip(self.blocks.own(largest).unbind(1), summed[: len(totals)], strict=True)
        return [most + share.squeeze(1).log() for most, share in columns], summed[len(totals) :]

    def _wide(self) -> list[Tensor]:
        return [at_least_float32(z) for z in self.logits]

    def log_probs(self) -> tuple[Tensor, ...]:
        """Raise `RuntimeError`: no process has the scores of all classes. `gathered` returns scores that have them."""
        raise RuntimeError("the classes of a sharded head are divided over the processes; use `gathered()` for those of some samples")

    @torch.no_grad()
    def path(self) -> Tensor:
        values, classes = [], []
        for z, start, size in zip(self.logits, self.starts, self.tree.sizes, strict=True):
            own = z[:, : max(size - start, 0)]  # without the null class
            best = argmax(own) if own.shape[1] else own.new_zeros(len(own), dtype=torch.int64)
            values.append(own.gather(1, best.unsqueeze(1)).squeeze(1) if own.shape[1] else own.sum(1) - torch.inf)
            classes.append(best + start)
        value, found = torch.stack(values, 1), torch.stack(classes, 1)
        largest = self.blocks.maximum(value)
        found = torch.where(value == largest, found, torch.iinfo(torch.int64).max)  # of equal classes the lowest index
        return self.blocks.own(cast(Tensor, self.blocks.context.all_reduce(found, "min")))

    def adjusted(self, priors: Priors, strength: float) -> ShardedScores:
        parts = zip(self._wide(), self.starts, priors.ranks, strict=True)
        logits = [z + strength * prior[start : start + z.shape[1]] for z, start, prior in parts]
        return ShardedScores(self.tree, logits, self.sizes, self.blocks)

    def gathered(self) -> LinearScores:
        """Return the scores of all classes for the samples of this process. This sends all logits and holds [P, C_r] of them, so it is for
        validation only."""
        found = []
        for z, bounds in zip(self.logits, self.bounds, strict=True):
            parts = self.blocks.context.exchange_rows(z, [last - first for first, last in bounds])
            found.append(torch.cat(parts, 1)[: self.blocks.samples])
        return LinearScores(self.tree, found)


def _label_terms(z: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Return (the logit of the label, 0 if the label is not in the shard; the log-sum-exp over the shard), both [N].

    z: [N, C_p]. label: int64 [N], counted from the first class of the shard."""
    classes = z.shape[1]
    if not classes:
        return z.sum(1), _logsumexp(z)
    inside = (label >= 0) & (label < classes)
    first = torch.where(inside, label, 0)
    bounds = torch.stack([first, torch.zeros_like(label)], 1), torch.stack([first + inside, torch.full_like(label, classes)], 1)
    own, total = range_logsumexp(z, *bounds).unbind(1)
    return torch.where(inside, own, 0.0), total


def _logsumexp(z: Tensor) -> Tensor:
    """Return the log-sum-exp over the classes of z [N, C_p], [N]; -inf without classes, but part of the graph: backward must run the same
    collectives on every process."""
    return z.logsumexp(1) if z.shape[1] else z.sum(1) - torch.inf


class ShardedLinearHead(LinearHead):
    """Part of a `LinearHead` on one of several processes. Names of parameters are those of the whole head.

    rows: name of a parameter -> number of rows of the whole parameter."""

    def __init__(self, whole: LinearHead, context: DistributedContext) -> None:
        """Take the layers of `whole`, and keep this process's rows of them."""
        nn.Module.__init__(self)
        self.tree, self.ranks, self.sharded, self.context = whole.tree, whole.ranks, True, context
        self.sizes = [cast(nn.Linear, layer).out_features for layer in self.ranks]
        self.rows = {name: len(parameter) for name, parameter in self.named_parameters()}
        for layer, size in zip(cast(list[nn.Linear], self.ranks), self.sizes, strict=True):
            first, last = row_bounds(size, context.world_size)[context.rank]
            for name, parameter in list(layer.named_parameters()):
                own = parameter.detach()[first:last].clone()
                layer.register_parameter(name, nn.Parameter(own, requires_grad=parameter.requires_grad))
            layer.out_features = last - first

    def forward(self, features: Tensor) -> ShardedScores:  # type: ignore[override]
        """Return the scores for features [B, R, D]. A feature that is repeated for every rank, by `expand`, is sent once."""
        repeated = features.shape[1] > 1 and features.stride(1) == 0
        return self._scores(features[:, :1] if repeated else features)

    def join(self) -> ShardedScores:
        """Return the scores of no sample: take part in `forward` of the other processes."""
        weight = cast(nn.Linear, self.ranks[0]).weight
        return self._scores(weight.new_zeros(0, 0, weight.shape[1]))

    def _scores(self, features: Tensor) -> ShardedScores:
        samples, number = features.shape[:2]
        if features.is_meta:
            blocks = SampleBlocks(self.context, samples, samples)
        else:
            blocks, number = agree_on_blocks(self.context, samples, number)
        own = features if samples else features.new_zeros(0, number, features.shape[2])
        gathered = blocks.gather(at_least_float32(own))  # [W P, 1 or R, D]
        logits = [layer(gathered[:, min(r, number - 1)]) for r, layer in enumerate(self.ranks)]
        return ShardedScores(self.tree, logits, self.sizes, blocks)
