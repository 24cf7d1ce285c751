"""A table of taxa as arrays: who is whose parent, what contradicts itself, and the lineage of every taxon that labels use.

`taxon_table.read_taxa` makes the `Taxa` of a file. All of a table is checked, yet only the taxa that labels use, with their
ancestors, are given lineages. Where conflicts are found the links stay a forest: cycles are cut, the first of two parents
holds, and an ancestor whose rank is not coarser than what lies below it is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from linnaeus.workloads.taxonomy.lineages import distinct_lineages

SHOWN = 3  # examples in a line


class Conflict(NamedTuple):
    """One kind of contradiction in a table, with all its cases."""

    kind: str
    taxa: tuple[tuple[int, ...], ...]  # per case: those it is about
    texts: tuple[str, ...]  # per case
    fix: str | None = None  # what to do before labels may use them; None: they may

    def line(self, rows: np.ndarray, used: bool | None = None) -> str:
        """Cases with the rows at or below them, most first; `used` asks for those with (True) or without (False) rows. "" if none."""
        count = [int(sum(rows[t] for t in taxa)) for taxa in self.taxa]
        cases = sorted((-n, i) for i, n in enumerate(count) if used is None or (n > 0) == used)
        shown = "; ".join(f"{self.texts[i]} ({-n} rows)" for n, i in cases[:SHOWN])
        more = f"; and {len(cases) - SHOWN} more" if len(cases) > SHOWN else ""
        return f"{len(cases)} {self.kind}: {shown}{more}" if cases else ""


class Placed(NamedTuple):
    """Taxa on the ranks of a tree: names and ids per rank, sorted, and codes int64 [K, R] into them of K taxa asked for, -1 for null."""

    names: list[np.ndarray]
    ids: list[np.ndarray]
    codes: np.ndarray
    conflicts: list[Conflict]


@dataclass(frozen=True, eq=False)
class Taxa:
    """T taxa, numbered as they come in the table."""

    ids: list[str]
    number: dict[str, int]  # of each id
    names: list[str]  # "" where it is no name ("Quercus sp.")
    ranks: tuple[str, ...]  # names of ranks, in no order; "" for none
    rank: np.ndarray  # int64 [T], into `ranks`
    parent: np.ndarray  # int64 [T], -1 for roots; no cycles
    accepted: np.ndarray  # int64 [T]: the taxon itself, or the one whose synonym it is
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()

    def called(self, taxon: int) -> str:
        return f"{self.ids[taxon]} {self.names[taxon]!r}"

    def rows_below(self, taxa: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """int64 [T]: rows at or below each taxon, of `rows` [K] rows at the distinct `taxa` int64 [K]."""
        total = np.zeros(len(self.ids), dtype=np.int64)
        while len(taxa):
            total[taxa] += rows
            above = self.parent[taxa]
            taxa, place = np.unique(above[above >= 0], return_inverse=True)
            rows = np.bincount(place, weights=rows[above >= 0], minlength=len(taxa)).astype(np.int64)
        return total

    def place(self, taxa: np.ndarray, below: np.ndarray, ranks: Sequence[str]) -> Placed:
        """The distinct `taxa`, int64 [K], on `ranks`, coarse to fine; `below` is `rows_below` of them.

        Ids with the same name, rank and parent are one taxon. Taxa whose lineages differ in nothing but other ranks have their ids in
        their names."""
        used = np.flatnonzero(below)
        local = np.full(len(self.ids) + 1, -1)  # the last is the parent of roots
        local[used] = np.arange(len(used))
        parent = local[self.parent[used]]
        names = [self.names[t] for t in used.tolist()]
        order = {name: i for i, name in enumerate(sorted(set(names)))}
        name = np.fromiter((order[n] for n in names), dtype=np.int64, count=len(names))
        position = np.array([ranks.index(r) if r in ranks else -1 for r in self.ranks], dtype=np.int64)[self.rank[used]]
        position[name == order.get("", -1)] = -1
        same, lineage, above = _descend(parent, position, self.rank[used], name, len(ranks))
        conflicts = [self._repeated(used, same), self._disordered(used, position, above)]
        asked = lineage[same[local[taxa]]]
        names_of, ids_of, codes = [], [], np.full(asked.shape, -1, dtype=np.int64)
        for r, rank in enumerate(ranks):
            there = np.unique(asked[:, r][asked[:, r] >= 0])
            there = there[np.argsort(name[there], kind="stable")]
            apart = _alike(lineage[there, :r], name[there], there)
            called = {t: f"{names[t]} [{self.ids[used[t]]}]" for t in apart}
            if apart:
                there = np.array(sorted(there.tolist(), key=lambda t: called.get(t, names[t])))
            kind = f"{rank} taxon(s) with the lineage of another but for ranks not read, kept apart by their ids"
            conflicts.append(Conflict(kind, tuple((int(used[t]),) for t in apart), tuple(called[t] for t in apart)))
            names_of.append(np.array([called.get(t, names[t]) for t in there.tolist()], dtype=str))
            ids_of.append(np.array([self.ids[t] for t in used[there].tolist()], dtype=str))
            code = np.full(len(used) + 1, -1)
            code[there] = np.arange(len(there))
            codes[:, r] = code[asked[:, r]]
        return Placed(names_of, ids_of, codes, conflicts)

    def _repeated(self, used: np.ndarray, same: np.ndarray) -> Conflict:
        groups: dict[int, list[int]] = {int(s): [int(s)] for s in same[same != np.arange(len(same))]}
        for t in np.flatnonzero(same != np.arange(len(same))).tolist():
            groups[int(same[t])].append(t)
        taxa = tuple(tuple(used[group].tolist()) for group in groups.values())
        texts = (f"{self.names[group[0]]!r} is {', '.join(self.ids[t] for t in group)}" for group in taxa)
        return Conflict("taxon(s) with several ids for one name, rank and parent, taken as one", taxa, tuple(texts))

    def _disordered(self, used: np.ndarray, position: np.ndarray, above: np.ndarray) -> Conflict:
        wrong = np.flatnonzero((position >= 0) & (above >= 0) & (position <= position[above]))
        pairs = [(int(used[t]), int(used[above[t]])) for t in wrong]
        texts = tuple(" under ".join(f"{self.ranks[self.rank[t]]} {self.called(t)}" for t in pair) for pair in pairs)
        kind = "taxon(s) under one whose rank is not coarser, which is passed over"
        return Conflict(kind, tuple((lower,) for lower, _ in pairs), texts)


def _descend(
    parent: np.ndarray, position: np.ndarray, rank: np.ndarray, name: np.ndarray, ranks: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From the roots down, of U taxa with `parent` int64 [U]: the first taxon that each is the same as, int64 [U]; its lineage,
    int64 [U, R] of taxa, -1 in holes; the nearest taxon above it that has a `position` among the ranks, int64 [U], -1 for none."""
    same, nearest, above = (np.full(len(parent) + 1, -1) for _ in range(3))  # the last of each is the parent of roots
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
    """int64 [T]: steps to the root of each node of a forest, by doubling; a node in or under a cycle has any number."""
    up, depth = np.append(parent, -1), np.append((parent >= 0).astype(np.int64), 0)
    for _ in range(len(parent).bit_length()):
        if not (up >= 0).any():
            break
        depth = depth + depth[up]
        up = up[up]
    return depth[:-1]


def cycles(parent: np.ndarray) -> list[list[int]]:
    """The cycles of `parent` int64 [T], each from its lowest number along the parents. Linear, but for the log of T."""
    up = np.append(parent, -1)
    for _ in range(len(parent).bit_length()):
        if not (up >= 0).any():
            return []
        up = up[up]  # after T steps every node that has not left through a root is on a cycle
    found, seen = [], set()
    for start in np.unique(up[up >= 0]).tolist():
        cycle = []
        while start not in seen:
            seen.add(start)
            cycle.append(start)
            start = int(parent[start])
        found += [cycle] if cycle else []
    return found


def _alike(lineages: np.ndarray, name: np.ndarray, taxa: np.ndarray) -> list[int]:
    """Those of `taxa` [K] that have their `lineages` [K, R] and `name` [K] in common with another."""
    repeated = np.flatnonzero(np.bincount(name)[name] > 1) if len(name) else name
    _, number = distinct_lineages(np.column_stack([lineages, name])[repeated])
    return taxa[repeated][np.bincount(number)[number] > 1].tolist() if len(repeated) else []
