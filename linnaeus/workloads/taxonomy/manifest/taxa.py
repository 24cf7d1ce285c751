"""A table of taxa as arrays: parents, conflicts in the table, and the lineages of the taxa that labels use.

`taxon_table.read_taxa` builds the `Taxa` of a file. The whole table is checked; lineages are computed only for the taxa that labels use
and their ancestors. Conflicts leave the parent links a forest: cycles are cut, the first of two parents is used, and an ancestor is
skipped if its rank is not coarser than that of its descendant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from linnaeus.errors import counted, list_some, quoted, shorten
from linnaeus.workloads.taxonomy.tree import distinct_lineages

SHOWN = 3  # examples in a line


class Conflict(NamedTuple):
    """One kind of conflict in a table, with all its cases. `noun`: of a case, such as "id"; `kind`: the words after it."""

    noun: str
    kind: str
    cases: Sequence[tuple[Sequence[int], str]]  # per case: its taxa, and a description
    fix: str | None = None  # the correction needed before labels may use the taxa; None: labels may use them

    def line(self, rows: np.ndarray, only_used: bool = False) -> str:
        """Return a line with the number of cases and the first of them, in order of the rows at or below their taxa; "" without cases.

        `rows` int64 [T] are the rows at or below each taxon. With `only_used`, cases without rows are left out."""
        order = sorted((-int(sum(rows[t] for t in taxa)), i) for i, (taxa, _) in enumerate(self.cases))
        order = [(n, i) for n, i in order if n < 0 or not only_used]
        shown = "; ".join(f"{self.cases[i][1]} ({counted(-n, 'row')})" for n, i in order[:SHOWN])
        more = f"; and {len(order) - SHOWN} more" if len(order) > SHOWN else ""
        return f"{counted(len(order), self.noun)} {self.kind}: {shown}{more}" if order else ""


class Placed(NamedTuple):
    """Taxa placed on the ranks of a tree.

    `names` and `ids` are arrays per rank, in the order of the names. `codes` int64 [K, R] are the indices into them of K taxa, -1 for
    null."""

    names: list[np.ndarray]
    ids: list[np.ndarray]
    codes: np.ndarray
    conflicts: list[Conflict]


@dataclass(frozen=True, eq=False)
class Taxa:
    """T taxa, numbered in the order of the table."""

    ids: list[str]
    number: dict[str, int]  # id -> taxon number
    names: list[str]  # "" if undetermined ("Quercus sp.")
    ranks: tuple[str, ...]  # names of the ranks in alphabetical order; "" for no rank
    rank: np.ndarray  # int64 [T], into `ranks`
    parent: np.ndarray  # int64 [T], -1 for roots; no cycles
    accepted: np.ndarray  # int64 [T]: the accepted taxon of a synonym, otherwise the taxon itself
    active: np.ndarray  # bool [T]: False for a taxon that was replaced, and to which labels may still refer
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()

    def describe(self, taxon: int) -> str:
        """Return id and name of a taxon, for messages."""
        return f"{shorten(self.ids[taxon])} {quoted(self.names[taxon])}"

    def rows_below(self, taxa: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return int64 [T]: the rows at or below each taxon, given the `rows` [K] at the distinct `taxa` (int64 [K])."""
        total = np.zeros(len(self.ids), dtype=np.int64)
        while len(taxa):
            total[taxa] += rows
            above = self.parent[taxa]
            taxa, place = np.unique(above[above >= 0], return_inverse=True)
            rows = np.bincount(place, weights=rows[above >= 0], minlength=len(taxa)).astype(np.int64)
        return total

    def place(self, taxa: np.ndarray, below: np.ndarray, ranks: Sequence[str]) -> Placed:
        """Place the distinct `taxa` (int64 [K]) on `ranks`, coarse to fine. `below` is the result of `rows_below` for these taxa.

        Ids with the same name, rank and parent are one taxon. If the lineages of two taxa differ only at ranks that are not in `ranks`,
        their names get their ids as a suffix."""
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
        """Return the ids that share name, rank and parent with another id."""
        groups: dict[int, list[int]] = {}
        for t in np.flatnonzero(same != np.arange(len(same))).tolist():
            groups.setdefault(int(same[t]), [int(used[same[t]])]).append(int(used[t]))
        cases = [(group, f"{quoted(self.names[group[0]])} is {list_some([self.ids[t] for t in group])}") for group in groups.values()]
        return Conflict("taxon", "with several ids for one name, rank and parent, merged into one", cases)

    def _rank_order_conflict(self, used: np.ndarray, position: np.ndarray, above: np.ndarray) -> Conflict:
        """Return the taxa whose nearest ranked ancestor does not have a coarser rank."""
        wrong = np.flatnonzero((position >= 0) & (above >= 0) & (position <= position[above]))
        pairs = [(int(used[t]), int(used[above[t]])) for t in wrong]
        cases = [(pair[:1], " under ".join(f"{self.ranks[self.rank[t]]} {self.describe(t)}" for t in pair)) for pair in pairs]
        return Conflict("taxon", "under a taxon whose rank is not coarser, which is skipped", cases)


def _descend(
    parent: np.ndarray, position: np.ndarray, rank: np.ndarray, name: np.ndarray, ranks: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Walk U taxa with `parent` int64 [U] from the roots down, level by level. `position` int64 [U] is the index among the ranks, or -1.

    Return `same` int64 [U], the first taxon with the same name, rank and parent; the lineages, int64 [U + 1, R] taxon numbers with -1
    in holes (the last row stands for the parent of roots); and `above` int64 [U], the nearest ancestor with a position, -1 for none."""
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
    """Return int64 [T]: the steps from each node of a forest to its root, by pointer doubling. Undefined in and under cycles."""
    up, depth = np.append(parent, -1), np.append((parent >= 0).astype(np.int64), 0)
    for _ in range(len(parent).bit_length()):
        if not (up >= 0).any():
            break
        depth = depth + depth[up]
        up = up[up]
    return depth[:-1]


def cycles(parent: np.ndarray) -> list[list[int]]:
    """Return the cycles of `parent` (int64 [T]), each from its lowest number along the parents. Takes O(T log T)."""
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
    """Return those of `taxa` [K] whose `lineages` [K, R] and `name` [K] both equal those of another."""
    repeated = np.flatnonzero(np.bincount(name)[name] > 1)
    _, number = distinct_lineages(np.column_stack([lineages, name])[repeated])
    return taxa[repeated][np.bincount(number)[number] > 1].tolist()
