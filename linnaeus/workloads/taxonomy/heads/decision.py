"""Choose the predicted path of a sample (a class at each rank) from the probabilities of all taxa."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.workloads.taxonomy.heads.layout import Layout
from linnaeus.workloads.taxonomy.tree.ranges import argmax

WORKSPACE = 2**23  # elements of a float64 table [samples, T + 1]; for a large tree, only a few samples are processed at a time


def best_path(layout: Layout, log_probs: Sequence[Tensor]) -> Tensor:
    """Return the class at each rank of the predicted path, int64 [B, R], -1 where the path has no taxon.

    `log_probs`: log-probabilities of each rank, [B, C_r], and with null labels one column more. The path ends at the leaf with the largest

        p(leaf) + mean of p over the taxa above the leaf

    The simpler rule, the path to the most probable leaf, is right as often at the finest rank, and less often above it
    (`benchmarks/README.md`, "The predicted path"). A leaf of probability 0 is chosen only if all leaves have probability 0. Of equal leaves
    the first one is chosen."""
    if torch.compiler.is_compiling():  # a graph for batches of any size cannot have a number of parts that depends on the size
        return layout.path[_best_leaf(layout, log_probs)]
    rows = max(WORKSPACE // (layout.taxa + 1), 1)
    parts = zip(*(log_p.split(rows) for log_p in log_probs), strict=True)
    return torch.cat([layout.path[_best_leaf(layout, part)] for part in parts])


def _best_leaf(layout: Layout, log_probs: Sequence[Tensor]) -> Tensor:
    """Return the node of the leaf at the end of the predicted path, int64 [B]. Sums are float64: rare leaves have probabilities of 1e-9."""
    sizes = layout.tree.sizes
    p = F.pad(torch.cat([log_p[:, :size] for log_p, size in zip(log_probs, sizes, strict=True)], 1).double().exp(), (0, 1))
    above = torch.zeros_like(p)  # sum of p over the taxa above each taxon
    for first, last in pairwise(layout.tree.offsets):
        own, parent = slice(first, last), layout.parent[first:last]
        above[:, own] = above.index_select(1, parent) + p.index_select(1, parent)
    score = p + above / layout.ancestors.clamp(min=1)
    score = torch.where(p > 0, score, -1.0).masked_fill(layout.inner, -2.0)
    return argmax(score)
