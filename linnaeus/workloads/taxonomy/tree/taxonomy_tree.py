"""Represent the tree of taxa as flat integer arrays. Every operation is a gather or a segment reduction, linear in the number of taxa.

A taxon is identified by its lineage, since names repeat. The classes of a rank are numbered in the order of their sorted lineages, so the
descendants of a taxon at a finer rank have consecutive numbers. *Nodes* number the taxa of all ranks, coarse ranks first:
node = offsets[rank] + class.

A hole in a lineage is an unknown rank, such as the class of a fish. Its lineage id has an empty name there: `Chordata||Perciformes`. The
`anchor` of a taxon is its nearest known ancestor at any coarser rank. The lineage id of a taxon is the lineage id of its anchor plus a
`tail`; only tails are stored, since whole lineage ids of a million taxa take 150 MB."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from linnaeus.errors import counted, shorten
from linnaeus.workloads.taxonomy.tree.lineages import distinct_lineages, lineage_text, number_names


@dataclass(frozen=True, eq=False)
class TaxonomyTree:
    """Taxa of `ranks`, coarse to fine. Class indices are per rank, from 0, in the order of the sorted lineages."""

    ranks: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]  # per rank, per class: the name of the taxon
    anchor: tuple[np.ndarray, ...]  # per rank, int64 [C_r]: node of the nearest known ancestor, -1 for a root
    tails: tuple[tuple[str, ...], ...] = ()  # per rank, per class: end of the lineage id, after that of the anchor; (): from `names`
    keys: tuple[tuple[str, ...], ...] = ()  # per rank, per class: id of the taxon in the table of taxa; (): no ids

    @classmethod
    def from_lineages(cls, ranks: Sequence[str], rows: np.ndarray) -> tuple[TaxonomyTree, np.ndarray]:
        """Return the tree of `rows`, names [N, R] with "" where missing, and the labels of the rows, int64 [N, R] with -1 where missing."""
        rows = np.asarray(rows).reshape(-1, len(ranks))
        names, codes = number_names(rows)
        return cls.from_codes(ranks, names, codes)

    @classmethod
    def from_codes(
        cls, ranks: Sequence[str], names: Sequence[np.ndarray], codes: np.ndarray, keys: Sequence[np.ndarray] = ()
    ) -> tuple[TaxonomyTree, np.ndarray]:
        """Return the same tree and labels as `from_lineages`, from `codes` int [N, R], -1 for null.

        A code is an index into the sorted `names` of its rank, and into its `keys` (ids of taxa) if given; then a name may occur with
        several keys."""
        lineages, row_lineage = distinct_lineages(codes)
        classes = np.full(lineages.shape, -1, dtype=np.int64)
        latest = np.full(len(lineages), -1, dtype=np.int64)  # node of the finest known taxon so far, per lineage
        prefix, own, key, anchor, offset = np.zeros(len(lineages), dtype=np.int64), [], [], [], 0
        for r in range(len(ranks)):
            code = lineages[:, r].astype(np.int64)
            _, prefix = np.unique(prefix * (len(names[r]) + 1) + code + 1, return_inverse=True)
            known = np.flatnonzero(code >= 0)
            _, first, number = np.unique(prefix[known], return_index=True, return_inverse=True)
            classes[known, r] = number
            first = known[first]
            own.append(tuple(np.asarray(names[r])[code[first]].tolist()))
            key.append(tuple(np.asarray(keys[r])[code[first]].tolist()) if keys else ())
            anchor.append(latest[first])
            latest[known] = offset + number
            offset += len(first)
        tree = cls(tuple(ranks), tuple(own), tuple(anchor), keys=tuple(key) if keys else ())
        return tree, classes[row_lineage]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of classes per rank."""
        return tuple(len(n) for n in self.names)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Return R + 1 integers: the node of class 0 of each rank, then the number of nodes."""
        return (0, *np.cumsum(self.sizes).tolist())

    @cached_property
    def node_parent(self) -> np.ndarray:
        """Return the node of the nearest known ancestor of each node, int64 [T]; -1 for roots."""
        return np.concatenate(self.anchor)

    @cached_property
    def node_rank(self) -> np.ndarray:
        """Return the rank index of each node, int64 [T]."""
        return np.repeat(np.arange(len(self.ranks)), self.sizes)

    @cached_property
    def paths(self) -> np.ndarray:
        """Return the class at each rank on the path from each node to its root, the node included, int64 [T + 1, R].

        Holes, and the ranks finer than the node, have -1. The last row is all -1, so that index -1 (no node) gives an empty path."""
        rows = np.full((self.offsets[-1] + 1, len(self.ranks)), -1, dtype=np.int64)
        for r, anchor in enumerate(self.anchor):
            own = slice(self.offsets[r], self.offsets[r + 1])
            rows[own] = rows[anchor]
            rows[own, r] = np.arange(len(anchor))
        return rows

    @cached_property
    def has_children(self) -> np.ndarray:
        """Return bool [T + 1], True for nodes with children. The last entry, index -1, is for the parent of the roots."""
        found = np.zeros(self.offsets[-1] + 1, dtype=bool)
        found[self.node_parent] = True
        return found

    @cached_property
    def leaf_count(self) -> np.ndarray:
        """Return the number of leaves (nodes without children) at or below each node, int64 [T]."""
        count = (~self.has_children[:-1]).astype(np.int64)
        for r in reversed(range(len(self.ranks))):
            below = np.flatnonzero((self.node_rank == r) & (self.node_parent >= 0))
            np.add.at(count, self.node_parent[below], count[below])
        return count

    def rank_index(self, rank: str | int) -> int:
        """Return the index of a rank given by name or index."""
        return rank if isinstance(rank, int) else self.ranks.index(rank)

    def ancestors(self, rank: str | int, classes: np.ndarray, to_rank: str | int) -> np.ndarray:
        """Return the ancestors of `classes` at `to_rank` (not finer than `rank`), int64 in the shape of `classes`; -1 for class -1 and in
        holes."""
        r, to = self.rank_index(rank), self.rank_index(to_rank)
        assert to <= r, f"{self.ranks[to]} is finer than {self.ranks[r]}"
        classes = np.asarray(classes, dtype=np.int64)
        return self.paths[np.where(classes >= 0, classes + self.offsets[r], -1), to]

    def lineage_ids(self, rank: str | int) -> tuple[str, ...]:
        """Return a stable name of every class of a rank: the names of its lineage joined by `|`, empty in holes (`Rosales||Rosa`)."""
        r = self.rank_index(rank)
        texts: list[str] = []
        for node, anchor in enumerate(self.node_parent[: self.offsets[r + 1]].tolist()):
            texts.append((texts[anchor] if anchor >= 0 else "") + self._tail(node))  # so the work is linear in the taxa
        return tuple(texts[self.offsets[r] :])

    def _tail(self, node: int) -> str:
        """Return the tail of a node: the end of its lineage id, after the lineage id of its nearest known ancestor."""
        r = int(self.node_rank[node])
        cls = node - self.offsets[r]
        if self.tails:
            return self.tails[r][cls]
        above = self.node_parent[node]
        return "|" * (r - int(self.node_rank[above]) if above >= 0 else r) + lineage_text([self.names[r][cls]])

    def subset(self, ranks: Sequence[str]) -> TaxonomyTree:
        """Return the tree with the given `ranks` only. Class numbers and lineage ids do not change; a parent is the nearest remaining
        ancestor."""
        indices = [self.rank_index(r) for r in ranks]
        assert indices == sorted(set(indices)), f"ranks run from coarse to fine: {ranks}"
        return self._select(indices, [np.ones(self.sizes[i], dtype=bool) for i in indices])

    def restrict(self, keep: Sequence[np.ndarray]) -> tuple[TaxonomyTree, tuple[np.ndarray, ...]]:
        """Return the tree of the classes that are kept, renumbered. `keep`: per rank bool [C_r], True for a class to keep.

        Also return, per rank, the new number of each class, int64 [C_r], -1 if it was removed."""
        renumber = tuple(np.where(k, np.cumsum(k) - 1, -1).astype(np.int64) for k in keep)
        return self._select(list(range(len(self.ranks))), keep), renumber

    def _select(self, indices: list[int], keep: Sequence[np.ndarray]) -> TaxonomyTree:
        offsets = np.concatenate([[0], np.cumsum([k.sum() for k in keep])])
        new_node = np.full(self.offsets[-1] + 1, -1, dtype=np.int64)
        for j, i in enumerate(indices):
            kept = self.offsets[i] + np.flatnonzero(keep[j])
            new_node[kept] = offsets[j] + np.arange(len(kept))
        names, keys, anchor = [], [], []
        for j, i in enumerate(indices):
            kept = np.flatnonzero(keep[j])
            paths = self.paths[self.offsets[i] + kept]
            nearest = np.full(len(kept), -1, dtype=np.int64)
            for coarser in indices[:j]:  # the last ancestor found is the nearest
                above = new_node[np.where(paths[:, coarser] >= 0, self.offsets[coarser] + paths[:, coarser], -1)]
                nearest = np.where(above >= 0, above, nearest)
            names.append(tuple(self.names[i][c] for c in kept.tolist()))
            keys.append(tuple(self.keys[i][c] for c in kept.tolist()) if self.keys else ())
            anchor.append(nearest)
        ranks = tuple(self.ranks[i] for i in indices)
        tails = self._tails_between(indices, new_node) if self.tails or len(indices) < len(self.ranks) else ()
        return TaxonomyTree(ranks, tuple(names), tuple(anchor), tails, tuple(keys) if self.keys else ())

    def _tails_between(self, indices: Sequence[int], new_node: np.ndarray) -> tuple[tuple[str, ...], ...]:
        """Return, per rank in `indices`, the new tails of the nodes that remain (`new_node` >= 0). The new tail of a node is the tails of
        the removed nodes directly above it, joined with its old tail."""
        remains, above = (new_node[:-1] >= 0).tolist(), self.node_parent.tolist()
        tails: list[tuple[str, ...]] = []
        removed: dict[int, str] = {}  # removed node -> tails since its nearest remaining ancestor
        for r in range(len(self.ranks)):
            own = []
            for node in range(self.offsets[r], self.offsets[r + 1]):
                tail = removed.get(above[node], "") + self._tail(node)
                if remains[node]:
                    own.append(tail)
                else:
                    removed[node] = tail
            tails += [tuple(own)] if r in indices else []
        return tuple(tails)

    def conflicts(self, labels: np.ndarray) -> list[str]:
        """Return a line for each rank with names that occur under several parents. A line gives up to three such names, with the number of
        rows of each taxon of that name.

        `labels`: int64 [N, R]."""
        lines = []
        for r, rank in enumerate(self.ranks):
            rows = np.bincount(labels[:, r][labels[:, r] >= 0], minlength=self.sizes[r])
            _, inverse, count = np.unique(np.asarray(self.names[r], dtype=str), return_inverse=True, return_counts=True)
            repeated = np.flatnonzero(count > 1)
            if len(repeated):
                ids = self.lineage_ids(r)
                taxa = [np.flatnonzero(inverse == name)[:4].tolist() for name in repeated[:3]]
                examples = [", ".join(f"{shorten(ids[c])} ({counted(int(rows[c]), 'row')})" for c in same) for same in taxa]
                more = f"; and {len(repeated) - 3} more" if len(repeated) > 3 else ""
                start = f"{rank}: {counted(len(repeated), 'name')} under several parents, kept apart as different taxa: "
                lines.append(start + "; ".join(examples) + more)
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as a dict of lists for JSON, which `from_dict` reads."""
        strings = {"names": self.names, "anchor": tuple(a.tolist() for a in self.anchor), "tails": self.tails, "keys": self.keys}
        lists = {name: [list(values) for values in ranks] for name, ranks in strings.items() if ranks}
        return {"version": 1, "ranks": list(self.ranks), **lists}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TaxonomyTree:
        """Return the tree whose `to_dict` is `plain`. Raise `ValueError` for another version, and for a content that is not a tree."""
        if plain.get("version") != 1 or "ids" in plain:  # an early format stored whole lineage ids
            raise ValueError(f"taxonomy of version {plain.get('version')!r} with {', '.join(plain)}; this program reads version 1")
        names, tails, keys = (tuple(tuple(s) for s in plain.get(field, ())) for field in ("names", "tails", "keys"))
        tree = cls(tuple(plain["ranks"]), names, tuple(_anchors(a) for a in plain["anchor"]), tails, keys)
        tree._check()
        return tree

    def _check(self) -> None:
        """Raise `ValueError` if ranks or names are not texts, if ranks repeat, if a list does not have an entry for each class, or if the
        anchor of a taxon is not of a coarser rank."""
        texts = [self.ranks, *self.names, *self.tails, *self.keys]
        if not all(isinstance(text, str) for column in texts for text in column) or len({*self.ranks, ""}) <= len(self.ranks):
            raise ValueError("the ranks and names of a taxonomy must be texts, and the ranks must differ")
        for columns in (self.names, self.anchor, self.tails or self.names, self.keys or self.names):
            if len(columns) != len(self.ranks) or tuple(map(len, columns)) != self.sizes:
                raise ValueError("a taxonomy must have a name and an anchor of each class of each rank")
        for anchor, first in zip(self.anchor, self.offsets, strict=False):
            if len(anchor) and not -1 <= anchor.min() <= anchor.max() < first:
                raise ValueError("the anchor of a taxon must be a taxon of a coarser rank")

    def fingerprint(self) -> str:
        """Return a hash, 32 hexadecimal digits, of everything that determines the classes. `keys` are excluded: tables change these ids."""
        text = json.dumps(replace(self, keys=()).to_dict(), separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _anchors(values: Sequence[int]) -> np.ndarray:
    """Return the anchors (nodes of nearest known ancestors) `values` as int64 [C]. Raise `ValueError` for values that are not integers."""
    found = np.asarray(values)
    if found.ndim != 1 or (len(found) and found.dtype != np.int64):
        raise ValueError("the anchors of a taxonomy must be integers")
    return found.astype(np.int64)
