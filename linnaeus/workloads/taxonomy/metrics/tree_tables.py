"""Integer tables of the tree for the metrics, on the device, to find common ancestors and heights and to sum values up the tree. The size
of the tables is linear in the number of taxa.

Node T, the number after the last taxon, is the virtual root above all roots: it is the parent of the roots, has no rank and an empty path.
No operation waits for the device. Heights are counted in ranks, as if holes were filled, so all taxa of the finest rank have height 0."""

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.heads.layout import path_tables
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class TreeTables:
    """Integer tables of `tree` on `device` (see module). T taxa, R ranks."""

    def __init__(self, tree: TaxonomyTree, device: torch.device) -> None:
        self.tree, self.ranks, self.sizes = tree, tree.ranks, tree.sizes
        self.taxa = tree.offsets[-1]
        self.slices = [slice(tree.offsets[r], tree.offsets[r + 1]) for r in range(len(tree.ranks))]
        to_device = lambda table: torch.as_tensor(table, device=device)
        self.sizes_tensor, self.offsets = to_device(tree.sizes), to_device(np.array(tree.offsets[:-1]))
        parent = np.append(tree.node_parent, -1)
        self.parent = to_device(np.where(parent >= 0, parent, self.taxa))  # int64 [T + 1]; the virtual root is its own parent
        self.rank_number = to_device(np.append(tree.node_rank + 1, 0))  # int64 [T + 1]: 1 to R, 0 for the virtual root
        self.numbers = torch.arange(1, len(tree.ranks) + 1, device=device)
        self.paths = path_tables(tree, device)[device]  # int64 [T + 1, R]: class at each rank, -1 for none
        # (finer rank, coarser rank, int64 children, int64 parents) of the edges between two ranks; None: all classes of the finer one
        self.links: list[tuple[int, int, Tensor | None, Tensor]] = []
        for coarser in reversed(range(len(tree.ranks))):
            for finer in range(coarser + 1, len(tree.ranks)):
                anchor = tree.anchor[finer]
                children = np.flatnonzero((anchor >= tree.offsets[coarser]) & (anchor < tree.offsets[coarser + 1]))
                if len(children):
                    some = to_device(children) if len(children) < len(anchor) else None
                    self.links.append((finer, coarser, some, to_device(anchor[children] - tree.offsets[coarser])))

    def nodes(self, classes: Tensor) -> Tensor:
        """Return the node of each class, int64 [..., R]; T for a class of -1. `classes`: int64 [..., R], a class per rank."""
        return torch.where(classes >= 0, classes + self.offsets, self.taxa)

    def deepest(self, classes: Tensor) -> Tensor:
        """Return the node of the finest class of each row, int64 [...]; T if the row has no class. `classes`: int64 [..., R], a class per
        rank, -1 for none."""
        nodes = torch.where(classes >= 0, classes + self.offsets, -1).amax(-1)  # finer nodes have larger numbers
        return torch.where(nodes >= 0, nodes, self.taxa)

    def lca(self, node: Tensor, other: Tensor) -> Tensor:
        """Return the lowest common ancestor of the nodes `node` and `other`, int64 [...]; T, the virtual root, if they have no other.

        The lowest common ancestor is the finest taxon that is on both paths to the root. The path of a node includes the node."""
        first, second = self.paths[node], self.paths[other]
        return self.deepest(torch.where(first == second, first, -1))

    def height(self, node: Tensor, other: Tensor) -> Tensor:
        """Return the height of the lowest common ancestor of the nodes `node` and `other`, int64 [...].

        A taxon of the finest rank has height 0, a taxon one rank above has height 1, and so on; the virtual root has height R."""
        return len(self.ranks) - self.rank_number[self.lca(node, other)]

    def sums(self, own: Tensor) -> Tensor:
        """Return for each taxon the sum of `own` over the taxon and all taxa below it, [..., T]. `own`: [..., T], a value of each taxon.

        Each edge of the tree is added once, from the finest rank up. Differences of prefix sums would lose digits."""
        parts = list(own.split(self.sizes, -1))
        for finer, coarser, children, parents in self.links:
            values = parts[finer] if children is None else parts[finer].index_select(-1, children)
            parts[coarser] = parts[coarser].index_add(-1, parents, values)
        return torch.cat(parts, -1)
