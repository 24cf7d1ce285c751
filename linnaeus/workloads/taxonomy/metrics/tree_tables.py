"""Integer tables of the tree for the metrics, on the device, linear in the taxa.

Node T, one after the last taxon, is the virtual root above all roots: it is the parent of the roots, has no rank and an empty path.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.taxonomy.tree_operations import TreeOperations


class TreeTables:
    """Tables of `tree` on `device`; T taxa, R ranks."""

    def __init__(self, tree: TaxonomyTree, device: torch.device) -> None:
        self.tree, self.ranks, self.sizes = tree, tree.ranks, tree.sizes
        self.taxa, self.finest = tree.offsets[-1], len(tree.ranks) - 1
        self.slices = [slice(tree.offsets[r], tree.offsets[r + 1]) for r in range(len(tree.ranks))]
        to_device = lambda table: torch.as_tensor(table, device=device)
        self.sizes_tensor, self.offsets = to_device(tree.sizes), to_device(np.array(tree.offsets[:-1]))
        parent = np.append(tree.node_parent, -1)
        self.parent = to_device(np.where(parent >= 0, parent, self.taxa))  # int64 [T + 1]; the virtual root is its own parent
        self.rank_number = to_device(np.append(tree.node_rank + 1, 0))  # int64 [T + 1]: 1 to R, 0 for the virtual root
        self.numbers = torch.arange(1, len(tree.ranks) + 1, device=device)
        self.operations = TreeOperations(tree).to(device)  # its node -1, "none", reads its last row, which is row T
        self.paths = self.operations.path  # int64 [T + 1, R]: class at each rank, -1 for none

    def nodes(self, classes: Tensor) -> Tensor:
        """Return the node of each class, int64 [..., R]; T for a class of -1."""
        return torch.where(classes >= 0, classes + self.offsets, self.taxa)

    def deepest(self, classes: Tensor) -> Tensor:
        """Return the node of the finest class of each row of `classes` [..., R], int64 [...]; T if the row has no class."""
        nodes = torch.where(classes >= 0, classes + self.offsets, -1).amax(-1)
        return torch.where(nodes >= 0, nodes, self.taxa)

    def height(self, node: Tensor, other: Tensor) -> Tensor:
        """Return the height of the lowest common ancestor of two nodes (T: the virtual root), int64 [...]: 0 for a taxon of the finest
        rank, one more for each coarser rank, R for the virtual root."""
        return self.operations.height(self.operations.lca(node, other))
