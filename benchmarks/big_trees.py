"""Make random taxonomic trees with the shape of iNaturalist's, of any size, and labels on them, for `tree_scale`.

A tree has seven ranks; per leaf there are 0.235 genera, 0.05 families, 0.012 orders, 0.0025 classes and 0.0004 phyla, so there are 0.3
inner nodes per leaf. The numbers of children of the taxa of a rank have a Pareto distribution (tail exponent 1.5: many genera have one
species, one has several thousand among a million). Labels are as unequal: the most frequent of a million species has about 1 in 25 of the
observations. Everything is a function of (seed, index).
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
    """Return the number of taxa of each rank, coarse to fine. It is never smaller than that of the rank above."""
    sizes = [max(round(share * leaves), least) for share, least in zip(PER_LEAF, AT_LEAST, strict=True)]
    return np.minimum(np.maximum.accumulate(sizes), leaves).tolist()


def big_tree(leaves: int, holes: float = 0.0, seed: int = 0) -> TaxonomyTree:
    """Return a random tree with `leaves` species. A million leaves take about 2 s.

    Each taxon between the first and the last rank is left out with probability `holes`; its children then become children of its parent."""
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
    """Return the parent of each child, an ascending int64 [children] of numbers below `count`.

    Each parent has at least one child; the other children are drawn by Pareto weights."""
    weights = pareto(count, FAMILY_TAIL, randomness.key(stream, WEIGHTS))
    rest = weighted(weights, children - count, randomness.key(stream, CHILDREN))
    return np.sort(np.concatenate([np.arange(count), rest]))


def pareto(count: int, tail: float, stream: int) -> np.ndarray:
    """Return numbers of at least 1 with a Pareto distribution, P(w > x) = x ** -tail, float64 [count]."""
    return (1 - randomness.uniforms(stream, np.arange(count))) ** (-1 / tail)


def weighted(weights: np.ndarray, count: int, stream: int) -> np.ndarray:
    """Return `count` random indices into `weights`, each drawn with a probability proportional to its weight, int64 [count]."""
    edges = np.cumsum(weights)
    return np.searchsorted(edges[:-1], randomness.uniforms(stream, np.arange(count)) * edges[-1], side="right")


def draw_labels(tree: TaxonomyTree, count: int, nulls: float = 0.1, seed: int = 0) -> np.ndarray:
    """Return the labels of `count` random observations, int64 [count, R]: a species, drawn by Pareto weights, and its ancestors.

    A label is -1 at a rank that the lineage lacks. With probability `nulls` an observation has labels only above a random rank, or none."""
    leaves, last = tree.sizes[-1], tree.offsets[-2]
    weights = pareto(leaves, LABEL_TAIL, randomness.key(seed, LABELS, 0))
    labels = tree.paths[last + weighted(weights, count, randomness.key(seed, LABELS, 1))]
    cut, rank = randomness.uniforms(randomness.key(seed, CUT), np.arange(2 * count)).reshape(2, count)
    known = np.where(cut < nulls, (rank * len(tree.ranks)).astype(np.int64), len(tree.ranks))
    return np.where(np.arange(len(tree.ranks)) < known[:, None], labels, -1)


def training_batch(tree: TaxonomyTree, size: int, mixed: bool, seed: int = 0) -> Batch:
    """Return a prepared batch with the entries that losses and metrics read. `mixed=True`: each sample is mixed with its neighbour."""
    label = torch.from_numpy(draw_labels(tree, size, seed=seed))
    batch = {"label": label, "weight": torch.ones(size), "sample": torch.arange(size)}
    if mixed:
        share = randomness.uniforms(randomness.key(seed, SHARES), np.arange(size))
        batch |= {"label2": label[torch.arange(size) ^ 1], "share": torch.from_numpy(share.astype(np.float32))}
    return batch
