"""Number the nodes of a tree for heads, such that siblings, and the leaves below a node, are contiguous ranges.

*Nodes* are numbered as follows: first the taxa, as in the tree; then, if the head learns null labels, one *null node* under every taxon
that has children ("this taxon, but not known at finer ranks") and one at the top ("nothing is known"). All children of a taxon, at any
rank, are in one *level*: the rank of the parent plus 1, or 0 for nodes at the top. Within a level siblings are neighbours, with the null
node last. A *position* is the index of a node in its level. The layout is *regular* if every lineage is complete and null labels are not
learnt; then level r is rank r and the position of a node is its class.
"""

from itertools import pairwise
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.heads.head import Priors
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

_PATH_TABLES: WeakKeyDictionary[TaxonomyTree, dict[torch.device, Tensor]] = WeakKeyDictionary()


def path_tables(tree: TaxonomyTree, device: torch.device) -> dict[torch.device, Tensor]:
    """Return `tree.paths` on each device that has been asked for, including `device`: int64 [T + 1, R], the class at each rank on the path
    from each node to its root. Do not modify the tables.

    Heads and metrics share one table per tree and device; on the CPU it is the tree's own array. For a million leaves in seven ranks the
    table takes 73 MB."""
    tables = _PATH_TABLES.setdefault(tree, {})
    if device not in tables:
        with torch.inference_mode(False):  # the first use may be in validation, and training cannot use an inference tensor
            tables[device] = torch.from_numpy(tree.paths).to(device, non_blocking=True)
    return tables


class Tables(nn.Module):
    """Module with constant tables. The tables are buffers, so they move with the module to a device; they are not saved."""

    def register(self, **tables: np.ndarray) -> None:
        for name, table in tables.items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(table)), persistent=False)


class Layout(Tables):
    """Integer tables of a tree and of the layout of its nodes.

    N: number of nodes. T: number of taxa, which are the first T nodes. R: number of ranks. L: number of leaves. G_l and n_l: numbers of
    groups and of nodes of level l.

    A *group* is a set of siblings. An *index* is the position of a node in the concatenation of all levels. A table of T + 1 rows has a row
    for each taxon, and last a row for the virtual node above all nodes of level 0 (the *top*).

    Each level l has further tables: `group<l>` int64 [n_l], the group of each node; `start<l>` int64 [G_l + 1], the first position of each
    group, and last n_l; `parent<l>` int64 [G_l], the parent of each group as a class of rank l - 1 (not for level 0)."""

    level: Tensor  # int64 [N]: level of each node
    position: Tensor  # int64 [N]: its position in the level
    siblings: Tensor  # int64 [N, 2]: first and last + 1 position of a node and its siblings
    child_range: Tensor  # int64 [T + 1, 2]: first and last + 1 position of a taxon's children without the null node
    child_level: Tensor  # int64 [T + 1]: level of a taxon's children
    node_at: Tensor  # int64 [N]: the node at each index
    leaves: Tensor  # int64 [N, 2]: first and last + 1 leaf at or below a node, in depth-first order; null nodes are leaves
    leaf_node: Tensor  # int64 [L]: node of each leaf
    null_below: Tensor  # int64 [T + 1]: the null node under each taxon; -1 for a taxon without children
    null_parent: Tensor  # int64 [N - T]: the taxon above each null node, T for the top
    parent: Tensor  # int64 [T]: the taxon above each taxon, T for none
    ancestors: Tensor  # int64 [T + 1]: number of taxa above each taxon
    inner: Tensor  # bool [T + 1]: the taxon has children; True for the top
    offsets: Tensor  # int64 [R]: node of class 0 of each rank
    sizes: Tensor  # int64 [R]: classes of each rank

    def __init__(self, tree: TaxonomyTree, null: bool) -> None:
        """`null`: True to add null nodes ("not known at finer ranks", see module)."""
        super().__init__()
        self.tree, self._paths = tree, path_tables(tree, torch.device("cpu"))
        taxa, ranks = tree.offsets[-1], len(tree.ranks)
        with_null = np.flatnonzero(tree.has_children) if null else np.empty(0, dtype=np.int64)
        parent = np.concatenate([tree.node_parent, np.where(with_null == taxa, -1, with_null)])
        level = np.append(tree.node_rank, -1)[parent] + 1
        order = np.lexsort((parent, level))
        counts = np.bincount(level, minlength=ranks)
        self.level_sizes = tuple(counts.tolist())
        self.level_starts = (0, *np.cumsum(counts).tolist())  # index of position 0 of each level, then N
        position = np.empty(len(parent), dtype=np.int64)
        position[order] = np.arange(len(parent)) - np.array(self.level_starts)[level[order]]
        null_below = np.full(taxa + 1, -1)
        null_below[with_null] = taxa + np.arange(len(with_null))
        self.register(level=level, position=position, node_at=order, null_below=null_below, null_parent=with_null)
        self.register(child_level=np.append(tree.node_rank, -1) + 1, offsets=np.array(tree.offsets[:-1]), sizes=np.array(tree.sizes))
        self.register(parent=np.where(tree.node_parent < 0, taxa, tree.node_parent), inner=np.append(tree.has_children[:-1], True))
        self.register(ancestors=np.append((tree.paths[:-1] >= 0).sum(1) - 1, 0))
        self.taxa, self.ranks, self.null = taxa, ranks, null
        self._register_groups(parent, order)
        self._register_leaves(parent, order)
        complete = np.array_equal(level[:taxa], tree.node_rank) and len(self.leaf_node) == tree.sizes[-1]
        self.regular = complete and not null and np.array_equal(order, np.arange(taxa))
        self.own_levels = self._find_own_levels(level)
        if not self.regular:
            self._register_irregular(parent, position, level)

    def _find_own_levels(self, level: np.ndarray) -> frozenset[int]:
        """Return the ranks r whose taxa are all in level r and mostly have siblings. The scores of level r then have a gradient whenever a
        batch has several labels of rank r. (An only child is certain: the score of a level of only children has no gradient.)

        level: int64 [N], level of each node."""
        ends, (first, last) = self.tree.offsets, self.siblings[: self.taxa].numpy().T
        ranks = [(level[begin:end], (last - first)[begin:end]) for begin, end in pairwise(ends)]
        return frozenset(r for r, (own, sizes) in enumerate(ranks) if (own == r).all() and 2 * (sizes > 1).sum() >= len(sizes))

    @property
    def path(self) -> Tensor:
        """Return the class at each rank on the path from each taxon to its root, int64 [T + 1, R]. The last row, all -1, is that of the
        virtual root. See `path_tables`."""
        device = self.level.device
        return self._paths[device] if device in self._paths else path_tables(self.tree, device)[device]

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Also copy the path table to the new device now, since `torch.compile` cannot trace its first use."""
        super()._apply(fn, recurse)
        self._paths = path_tables(self.tree, self.level.device)
        return self

    def table(self, name: str, number: int) -> Tensor:
        """Return the buffer `<name><number>`, a table of the level or rank `number`, such as `group2`."""
        return self.get_buffer(f"{name}{number}")

    def nodes(self, label: Tensor) -> Tensor:
        """Return the node of each label, int64 [B, R]. `label`: int64 [B, R], one row per sample, one column per rank.

        -1 is a missing label, and the number of classes of the rank is a null label. The node of a missing label is -1. The node of a null
        label is the null node of the finest known taxon, or -1 in three cases: this taxon has no children, a label at a finer rank is
        known, or the layout has no null nodes."""
        real = (label >= 0) & (label < self.sizes)
        nodes = torch.where(real, label + self.offsets, -1)
        if not self.null:
            return nodes
        coarser = nodes.cummax(1).values  # finer taxa have larger numbers
        finest = coarser[:, -1:]
        null = torch.where(coarser == finest, self.null_below[coarser], -1)
        return torch.where(real, nodes, torch.where(label == self.sizes, null, -1))

    def node_priors(self, priors: Priors) -> Tensor:
        """Return the logarithm of the prior of each node, [N]. `priors`: the priors of the classes."""
        taxa = [prior[:size] for prior, size in zip(priors.ranks, self.tree.sizes, strict=True)]
        return torch.cat([*taxa, priors.null.index_select(0, self.null_parent)])

    def possible_nodes(self, possible: Tensor) -> Tensor:
        """Return bool [N], True for the possible nodes. `possible`: bool [T], True for the possible taxa. A null node is possible if its
        parent is possible; the null node at the top always is."""
        return torch.cat([possible, torch.cat([possible, possible.new_ones(1)])[self.null_parent]])

    def node_weights(self, weights: Tensor) -> Tensor:
        """Return the log-weights of all N nodes, [B, N]. `weights`: [B, T], the log-weights of the T taxa.

        A null node has the log-weight of its parent. The null node at the top has log-weight 0."""
        with_top = torch.cat([weights, torch.zeros_like(weights[:, :1])], 1)
        return torch.cat([weights, with_top.index_select(1, self.null_parent)], 1)

    def index_of(self, nodes: Tensor) -> Tensor:
        """Return the index of each node in the concatenation of all levels, int64 in the shape of `nodes`, which must not contain -1."""
        starts = torch.tensor(self.level_starts, device=nodes.device)
        return starts[self.level[nodes]] + self.position[nodes]

    def _levels(self, order: np.ndarray) -> list[np.ndarray]:
        """Return the nodes of each level, in the order of their positions. `order`: int64 [N], all nodes, sorted by level and position."""
        return [order[first:last] for first, last in pairwise(self.level_starts)]

    def _register_groups(self, parent: np.ndarray, order: np.ndarray) -> None:
        siblings = np.empty((len(parent), 2), dtype=np.int64)
        children = np.zeros((self.taxa + 1, 2), dtype=np.int64)
        widths, counts = [], []
        for number, nodes in enumerate(self._levels(order)):
            first = np.flatnonzero(np.diff(parent[nodes], prepend=-2))
            start = np.append(first, len(nodes))
            last = start[1:]  # a level is empty if no taxon of the rank above has children
            group = np.repeat(np.arange(len(first)), np.diff(start))
            siblings[nodes] = np.stack([first[group], last[group]], 1)
            known = last - (nodes[last - 1] >= self.taxa)
            above = parent[nodes[first]]
            children[above] = np.stack([first, known], 1)  # -1, the top, is the last
            widths.append(int((known - first).max(initial=0)))
            counts.append(len(first))
            self.register(**{f"group{number}": group, f"start{number}": start})
            if number:
                self.register(**{f"parent{number}": above - self.tree.offsets[number - 1]})
        self.widths = tuple(widths)  # size of the largest group of each level, without null nodes
        self.group_counts = tuple(counts)
        self.register(siblings=siblings, child_range=children)

    def _register_leaves(self, parent: np.ndarray, order: np.ndarray) -> None:
        """Number the leaves depth first, children in the order of their positions, and register two tables with these numbers.

        `leaf_node` int64 [L]: node of each leaf. `leaves` int64 [N, 2]: first leaf at or below each node, and last leaf + 1. Arguments:
        `parent` int64 [N], -1 for none; `order` int64 [N], all nodes, sorted by level and position."""
        inner = np.bincount(parent[parent >= 0], minlength=len(parent)) > 0
        count = (~inner).astype(np.int64)  # leaves at or below each node
        levels = self._levels(order)
        for nodes in reversed(levels[1:]):
            np.add.at(count, parent[nodes], count[nodes])
        first = np.zeros_like(count)
        for nodes in levels:
            before = np.cumsum(count[nodes]) - count[nodes]
            eldest = self.siblings.numpy()[nodes, 0]  # position of the first sibling
            above = parent[nodes]
            first[nodes] = before - before[eldest] + np.where(above >= 0, first[above], 0)
        leaf_node = np.flatnonzero(~inner)
        leaf_node = leaf_node[np.argsort(first[leaf_node])]
        self.register(leaves=np.stack([first, first + count], 1), leaf_node=leaf_node)

    def _register_irregular(self, parent: np.ndarray, position: np.ndarray, level: np.ndarray) -> None:
        """Register the tables for trees with incomplete lineages or null nodes. For each rank r: `index<r>` int64 [C_r], the index of each
        class; `class<r>` int64 [L], the class of each leaf at the rank, C_r if it has none; `no_class<r>` int64, the indices of the leaves
        without a class. `parent` (-1 for none), `position`, `level`: int64 [N], a value for each node."""
        index = np.array(self.level_starts)[level] + position
        leaves = self.leaf_node.numpy()
        known = np.where(leaves < self.taxa, leaves, parent[leaves])  # a null node has the classes of its parent
        paths = self.tree.paths[known]
        for r, size in enumerate(self.tree.sizes):
            own, missing = index[self.tree.offsets[r] : self.tree.offsets[r + 1]], paths[:, r] < 0
            self.register(**{f"index{r}": own, f"class{r}": np.where(missing, size, paths[:, r]), f"no_class{r}": index[leaves[missing]]})
