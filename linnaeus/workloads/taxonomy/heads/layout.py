"""How the nodes of a tree are laid out for heads, so that siblings, and the leaves below a node, are ranges.

*Nodes* are the taxa in the tree's numbering, then, where the head learns null labels, one *null node* under every taxon that has
children ("it is this, and not known any further") and a last one at the top ("nothing is known"). All children of a taxon, of whatever
rank, lie in one *level*, the rank of their parent plus 1 (0 for those at the top), and are neighbours there, null nodes last. Where every
lineage is complete and null labels are not learnt (`plain`), level r is rank r and a place in it is a class.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.path_table import path_table
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class Layout(nn.Module):
    """Integer tables of a tree as buffers, which move with the head and are not saved. N nodes, T of them taxa, R ranks, L leaves.

    Of each level: `group<l>` int64 [n_l], the number of a node's siblings among all groups of the level; `starts<l>` int64 [G_l + 1], the
    first place of each group, and n_l; `above<l>` int64 [G_l], their parent as a class of rank l - 1 (missing for level 0)."""

    level: Tensor  # int64 [N]: level of each node
    place: Tensor  # int64 [N]: its place there
    siblings: Tensor  # int64 [N, 2]: first and last + 1 place of a node and its siblings
    family: Tensor  # int64 [T + 1, 2]: first and last + 1 place of a taxon's children, null nodes excepted; last: of the top
    node_at: Tensor  # int64 [N]: the node at each place, levels one after the other
    leaves: Tensor  # int64 [N, 2]: first and last + 1 leaf at or below a node, depth first; null nodes are leaves
    leaf_node: Tensor  # int64 [L]
    next_level: Tensor  # int64 [T + 1]: level of a taxon's children; last: of the top
    null_parent: Tensor  # int64 [N - T]: the taxon above each null node, T for the top
    taxon_leaf_places: Tensor  # int64: places, levels one after the other, of the taxa without children
    null_below: Tensor  # int64 [T + 1]: the null node under each taxon, the last at the top; -1 under one without children
    offsets: Tensor  # int64 [R]: node of class 0 of each rank
    sizes: Tensor  # int64 [R]: classes of each rank

    def __init__(self, tree: TaxonomyTree, null: bool) -> None:
        super().__init__()
        self.tree = tree
        taxa, ranks = tree.offsets[-1], len(tree.ranks)
        has_children = np.zeros(taxa + 1, dtype=bool)
        has_children[tree.node_parent] = True  # -1, the top, is the last
        with_null = np.flatnonzero(has_children) if null else np.empty(0, dtype=np.int64)
        parent = np.concatenate([tree.node_parent, np.where(with_null == taxa, -1, with_null)])
        level = np.append(tree.node_rank, -1)[parent] + 1
        order = np.lexsort((np.arange(len(parent)), parent, level))
        counts = np.bincount(level, minlength=ranks)
        self.level_sizes = tuple(counts.tolist())
        self.bounds = (0, *np.cumsum(counts).tolist())  # places of all levels, one level after the other
        place = np.empty(len(parent), dtype=np.int64)
        place[order] = np.arange(len(parent)) - np.array(self.bounds)[level[order]]
        null_below = np.full(taxa + 1, -1)
        null_below[with_null] = taxa + np.arange(len(with_null))
        self._keep("level", level)
        self._keep("place", place)
        self._keep("node_at", order)
        self._keep("null_below", null_below)
        self._keep("null_parent", with_null)
        self._keep("next_level", np.append(tree.node_rank, -1) + 1)
        self._keep("offsets", np.array(tree.offsets[:-1]))
        self._keep("sizes", np.array(tree.sizes))
        self._groups(tree, parent, level, order, place)
        self._leaves(parent, level, order)
        self.taxa, self.ranks, self.null = taxa, ranks, null
        self.rank_sizes, self.rank_bounds = tree.sizes, tree.offsets
        complete = np.array_equal(level[:taxa], tree.node_rank) and len(self.leaf_node) == tree.sizes[-1]
        self.plain = complete and not null and np.array_equal(order, np.arange(taxa))
        if not self.plain:
            self._irregular(parent, place, level)

    def _keep(self, name: str, table: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(table)), persistent=False)

    @property
    def path(self) -> Tensor:
        """int64 [T + 1, R]: classes on the way from a taxon to its root, itself included, -1 where there is none; see `path_table`."""
        return path_table(self.tree, self.level.device)

    def of(self, table: str, number: int) -> Tensor:
        """A table of a level or rank."""
        return self.get_buffer(f"{table}{number}")

    def nodes(self, label: Tensor) -> Tensor:
        """int64 [B, R]: the node of each label [B, R] of a path, a null node for a null label; -1 where it says nothing, as one below a
        taxon without children does, or one with a finer taxon known below it."""
        real = (label >= 0) & (label < self.sizes)
        nodes = torch.where(real, label + self.offsets, -1)
        if not self.null:
            return nodes
        coarser = nodes.cummax(1).values  # finer taxa have larger numbers
        finest = coarser[:, -1:]
        null = torch.where(coarser == finest, self.null_below[coarser], -1)
        return torch.where(real, nodes, torch.where(label == self.sizes, null, -1))

    def _groups(self, tree: TaxonomyTree, parent: np.ndarray, level: np.ndarray, order: np.ndarray, place: np.ndarray) -> None:
        taxa = tree.offsets[-1]
        siblings = np.empty((len(parent), 2), dtype=np.int64)
        children = np.zeros((taxa + 1, 2), dtype=np.int64)
        widths, counts = [], []
        for number in range(len(tree.ranks)):
            nodes = order[self.bounds[number] : self.bounds[number + 1]]
            first = np.flatnonzero(np.diff(parent[nodes], prepend=-2))
            last = np.append(first[1:], len(nodes))[: len(first)]  # a level may be empty: nobody at the rank above has children
            group = np.repeat(np.arange(len(first)), last - first)
            siblings[nodes] = np.stack([first[group], last[group]], 1)
            known = last - (nodes[last - 1] >= taxa)
            above = parent[nodes[first]]
            children[above] = np.stack([first, known], 1)  # -1, the top, is the last
            widths.append(int((known - first).max(initial=0)))
            counts.append(len(first))
            self._keep(f"group{number}", group)
            self._keep(f"starts{number}", np.append(first, len(nodes)))
            if number:
                self._keep(f"above{number}", above - tree.offsets[number - 1])
        self.widths, self.group_counts = tuple(widths), tuple(counts)  # the largest group of each level, null nodes excepted; how many
        self._keep("siblings", siblings)
        self._keep("family", children)

    def _leaves(self, parent: np.ndarray, level: np.ndarray, order: np.ndarray) -> None:
        """Leaves in depth-first order, the children of a node by number."""
        inner = np.bincount(parent[parent >= 0], minlength=len(parent)) > 0
        count = (~inner).astype(np.int64)
        levels = range(len(self.bounds) - 1)
        nodes = [order[self.bounds[n] : self.bounds[n + 1]] for n in levels]
        for n in reversed(levels):
            if n:
                np.add.at(count, parent[nodes[n]], count[nodes[n]])
        first = np.zeros_like(count)
        for own in nodes:
            before = np.cumsum(count[own]) - count[own]
            begins = np.flatnonzero(np.diff(parent[own], prepend=-2))
            group = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(own)))[: len(begins)])
            above = parent[own]
            first[own] = before - before[begins][group] + np.where(above >= 0, first[above], 0)
        leaf_node = np.flatnonzero(~inner)
        leaf_node = leaf_node[np.argsort(first[leaf_node])]
        self._keep("leaves", np.stack([first, first + count], 1))
        self._keep("leaf_node", leaf_node)

    def _irregular(self, parent: np.ndarray, place: np.ndarray, level: np.ndarray) -> None:
        """Where lineages have holes or null nodes. Of each rank: `where<r>` int64 [C_r], the place of its classes, levels one after the
        other; `class<r>` int64 [L], the class of each leaf, C_r where it has none; `without<r>`, the places of those leaves."""
        everywhere = np.array(self.bounds)[level] + place
        leaves = self.leaf_node.numpy()
        known = np.where(leaves < self.taxa, leaves, parent[leaves])  # a null node knows what its parent is
        paths = self.tree.path_rows[known]
        self._keep("taxon_leaf_places", everywhere[leaves[leaves < self.taxa]])
        for r in range(self.ranks):
            self._keep(f"where{r}", everywhere[self.rank_bounds[r] : self.rank_bounds[r + 1]])
            self._keep(f"class{r}", np.where(paths[:, r] >= 0, paths[:, r], self.rank_sizes[r]))
            self._keep(f"without{r}", everywhere[leaves[paths[:, r] < 0]])
