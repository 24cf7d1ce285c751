"""Operations on a `TaxonomyTree` for batches on the device: common ancestors, distances, and sums up the tree.

Nodes are numbered as in the tree: class + offset of its rank, -1 for none. Tensors of nodes may have any shape, and shapes broadcast.
No operation waits for the device. A virtual root above all roots gives two taxa of different roots a distance.

Distances are counted in ranks, as if holes were filled: a genus under an order without a family is two edges below it. So all leaves at
the finest rank have the same depth. Hierarchical distance and mistake severity are means of the height of a common ancestor.

`TreeOperations.sums` adds along each link of the tree once, from the finest rank up, so that work and memory are linear in the nodes. It
never takes differences of prefix sums, which would lose digits. Values have nodes last, [..., T], and get gradients.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.tree import TaxonomyTree

_PATH_TABLES: WeakKeyDictionary[TaxonomyTree, dict[torch.device, Tensor]] = WeakKeyDictionary()


def path_table(tree: TaxonomyTree, device: torch.device) -> Tensor:
    """Return `tree.path_rows` on the device, int64 [T + 1, R]: class at each rank on the path from each node to its root. Read only.

    Heads and metrics share one table per tree and device, copied at the first use; on the CPU it is the tree's own array. For a million
    leaves in seven ranks it takes 73 MB."""
    tables = _PATH_TABLES.setdefault(tree, {})
    if device not in tables:
        with torch.inference_mode(False):  # the first use may be in validation, and training cannot use an inference tensor
            tables[device] = torch.from_numpy(tree.path_rows).to(device, non_blocking=True)
    return tables[device]


class TreeOperations(nn.Module):
    """Operations on one tree. Its integer tables are buffers that move with the module and are not saved. T nodes, R ranks."""

    offsets: Tensor  # int64 [R]: node of class 0 of each rank
    level: Tensor  # int64 [T + 1]: number of the rank of each node; -1 for node -1

    def __init__(self, tree: TaxonomyTree) -> None:
        super().__init__()
        self.tree, self.sizes, self.ranks = tree, tree.sizes, len(tree.ranks)
        self._register("offsets", np.array(tree.offsets[:-1]))
        self._register("level", np.append(tree.node_rank, -1))
        self.links: list[tuple[int, int]] = []  # (finer, coarser) ranks with edges between them, sorted by the coarser, from fine to coarse
        for coarser in reversed(range(self.ranks)):
            for finer in range(coarser + 1, self.ranks):
                anchor = tree.anchor[finer]
                children = np.flatnonzero((anchor >= tree.offsets[coarser]) & (anchor < tree.offsets[coarser + 1]))
                if len(children):
                    self.links.append((finer, coarser))
                    self._register(f"parents_{finer}_{coarser}", anchor[children] - tree.offsets[coarser])
                    if len(children) < len(anchor):
                        self._register(f"children_{finer}_{coarser}", children)

    def _register(self, name: str, table: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(table, dtype=np.int64)), persistent=False)

    @property
    def path(self) -> Tensor:
        """Return the class at each rank on the path from each node to its root, int64 [T + 1, R]; -1 elsewhere, and for node -1."""
        return path_table(self.tree, self.level.device)

    def lca(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the lowest common ancestor, int64: the finest taxon on both paths to the root, nodes included; -1 for none."""
        first, second = self.path[a], self.path[b]
        shared = (first == second) & (first >= 0)
        return torch.where(shared, first + self.offsets, -1).amax(-1)  # finer nodes have larger numbers

    def depth(self, nodes: Tensor) -> Tensor:
        """Return the number of edges from the virtual root, int64: 0 for node -1, R for a taxon of the finest rank."""
        return self.level[nodes] + 1

    def height(self, nodes: Tensor) -> Tensor:
        """Return the number of edges down to the finest rank, int64: 0 for a taxon of that rank, R for node -1."""
        return self.ranks - self.depth(nodes)

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the number of edges on the path from a to b through their common ancestor, int64."""
        return self.depth(a) + self.depth(b) - 2 * self.depth(self.lca(a, b))

    def ancestor(self, nodes: Tensor, rank: int) -> Tensor:
        """Return the ancestor of each node (or the node itself) at rank number `rank`, int64; -1 in holes and at finer ranks."""
        own = self.path[nodes, rank]
        return torch.where(own >= 0, own + self.offsets[rank], -1)

    def sums(self, own: Tensor) -> Tensor:
        """Return the sum of the values `own` [..., T] at and below each node, [..., T]."""
        parts = list(own.split(self.sizes, -1))
        for finer, coarser in self.links:
            parents = self.get_buffer(f"parents_{finer}_{coarser}")
            parts[coarser] = parts[coarser].index_add(-1, parents, self._child_values(parts, finer, coarser))
        return torch.cat(parts, -1)

    def _child_values(self, parts: list[Tensor], finer: int, coarser: int) -> Tensor:
        children = f"children_{finer}_{coarser}"
        return parts[finer].index_select(-1, self.get_buffer(children)) if hasattr(self, children) else parts[finer]
