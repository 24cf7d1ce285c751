"""The tree as the metrics read it: a few integer tables on the device, linear in the taxa.

Node T, one past the last taxon, is the virtual root above all roots: it is the parent of roots, is at no rank, and its
path is empty.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.operations import TreeOperations
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class TreeTables:
    """Tables of `tree` on `device`; T taxa, R ranks."""

    def __init__(self, tree: TaxonomyTree, device: torch.device) -> None:
        self.tree, self.ranks, self.sizes = tree, tree.ranks, tree.sizes
        self.taxa, self.finest = tree.offsets[-1], len(tree.ranks) - 1
        self.slices = [slice(tree.offsets[r], tree.offsets[r + 1]) for r in range(len(tree.ranks))]
        put = lambda table: torch.as_tensor(table, device=device)
        self.size, self.offsets = put(tree.sizes), put(np.array(tree.offsets[:-1]))
        parent = np.append(tree.node_parent, -1)
        self.parent = put(np.where(parent >= 0, parent, self.taxa))  # int64 [T + 1]; the virtual root is its own
        self.rank_number = put(np.append(tree.node_rank + 1, 0))  # int64 [T + 1]: 1 to R, 0 for the virtual root
        self.numbers = torch.arange(1, len(tree.ranks) + 1, device=device)
        self.operations = TreeOperations(tree).to(device)  # its node -1, "none", is its last row as well: T
        self.paths = self.operations.path  # int64 [T + 1, R]: class at each rank, -1 where there is none

    def nodes(self, classes: Tensor) -> Tensor:
        """Node of each class, int64 [..., R]; T for a class of -1."""
        return torch.where(classes >= 0, classes + self.offsets, self.taxa)

    def deepest(self, classes: Tensor) -> Tensor:
        """int64 [...]: node of the finest class of each row [..., R], T where there is none."""
        nodes = torch.where(classes >= 0, classes + self.offsets, -1).amax(-1)
        return torch.where(nodes >= 0, nodes, self.taxa)

    def height(self, node: Tensor, other: Tensor) -> Tensor:
        """int64 [...]: height of the lowest common ancestor of two nodes (T: the virtual root): 0 for a taxon of the finest rank, one
        more for each coarser rank, R for the virtual root."""
        return self.operations.height(self.operations.lca(node, other))
