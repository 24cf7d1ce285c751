"""`Taxa`: a table of taxa as arrays, with the parent of each taxon, contradictions in the table, and lineages of the labelled taxa.

`taxon_table.read_taxa` makes a `Taxa` from a file. The whole table is checked; lineages are computed only for labelled taxa and their
ancestors. Contradictions are resolved so that the parents form a forest: cycles are cut, the first of two parents is used, and an ancestor
is skipped if its rank is not coarser than the rank of its descendant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from linnaeus.errors import counted, list_some, quoted, shorten
from linnaeus.workloads.taxonomy.tree.lineages import distinct_lineages

SHOWN = 3  # examples in a line


class Conflict(NamedTuple):
    """Contradictions of one kind in a table of taxa. A case is one contradiction, with its taxa and a description.

    A message consists of the number of cases, `noun` (such as "id"), `kind`, and examples."""

    noun: str
    kind: str  # words after the noun, such as "with two parents"
    cases: Sequence[tuple[Sequence[int], str]]  # for each case its taxa and a description
    fix: str | None = None  # advice in the error if labels use these taxa; None: this is not an error

    def line(self, rows: np.ndarray, only_used: bool = False) -> str:
        """Return a line with the number of cases and examples, the cases with most rows first; "" without cases.

        `rows`: int64 [T], number of rows at or below each taxon. `only_used`: leave out cases without rows."""
        order = sorted((-int(sum(rows[t] for t in taxa)), i) for i, (taxa, _) in enumerate(self.cases))
        order = [(n, i) for n, i in order if n < 0 or not only_used]
        shown = "; ".join(f"{self.cases[i][1]} ({counted(-n, 'row')})" for n, i in order[:SHOWN])
        more = f"; and {len(order) - SHOWN} more" if len(order) > SHOWN else ""
        return f"{counted(len(order), self.noun)} {self.kind}: {shown}{more}" if order else ""


class Placed(NamedTuple):
    """Result of `Taxa.place`: the classes of a tree, listed by rank, and the class of each of K taxa at each rank."""

    names: list[np.ndarray]  # per rank: sorted names of the classes
    ids: list[np.ndarray]  # per rank: ids of the classes, in the same order
    codes: np.ndarray  # int64 [K, R]: class of each taxon at each rank, -1 where missing
    conflicts: list[Conflict]


@dataclass(frozen=True, eq=False)
class Taxa:
    """Table of T taxa: id, name, rank, parent and accepted taxon. Taxa are numbered in the order of the table."""

    ids: list[str]
    number: dict[str, int]  # id -> taxon number
    names: list[str]  # "" for an undetermined taxon ("Quercus sp.")
    ranks: tuple[str, ...]  # names of the ranks in alphabetical order; "" for no rank
    rank: np.ndarray  # int64 [T]: index in `ranks`
    parent: np.ndarray  # int64 [T], -1 for roots; no cycles
    accepted: np.ndarray  # int64 [T]: the accepted taxon of a synonym, otherwise the taxon itself
    active: np.ndarray  # bool [T]: False for a taxon that was replaced by another; labels may still refer to it
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()

    def describe(self, taxon: int) -> str:
        """Return id and name of a taxon, for messages."""
        return f"{shorten(self.ids[taxon])} {quoted(self.names[taxon])}"

    def rows_below(self, taxa: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the number of rows labelled with each taxon or a taxon below it, int64 [T].

        `rows`: [K], number of rows labelled with each of the distinct `taxa`, int64 [K]."""
        total = np.zeros(len(self.ids), dtype=np.int64)
        while len(taxa):
            total[taxa] += rows
            above = self.parent[taxa]
            taxa, place = np.unique(above[above >= 0], return_inverse=True)
            rows = np.bincount(place, weights=rows[above >= 0], minlength=len(taxa)).astype(np.int64)
        return total

    def place(self, taxa: np.ndarray, below: np.ndarray, ranks: Sequence[str]) -> Placed:
        """Return the classes of the distinct `taxa`, int64 [K], and of their ancestors at `ranks`, coarse to fine.

        `below`: result of `rows_below` for these taxa. Taxa with the same name, rank and parent become one class. If the lineages of two
        taxa differ only at ranks that are not in `ranks`, the id of each taxon is appended to its name."""
        used = np.flatnonzero(below)
        local = np.full(len(self.ids) + 1, -1)  # the last entry stands for the parent of roots
        local[used] = np.arange(len(used))
        parent = local[self.parent[used]]
        names = [self.names[t] for t in used.tolist()]
        order = {name: i for i, name in enumerate(sorted(set(names)))}
        name = np.fromiter((order[n] for n in names), dtype=np.int64, count=len(names))
        position = np.array([ranks.index(r) if r in ranks else -1 for r in self.ranks], dtype=np.int64)[self.rank[used]]
        position[name == order.get("", -1)] = -1
        same, lineage, above = _descend(parent, position, self.rank[used], name, len(ranks))
        conflicts = [self._duplicate_conflict(used, same), self._rank_order_conflict(used, position, above)]
        wanted = lineage[same[local[taxa]]]
        names_of, ids_of, codes = [], [], np.full(wanted.shape, -1, dtype=np.int64)
        for r, rank in enumerate(ranks):
            placed = np.unique(wanted[:, r][wanted[:, r] >= 0])
            placed = placed[np.argsort(name[placed], kind="stable")]
            indistinct = _indistinct(lineage[placed, :r], name[placed], placed)
            suffixed = {t: f"{names[t]} [{self.ids[used[t]]}]" for t in indistinct}
            if indistinct:
                placed = np.array(sorted(placed.tolist(), key=lambda t: suffixed.get(t, names[t])))
            kind = "whose lineage differs from that of another only at ranks that are not read, distinguished by their ids"
            conflicts.append(Conflict(f"{rank} taxon", kind, [((int(used[t]),), suffixed[t]) for t in indistinct]))
            names_of.append(np.array([suffixed.get(t, names[t]) for t in placed.tolist()], dtype=str))
            ids_of.append(np.array([self.ids[t] for t in used[placed].tolist()], dtype=str))
            code = np.full(len(used) + 1, -1)
            code[placed] = np.arange(len(placed))
            codes[:, r] = code[wanted[:, r]]
        return Placed(names_of, ids_of, codes, conflicts)

    def _duplicate_conflict(self, used: np.ndarray, same: np.ndarray) -> Conflict:
        """Return the conflict of ids that have the same name, rank and parent as another id."""
        groups: dict[int, list[int]] = {}
        for t in np.flatnonzero(same != np.arange(len(same))).tolist():
            groups.setdefault(int(same[t]), [int(used[same[t]])]).append(int(used[t]))
        cases = [(group, f"{quoted(self.names[group[0]])} is {list_some([self.ids[t] for t in group])}") for group in groups.values()]
        return Conflict("taxon", "with several ids for one name, rank and parent, merged into one", cases)

    def _rank_order_conflict(self, used: np.ndarray, position: np.ndarray, above: np.ndarray) -> Conflict:
        """Return the conflict of taxa whose nearest ranked ancestor does not have a coarser rank.

        `used`: taxa that labels use. `position`: index of the rank of each taxon in the order of ranks. `above`: nearest ancestor of each
        taxon that has a rank. Both are -1 where there is none."""
        wrong = np.flatnonzero((position >= 0) & (above >= 0) & (position <= position[above]))
        pairs = [(int(used[t]), int(used[above[t]])) for t in wrong]
        cases = [(pair[:1], " under ".join(f"{self.ranks[self.rank[t]]} {self.describe(t)}" for t in pair)) for pair in pairs]
        return Conflict("taxon", "under a taxon whose rank is not coarser, which is skipped", cases)


def _descend(
    parent: np.ndarray, position: np.ndarray, rank: np.ndarray, name: np.ndarray, ranks: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the lineages of U taxa from the roots down, level by level. `position`: int64 [U], index of the rank in the tree, or -1.

    Return three arrays. `same`, int64 [U]: the first taxon with the same name, rank and parent. Lineages, int64 [U + 1, R]: taxon at each
    rank, -1 for none; the last row stands for the parent of roots. `above`, int64 [U]: nearest ancestor with a position, -1 for none."""
    same, nearest, above = (np.full(len(parent) + 1, -1) for _ in range(3))  # the last entry stands for the parent of roots
    lineage = np.full((len(parent) + 1, ranks), -1)
    depth = depths(parent)
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(depth.max(initial=-1) + 2))
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        taxa = order[start:end]
        over = same[parent[taxa]]
        key = ((over + 1) * (rank.max() + 1) + rank[taxa]) * (name.max() + 1) + name[taxa]
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        same[taxa] = taxa[first][group]
        own = position[taxa, None]
        lineage[taxa] = np.where((np.arange(ranks) < own) | (own < 0), lineage[over], -1)
        ranked = position[taxa] >= 0
        lineage[taxa[ranked], position[taxa[ranked]]] = same[taxa[ranked]]
        above[taxa] = nearest[over]
        nearest[taxa] = np.where(ranked, same[taxa], nearest[over])
    return same[:-1], lineage, above[:-1]


def depths(parent: np.ndarray) -> np.ndarray:
    """Return the number of steps from each node of a forest to its root, int64 [T], by pointer doubling. Undefined in and below cycles."""
    up, depth = np.append(parent, -1), np.append((parent >= 0).astype(np.int64), 0)
    for _ in range(len(parent).bit_length()):
        if not (up >= 0).any():
            break
        depth = depth + depth[up]
        up = up[up]
    return depth[:-1]


def cycles(parent: np.ndarray) -> list[list[int]]:
    """Return the cycles of `parent`, int64 [T], each as a list from its smallest node number along the parents. Takes O(T log T)."""
    up = np.append(parent, -1)
    for _ in range(len(parent).bit_length()):
        if not (up >= 0).any():
            return []
        up = up[up]  # after T steps only nodes on cycles are left
    found, seen = [], set()
    for start in np.unique(up[up >= 0]).tolist():
        cycle = []
        while start not in seen:
            seen.add(start)
            cycle.append(start)
            start = int(parent[start])
        found += [cycle] if cycle else []
    return found


def _indistinct(lineages: np.ndarray, name: np.ndarray, taxa: np.ndarray) -> list[int]:
    """Return those of K taxa that have the same lineage and name as another of the K taxa. `lineages`: [K, R]. `name`, `taxa`: [K]."""
    repeated = np.flatnonzero(np.bincount(name)[name] > 1)
    _, number = distinct_lineages(np.column_stack([lineages, name])[repeated])
    return taxa[repeated][np.bincount(number)[number] > 1].tolist()
