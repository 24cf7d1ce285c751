"""Find the photographs whose features have the largest cosine similarity, by exact search in blocks of at most `QUERIES` x `BLOCK`
cosines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.trained.embed.feature_index import FeatureIndex

QUERIES, BLOCK = 1024, 8192  # photographs per matrix product, of the queries and of the index: 32 MB of cosines
MOST_PAIRS = 10_000_000  # pairs in memory: 0.2 GB
Progress = Callable[[int], None]  # is called with the number of photographs finished since the last call


class Found(NamedTuple):
    """K nearest photographs of an index for each of B queries, in descending order of cosine."""

    cosine: Tensor  # float32 [B, K]
    row: Tensor  # int64 [B, K]: position in the index


class Pairs(NamedTuple):
    """N pairs of photographs of an index, in descending order of cosine."""

    row: Tensor  # int64 [N]: position of the first photograph in the index
    other: Tensor  # int64 [N]: position of the second one, always larger than `row`
    cosine: Tensor  # float32 [N]


def nearest(queries: Tensor, index: FeatureIndex, count: int, own: int | None = None) -> Found:
    """Return, for each of B queries, the `count` photographs of an index with the largest cosine.

    `queries`: unit vectors, float32 [B, width], on any device. Photographs with equal cosines are in the order of the index. `own`: None,
    or, if the queries are consecutive photographs of the index, the position of the first query; a photograph is then not its own
    neighbour."""
    device = queries.device
    best = Found(torch.empty(len(queries), 0, device=device), torch.empty(len(queries), 0, dtype=torch.int64, device=device))
    count = min(count, len(index) - (own is not None))
    for first in range(0, len(index), BLOCK):
        cosine = _cosines(queries, index, first)
        if own is not None:
            row = torch.arange(own - first, own - first + len(queries), device=device)
            inside = ((row >= 0) & (row < cosine.shape[1])).nonzero().squeeze(1)
            cosine[inside, row[inside]] = -torch.inf
        values, rows = cosine.topk(min(count, cosine.shape[1]))
        both = Found(torch.cat([best.cosine, values], 1), torch.cat([best.row, rows + first], 1))
        best = _ordered(both, count)
    return best


def _cosines(vectors: Tensor, index: FeatureIndex, first: int) -> Tensor:
    """Return the cosines between B unit vectors and the photographs `first` to `first + BLOCK` - 1 of an index, [B, up to `BLOCK`]."""
    return (vectors @ index.block(first, first + BLOCK).to(vectors.device).T).clamp_(max=1.0)


def _ordered(found: Found, count: int) -> Found:
    """Return the `count` candidates with the largest cosine in each row of `found`, in descending order; equal cosines in the order of the
    index."""
    by_row = found.row.argsort(dim=1)
    order = by_row.gather(1, found.cosine.gather(1, by_row).argsort(dim=1, descending=True, stable=True))[:, :count]
    return Found(found.cosine.gather(1, order), found.row.gather(1, order))


def neighbours(index: FeatureIndex, count: int, device: torch.device, progress: Progress) -> Iterator[Found]:
    """Yield, for each block of `QUERIES` photographs of an index, the `count` nearest other photographs of each photograph in the block.

    `progress`: called with the number of photographs of each finished block."""
    for first in range(0, len(index), QUERIES):
        queries = index.block(first, first + QUERIES).to(device)
        yield nearest(queries, index, count, own=first)
        progress(len(queries))


def pairs(index: FeatureIndex, above: float, device: torch.device, progress: Progress) -> Pairs:
    """Return the pairs of photographs of an index whose cosine is at least `above`.

    Raise `ConfigError` if there are more than `MOST_PAIRS`."""
    parts, total = [], 0
    for first in range(0, len(index), QUERIES):
        left = index.block(first, first + QUERIES).to(device)
        for start in range(first, len(index), BLOCK):
            cosine = _cosines(left, index, start)
            later = torch.ones_like(cosine, dtype=torch.bool).triu(1 + first - start)
            row, other = ((cosine >= above) & later).nonzero(as_tuple=True)
            parts.append((row.cpu() + first, other.cpu() + start, cosine[row, other].cpu()))
            total += len(row)
            if total > MOST_PAIRS:
                raise ConfigError(f"--above: more than {MOST_PAIRS:,} pairs have a cosine of at least {above:g}; give a larger value")
        progress(len(left))
    found = Pairs(*(torch.cat(part) for part in zip(*parts, strict=True)))
    order = found.cosine.argsort(descending=True, stable=True)
    return Pairs(*(part[order] for part in found))
