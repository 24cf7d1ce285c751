"""Random trees with holes, several roots, short lineages and repeated names, and labels on them."""

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.tree import TaxonomyTree


def random_tree(
    seed: int, ranks: int = 4, rows: int = 60, holes: float = 0.0, short: float = 0.0, topless: float = 0.0
) -> tuple[TaxonomyTree, Tensor]:
    """Return a tree and its labels, int64 [rows, ranks]. `holes`: share of empty cells above the finest rank; `short`: share of rows that
    end at a coarser rank; `topless`: share of rows without a taxon at the coarsest rank."""
    rng = np.random.default_rng(seed)
    names = np.full((rows, ranks), "", dtype=object)
    for row in names:
        path = rng.integers(0, 2 + np.arange(ranks))
        for r in range(ranks):
            if r == ranks - 1 or rng.random() >= holes:
                row[r] = f"{'abcdefg'[r]}{path[r]}"  # names repeat under other parents
        if rng.random() < short:
            row[rng.integers(1, ranks) :] = ""
        if rng.random() < topless:
            row[0] = ""
    tree, labels = TaxonomyTree.from_lineages([f"rank{r}" for r in range(ranks)], names.astype(str))
    return tree, torch.from_numpy(labels)


def with_null_labels(tree: TaxonomyTree, label: Tensor, seed: int, share: float = 0.7) -> Tensor:
    """Return the labels with some of the missing ones converted to the null class of their rank."""
    u = torch.from_numpy(np.random.default_rng(seed).random(tuple(label.shape)))
    return torch.where((label < 0) & (u < share), torch.tensor(tree.sizes), label)


def is_path(tree: TaxonomyTree, predictions: np.ndarray) -> np.ndarray:
    """Return True for rows whose classes int64 [N, R] lie on one path from a root, bool [N]; -1 and holes are ignored."""
    good = np.ones(len(predictions), dtype=bool)
    for r in range(1, len(tree.ranks)):
        for coarser in range(r):
            expected = tree.ancestors(r, predictions[:, r], coarser)
            good &= (expected < 0) | (predictions[:, coarser] < 0) | (expected == predictions[:, coarser])
    return good


def chain(tree: TaxonomyTree, node: int) -> list[int]:
    """Return the node and its ancestors, finest first."""
    found = []
    while node >= 0:
        found.append(node)
        node = int(tree.node_parent[node])
    return found


def common_ancestor(tree: TaxonomyTree, a: int, b: int) -> int:
    """Return the lowest common ancestor of two nodes; -1 if there is none."""
    above = chain(tree, b)
    return next((node for node in chain(tree, a) if node in above), -1)


# `topless`: some lineages have no taxon at the coarsest rank and are complete otherwise; their numbering is that of complete lineages.
KINDS = {"plain": (0.0, 0.0), "holes": (0.3, 0.0), "short": (0.0, 0.3), "both": (0.3, 0.3), "topless": (0.0, 0.0, 0.3)}
