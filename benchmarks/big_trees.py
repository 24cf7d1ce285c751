"""Trees shaped like iNaturalist's, of any size, and labels on them: what `tree_scale` measures on.

Seven ranks; per leaf 0.235 genera, 0.05 families, 0.012 orders, 0.0025 classes, 0.0004 phyla: inner nodes are 0.3 of the leaves. The
families of a rank have Pareto sizes (tail exponent 1.5: many genera of one species, one of several thousand among a million). Labels
are as unequal: the commonest of a million species has about 1 in 25 of the observations. Everything is a function of (seed, index).
"""

from __future__ import annotations

import numpy as np
import torch

from linnaeus import randomness
from linnaeus.data.samples import Batch
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species")
PER_LEAF = (0.00001, 0.0004, 0.0025, 0.012, 0.05, 0.235, 1.0)
AT_LEAST = (3, 5, 8, 12, 1, 1, 1)
FAMILY_TAIL, LABEL_TAIL = 1.5, 1.1  # exponents of the Pareto weights
WEIGHTS, CHILDREN, HOLES, LABELS, CUT, SHARES = range(6)  # streams


def rank_sizes(leaves: int) -> list[int]:
    """Taxa of each rank, coarse to fine; never fewer than at the rank above."""
    sizes = [max(round(share * leaves), least) for share, least in zip(PER_LEAF, AT_LEAST, strict=True)]
    return np.minimum(np.maximum.accumulate(sizes), leaves).tolist()


def big_tree(leaves: int, holes: float = 0.0, seed: int = 0) -> TaxonomyTree:
    """A tree of `leaves` species; each taxon between the first and the last rank is left out with probability `holes`, and what is below
    it then hangs on its parent. A million leaves take about 2 s."""
    sizes = rank_sizes(leaves)
    lineages = np.arange(leaves)[:, None]
    for r in reversed(range(len(sizes) - 1)):
        parent = parents(sizes[r], sizes[r + 1], randomness.key(seed, r))
        lineages = np.concatenate([parent[lineages[:, :1]], lineages], axis=1)
    for r in range(1, len(sizes) - 1):
        left_out = randomness.uniforms(randomness.key(seed, r, HOLES), np.arange(sizes[r])) < holes
        lineages[left_out[lineages[:, r]], r] = -1
    names = [np.char.zfill(np.arange(size).astype(str), 7) for size in sizes]
    return TaxonomyTree.from_codes(RANKS, names, lineages)[0]


def parents(count: int, children: int, stream: int) -> np.ndarray:
    """int64 [children], ascending: which of `count` parents each child has. All have one; the others go by Pareto weights."""
    weights = pareto(count, FAMILY_TAIL, randomness.key(stream, WEIGHTS))
    rest = weighted(weights, children - count, randomness.key(stream, CHILDREN))
    return np.sort(np.concatenate([np.arange(count), rest]))


def pareto(count: int, tail: float, stream: int) -> np.ndarray:
    """float64 [count] from 1 on, P(w > x) = x ** -tail."""
    return (1 - randomness.uniforms(stream, np.arange(count))) ** (-1 / tail)


def weighted(weights: np.ndarray, count: int, stream: int) -> np.ndarray:
    """int64 [count]: indices drawn in proportion to `weights`."""
    edges = np.cumsum(weights)
    return np.searchsorted(edges[:-1], randomness.uniforms(stream, np.arange(count)) * edges[-1], side="right")


def draw_labels(tree: TaxonomyTree, count: int, nulls: float = 0.1, seed: int = 0) -> np.ndarray:
    """int64 [count, R] labels of observations: a species of heavy-tailed weight and its ancestors, -1 in holes; with probability `nulls`
    a row is known down to some rank only, or not at all."""
    leaves, last = tree.sizes[-1], tree.offsets[-2]
    weights = pareto(leaves, LABEL_TAIL, randomness.key(seed, LABELS, 0))
    labels = tree.paths[last + weighted(weights, count, randomness.key(seed, LABELS, 1))]
    cut, rank = randomness.uniforms(randomness.key(seed, CUT), np.arange(2 * count)).reshape(2, count)
    known = np.where(cut < nulls, (rank * len(tree.ranks)).astype(np.int64), len(tree.ranks))
    return np.where(np.arange(len(tree.ranks)) < known[:, None], labels, -1)


def training_batch(tree: TaxonomyTree, size: int, mixed: bool, seed: int = 0) -> Batch:
    """Entries of a prepared batch that losses and metrics read; `mixed`: neighbours are blended, each with a share of its own."""
    label = torch.from_numpy(draw_labels(tree, size, seed=seed))
    batch = {"label": label, "weight": torch.ones(size), "sample": torch.arange(size)}
    if mixed:
        share = randomness.uniforms(randomness.key(seed, SHARES), np.arange(size))
        batch |= {"label2": label[torch.arange(size) ^ 1], "share": torch.from_numpy(share.astype(np.float32))}
    return batch
