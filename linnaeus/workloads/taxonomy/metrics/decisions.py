"""Decisions from probabilities: the k best finest classes by probability, and by conditional risk (Karthik et al., ICLR 2021, "No cost
likelihood manipulation at test time for making better mistakes in deep networks").

Conditional risk minimisation (CRM) predicts the finest class c with the least expected height of lca(c, y),

    E(c) = sum_y p(y) height(lca(c, y)) = R - sum over the taxa a on the path of c of (rank(a) - rank(parent(a))) p(a),

with R the number of ranks, ranks counted from 1 to R and 0 for the virtual root, and p(a) the sum of p over the finest classes below a.
Both sums run over the tree once, so the classes x classes matrix of heights is never needed. p(y) is the probability at the finest
rank, conditional on a class there, for every head.

Sums are float64: with a million taxa, probabilities of 1e-9 are normal and determine the order of rare siblings.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables

WORKSPACE = 2**23  # elements of a float64 table [rows, T + 1]: for a large tree, a few samples are processed at a time


class Decisions(NamedTuple):
    """The decisions for B samples."""

    most_probable: Tensor  # int64 [B, min(k, C)]: finest classes by descending probability
    least_risk: Tensor  # int64 [B, min(k, C)]: finest classes by ascending expected height
    path_probability: Tensor  # float64 [B, R]: probability of each taxon of the given paths, 0 for none


def decide(tables: TreeTables, log_p: Tensor, path: Tensor, k: int = 20) -> Decisions:
    """Return the decisions from log-probabilities of the finest rank [B, C] and paths int64 [B, R]."""
    rows = max(WORKSPACE // (tables.taxa + 1), 1)
    parts = [_decide_rows(tables, *part, k) for part in zip(log_p.split(rows), path.split(rows), strict=True)]
    return Decisions(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _decide_rows(tables: TreeTables, log_p: Tensor, path: Tensor, k: int) -> Decisions:
    probability = taxon_probabilities(tables, log_p)
    on_path = torch.where(path >= 0, probability.gather(1, tables.nodes(path)), 0.0)
    most_probable = top_k(log_p, k)
    return Decisions(most_probable, top_k(_risk_reduction(tables, probability), k), on_path)


def taxon_probabilities(tables: TreeTables, log_p: Tensor) -> Tensor:
    """Return the probability of every taxon, summed from log_p [B, C] of the finest rank up the tree, float64 [B, T + 1]; 0 for node T."""
    own = F.pad(log_p.exp().double(), (tables.slices[-1].start, 0))
    return F.pad(tables.sums(own), (0, 1))


def _risk_reduction(tables: TreeTables, probability: Tensor) -> Tensor:
    """Return R minus the expected height of each finest class, float64 [B, C]. Overwrite `probability` [B, T + 1]."""
    for r, own in enumerate(tables.slices):
        parent = tables.parent[own]
        step = r + 1 - tables.rank_number[parent]
        probability[:, own].mul_(step).add_(probability.index_select(1, parent))
    return probability[:, tables.slices[-1]]


def top_k(values: Tensor, k: int) -> Tensor:
    """Return the columns of the largest `values` [B, C], largest first, ties to the lower index, int64 [B, min(k, C)].

    The order of `Tensor.topk` for ties depends on the device. So the columns equal to the smallest of the k are chosen again by index, and
    the k columns are sorted. Rows with NaN have any order."""
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
