"""Softmax over classes that are divided over the processes: log-sum-exps, sums and the best class over all shards.

Process p holds the logits z of the classes of its shard for the samples of all processes. With s_p the log-sum-exp of z over some range of
classes within shard p,

    m = max_p s_p        log-sum-exp over the whole range = m + log sum_p exp(s_p - m)

so one number per sample and range is summed over the processes, whatever the number of classes. The gradient with respect to a logit of
the range is g exp(s_p - lse) exp(z_c - s_p), with g the gradient of the sample's own process. `distributed/sample_blocks.py` exchanges
these numbers; the gradient of a weight stays where the weight is, and is complete: no all-reduce follows.

Without classes (fewer classes than processes) results are -inf or 0, but part of the graph: backward must run the same collectives on every
process. z: [N, C_p], N samples of all processes, C_p classes of this shard. B: samples of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from linnaeus.distributed.sample_blocks import SampleBlocks
from linnaeus.workloads.taxonomy.tree.ranges import argmax, range_logsumexp, range_sum


def combined(blocks: SampleBlocks, totals: Sequence[Tensor], terms: Sequence[Tensor] = ()) -> tuple[list[Tensor], list[Tensor]]:
    """Return the log-sum-exps over all shards, a list of [B, k], and the sums of `terms` over the shards, a list of [B, k].

    totals: log-sum-exps over ranges in this shard, a list of [N, k], -inf for a range without a class in it. If no shard has a class of a
    range, the result is 0. terms: a list of [N, k]. All are sent together; backward sends only those with a gradient."""
    largest = blocks.maximum(torch.cat(list(totals), 1))
    largest = torch.where(largest == -torch.inf, 0.0, largest)
    parts = largest.split([total.shape[1] for total in totals], 1)
    summed = blocks.sum(*((total - part).exp() for total, part in zip(totals, parts, strict=True)), *terms)
    shares = [torch.where(share == 0, 1.0, share) for share in summed[: len(totals)]]
    found = [blocks.own(part) + share.log() for part, share in zip(parts, shares, strict=True)]
    return found, summed[len(totals) :]


def ranges_in_shard(blocks: SampleBlocks, z: Tensor, start: int, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Return the parts of ranges of classes that lie in this shard, as (first, last + 1) counted from `start`, int64 [N, k].

    first, last: int64 [B, k], first class and last class + 1 of each range for the samples of this process, counted over all shards.
    start: first class of this shard. z: [N, C_p], only its shape is used."""
    ranges = within(blocks.gathered(torch.cat([first, last], 1)), z, start)
    return ranges[:, : first.shape[1]], ranges[:, first.shape[1] :]


def within(edges: Tensor, z: Tensor, start: int) -> Tensor:
    """Return `edges`, first classes or last classes + 1 of ranges, counted from the first class of this shard, `start`, and clamped to the
    shard, int64."""
    return (edges - start).clamp(0, z.shape[1])


def shard_range_sum(z: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the sums of z over ranges in the shard, [N, k]. first, last: int64 [N, k], see `ranges_in_shard`."""
    return range_sum(z, first, last) if z.shape[1] else z.sum(1, keepdim=True).expand(first.shape)


def shard_range_logsumexp(z: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the log-sum-exps of z over ranges in the shard, [N, k]; -inf for an empty range."""
    return range_logsumexp(z, first, last) if z.shape[1] else (z.sum(1, keepdim=True) - torch.inf).expand(first.shape)


def shard_logsumexp(z: Tensor) -> Tensor:
    """Return the log-sum-exp of z over the shard, [N, 1]; -inf without classes."""
    return z.logsumexp(1, keepdim=True) if z.shape[1] else z.sum(1, keepdim=True) - torch.inf


def label_terms(z: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Return (the logit of the label, 0 if the label is not in the shard; the log-sum-exp over the shard), both [N, 1].

    label: int64 [N], counted from the first class of the shard."""
    classes = z.shape[1]
    if not classes:
        return z.sum(1, keepdim=True), shard_logsumexp(z)
    inside = (label >= 0) & (label < classes)
    first = torch.where(inside, label, 0)
    bounds = torch.stack([first, torch.zeros_like(label)], 1), torch.stack([first + inside, torch.full_like(label, classes)], 1)
    own, total = range_logsumexp(z, *bounds).split(1, 1)
    return torch.where(inside.unsqueeze(1), own, 0.0), total


@torch.no_grad()
def best_class(blocks: SampleBlocks, logits: Sequence[Tensor], starts: Sequence[int]) -> Tensor:
    """Return the class with the largest logit over all shards for each of `logits`, int64 [B, k]; of equal classes the lowest index.

    logits: a list of k tensors z, with -inf for classes that must not be chosen. starts: first class of this shard in each of them."""
    values, classes = [], []
    for z, start in zip(logits, starts, strict=True):
        best = argmax(z) if z.shape[1] else z.new_zeros(len(z), dtype=torch.int64)
        values.append(z.gather(1, best.unsqueeze(1)).squeeze(1) if z.shape[1] else z.sum(1) - torch.inf)
        classes.append(best + start)
    return blocks.own(lowest_of_largest(blocks, torch.stack(values, 1), torch.stack(classes, 1)))


def lowest_of_largest(blocks: SampleBlocks, value: Tensor, index: Tensor) -> Tensor:
    """Return the index with the largest value over all shards, int64 in the shape of `index`; of equal values the lowest index. If a value
    is NaN, the result may be the largest int64.

    value: for each sample of all processes, the largest value in this shard. index: int64, where it is."""
    found = torch.where(value == blocks.maximum(value), index, torch.iinfo(torch.int64).max)
    return cast(Tensor, blocks.context.all_reduce(found, "min"))


def gathered(blocks: SampleBlocks, z: Tensor, bounds: Sequence[tuple[int, int]]) -> Tensor:
    """Return the logits of all classes for the samples of this process, [B, C]. bounds: classes of each process.

    This sends all logits, so it is for validation only."""
    return torch.cat(blocks.context.exchange_rows(z, [last - first for first, last in bounds]), 1)[: blocks.samples]
