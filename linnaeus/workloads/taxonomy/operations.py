"""Operations on a `TaxonomyTree` for whole batches on the device: common ancestors, distances, and sums up the tree.

Nodes are numbered as in the tree: class + offset of its rank, -1 for none. Any shape of nodes is allowed, shapes broadcast, and nothing
waits for the device. There is a place above all roots, so that two taxa of different roots still have a distance.

Lengths are counted in ranks, as if holes were filled: a genus below an order with no family lies two edges under it. All leaves at the
finest rank then have the same depth, and the height of a common ancestor is what hierarchical distance and mistake severity average.

Sums run over each link of the tree once, from the finest rank up, so that work and memory are linear in nodes; never by differences of
prefix sums. Values have nodes last, [..., T]; gradients flow through all of them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.path_table import path_table
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class TreeOperations(nn.Module):
    """Integer tables of a tree as buffers, which move with the module and are not saved. T nodes, R ranks."""

    offsets: Tensor  # int64 [R]: node of class 0 of each rank
    level: Tensor  # int64 [T + 1]: number of the rank of each node; -1 for node -1

    def __init__(self, tree: TaxonomyTree) -> None:
        super().__init__()
        self.tree, self.sizes, self.ranks = tree, tree.sizes, len(tree.ranks)
        self._keep("offsets", np.array(tree.offsets[:-1]))
        self._keep("level", np.append(tree.node_rank, -1))
        self.links: list[tuple[int, int]] = []  # (finer, coarser) ranks between which there are edges, the coarser from fine to coarse
        for coarser in reversed(range(self.ranks)):
            for finer in range(coarser + 1, self.ranks):
                anchor = tree.anchor[finer]
                children = np.flatnonzero((anchor >= tree.offsets[coarser]) & (anchor < tree.offsets[coarser + 1]))
                if len(children):
                    self.links.append((finer, coarser))
                    self._keep(f"parents_{finer}_{coarser}", anchor[children] - tree.offsets[coarser])
                    if len(children) < len(anchor):
                        self._keep(f"children_{finer}_{coarser}", children)

    def _keep(self, name: str, table: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(table, dtype=np.int64)), persistent=False)

    @property
    def path(self) -> Tensor:
        """int64 [T + 1, R]: class at each rank on the way from a node to its root, itself included; -1 elsewhere, and for node -1."""
        return path_table(self.tree, self.level.device)

    def lca(self, a: Tensor, b: Tensor) -> Tensor:
        """int64: the finest taxon that lies on both ways to the root, the nodes themselves included; -1 where there is none."""
        first, second = self.path[a], self.path[b]
        shared = (first == second) & (first >= 0)
        return torch.where(shared, first + self.offsets, -1).amax(-1)  # finer nodes have larger numbers

    def depth(self, nodes: Tensor) -> Tensor:
        """int64: edges from the place above all roots, which has 0, as node -1 has; the finest rank has R."""
        return self.level[nodes] + 1

    def height(self, nodes: Tensor) -> Tensor:
        """int64: edges down to the finest rank, which has 0; node -1 has R."""
        return self.ranks - self.depth(nodes)

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """int64: edges on the way from a to b through their common ancestor."""
        return self.depth(a) + self.depth(b) - 2 * self.depth(self.lca(a, b))

    def ancestor(self, nodes: Tensor, rank: int) -> Tensor:
        """int64: the node's ancestor, or itself, at a rank (its number); -1 in holes and at finer ranks."""
        own = self.path[nodes, rank]
        return torch.where(own >= 0, own + self.offsets[rank], -1)

    def sums(self, own: Tensor) -> Tensor:
        """[..., T]: sum of the values [..., T] at and below each node."""
        parts = list(own.split(self.sizes, -1))
        for finer, coarser in self.links:
            parents = self.get_buffer(f"parents_{finer}_{coarser}")
            parts[coarser] = parts[coarser].index_add(-1, parents, self._values(parts, finer, coarser))
        return torch.cat(parts, -1)

    def _values(self, parts: list[Tensor], finer: int, coarser: int) -> Tensor:
        children = f"children_{finer}_{coarser}"
        return parts[finer].index_select(-1, self.get_buffer(children)) if hasattr(self, children) else parts[finer]
