"""Decisions from probabilities: the k best taxa by probability, and by conditional risk (Karthik et al., ICLR 2021, "No cost likelihood
manipulation at test time for making better mistakes in deep networks").

Conditional risk minimisation (CRM) answers with the finest class c of least expected height of lca(c, y),

    E(c) = sum_y p(y) height(lca(c, y)) = R - sum over the taxa a on the path of c of (rank(a) - rank(parent(a))) p(a),

R the number of ranks, ranks counted 1 to R and 0 for the virtual root, p(a) the sum of p over the finest classes below a.
Both sums run over the tree once, so that the classes x classes matrix of heights is never needed. p(y) is that of the finest
rank, given that there is a label there, for every head.

Sums are float64: below a million taxa probabilities of 1e-9 are normal, and they decide among the siblings of the tail.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.tables import TreeTables

WORKSPACE = 2**23  # elements of a float64 table [rows, T + 1]: a large tree is worked off a few rows at a time


class Decisions(NamedTuple):
    """For B samples."""

    likeliest: Tensor  # int64 [B, min(k, C)]: finest classes by falling probability
    safest: Tensor  # int64 [B, min(k, C)]: finest classes by rising expected height
    belief: Tensor  # float64 [B, R]: probability of each taxon of the given paths, 0 where there is none


def decide(tables: TreeTables, log_p: Tensor, path: Tensor, k: int = 20) -> Decisions:
    """From log-probabilities of the finest rank [B, C] and paths int64 [B, R]."""
    rows = max(WORKSPACE // (tables.taxa + 1), 1)
    parts = [_decide_rows(tables, *part, k) for part in zip(log_p.split(rows), path.split(rows), strict=True)]
    return Decisions(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _decide_rows(tables: TreeTables, log_p: Tensor, path: Tensor, k: int) -> Decisions:
    belief = beliefs(tables, log_p)
    on_path = torch.where(path >= 0, belief.gather(1, tables.nodes(path)), 0.0)
    likeliest = best_of(log_p, k)
    return Decisions(likeliest, best_of(_gains(tables, belief), k), on_path)


def beliefs(tables: TreeTables, log_p: Tensor) -> Tensor:
    """float64 [B, T + 1]: the probability of every taxon, summed from the finest rank [B, C] up the tree, and 0 for the virtual root."""
    own = F.pad(log_p.exp().double(), (tables.slices[-1].start, 0))
    return F.pad(tables.operations.sums(own), (0, 1))


def _gains(tables: TreeTables, belief: Tensor) -> Tensor:
    """float64 [B, C]: R minus the expected height of each finest class. Overwrites `belief`."""
    for r, own in enumerate(tables.slices):
        parent = tables.parent[own]
        step = r + 1 - tables.rank_number[parent]
        belief[:, own].mul_(step).add_(belief.index_select(1, parent))
    return belief[:, tables.slices[-1]]


def best_of(values: Tensor, k: int) -> Tensor:
    """int64 [B, min(k, C)]: the columns with the largest `values` [B, C], largest first, ties to the lower index. Rows with a NaN come in
    any order. `topk` leaves ties to the device: what equals the least of the k is looked up by index, and the few are sorted."""
    k = min(k, values.shape[1])
    index = values.topk(k).indices.sort(1).values
    own = values.gather(1, index)
    least = own.amin(1, keepdim=True)
    downwards = torch.arange(values.shape[1], 0, -1, dtype=torch.int32, device=values.device)
    equal = torch.where(values == least, downwards, 0).topk(k).indices  # the lowest index first
    surplus = (own == least).cumsum(1) - 1
    index = torch.where(own == least, equal.gather(1, surplus.clamp(min=0)), index)
    index = index.sort(1).values
    order = values.gather(1, index).sort(stable=True, dim=1, descending=True).indices
    return index.gather(1, order)
