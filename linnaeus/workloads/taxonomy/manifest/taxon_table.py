"""Reads a table of taxa: ids with parent ids (GBIF and other Darwin Core tables) or with all ancestors' ids (iNaturalist's taxa).

    id              taxonID, taxon_id, id
    parent          parentNameUsageID, parent_id, parent; or `ancestry`: ids from the root down, between / or backslashes
    rank            taxonRank, rank; or iNaturalist's `rank_level` (10 species, 20 genus, 30 family, ...)
    name            name, canonicalName, scientificName; a taxon without one is called by its id
    accepted        acceptedNameUsageID, where synonyms occur: they stand for what they point to

Capitals and prefixes (`dwc:`, `col:`) of the header do not matter. Ids are texts: 007 is not 7. What contradicts itself is collected as
`Conflict`s, which say what is an error once labels use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.manifest.cleaning import clean_name, is_null
from linnaeus.workloads.taxonomy.manifest.table import Column, read_table
from linnaeus.workloads.taxonomy.manifest.taxa import Conflict, Taxa, cycles
from linnaeus.workloads.taxonomy.manifest.taxon_ranks import rank_of_level

HEADERS = {
    "id": ("taxonid", "taxon_id", "id"),
    "parent": ("parentnameusageid", "parent_id", "parentid", "parent_taxon_id", "parent"),
    "ancestry": ("ancestry",),
    "accepted": ("acceptednameusageid", "accepted_id", "accepted_taxon_id"),
    "rank": ("taxonrank", "rank", "taxon_rank"),
    "level": ("rank_level",),
    "name": ("name", "canonicalname", "scientificname", "scientific_name", "taxon_name"),
}
LONGEST = 30  # taxa of a cycle that are named
NONE = -1  # as a parent; below it, -2 - i is the i-th id that is not in the table


def read_taxa(path: Path) -> Taxa:
    """The taxa of a CSV, TSV or Parquet table. Raises ConfigError where it cannot be read or has no ids, parents or ranks."""
    found: dict[str, str] = {}

    def choose(header: Sequence[str]) -> tuple[str, ...]:
        found.update(_columns(path, header))
        return tuple(found.values())

    table = read_table(path, choose, key="data.taxonomy")
    columns = {what: table.columns[name] for what, name in found.items()}
    notes = list(table.notes)
    if table.malformed:
        notes.append(f"{table.malformed} lines have another number of cells than the header, left out")
    return _Reading(columns, path, notes).taxa()


def _columns(path: Path, header: Sequence[str]) -> dict[str, str]:
    """What is read -> name of its column."""
    plain = {name.rpartition(":")[2].strip().lower(): name for name in reversed(header)}
    found = {what: next((plain[n] for n in names if n in plain), None) for what, names in HEADERS.items()}
    if found["parent"] is not None:
        found["ancestry"] = None
    if found["rank"] is not None:
        found["level"] = None
    for need in (("id",), ("parent", "ancestry"), ("rank", "level")):
        if not any(found[what] for what in need):
            names = ", ".join(name for what in need for name in HEADERS[what])
            raise ConfigError(f"data.taxonomy: {str(path)!r} has no column for {need[0]} ({names}); it has {', '.join(header[:40])}")
    return {what: name for what, name in found.items() if name is not None}


def _rest(cycle: list[int]) -> str:
    return f", with {len(cycle) - LONGEST} more before the last" if len(cycle) > LONGEST else ""


class _Reading:
    """The rows of a table on their way to `Taxa`."""

    def __init__(self, columns: dict[str, Column], path: Path, notes: list[str]) -> None:
        self.columns, self.notes = columns, notes
        self.conflicts: list[Conflict] = []
        self.number: dict[str, int] = {}
        self.row_taxon = self._numbered(columns["id"])
        if not self.number:
            raise ConfigError(f"data.taxonomy: {str(path)!r} has no ids")
        self.ids = list(self.number)
        there = np.flatnonzero(self.row_taxon >= 0)
        if len(there) < len(self.row_taxon):
            notes.append(f"{len(self.row_taxon) - len(there)} rows have no id, left out")
        self.rows = there[np.unique(self.row_taxon[there], return_index=True)[1]]  # the first row of each taxon
        self.names = self._names()
        self.absent: list[str] = []  # ids referred to that are not in the table
        self.absent_number: dict[str, int] = {}

    def _numbered(self, column: Column) -> np.ndarray:
        number = self.number
        of_value = [NONE if is_null(v) else number.setdefault(v, len(number)) for v in column.values]
        return np.array(of_value, dtype=np.int64)[column.codes]

    def taxa(self) -> Taxa:
        accepted = self._accepted()
        claimed, parent = self._ancestry() if "ancestry" in self.columns else self._parents()
        synonym = accepted != np.arange(len(accepted))
        self._two_parents(claimed, synonym)
        self._orphans(claimed[self.rows], parent, synonym)
        parent = np.where(synonym, NONE, np.append(accepted, NONE)[parent])
        own = np.flatnonzero(parent == np.arange(len(parent)))
        if len(own):
            shown = ", ".join(self._called(t) for t in own[:3].tolist())
            self.notes.append(f"{len(own)} taxa are their own parents, taken as roots: {shown}")
            parent[own] = NONE
        found = cycles(parent)
        texts = tuple(" > ".join(self._called(t) for t in (*cycle[:LONGEST], cycle[0])) + _rest(cycle) for cycle in found)
        members = tuple(tuple(cycle) for cycle in found)
        self.conflicts.append(Conflict("cycle(s) of parents", members, texts, "correct the parent of one of them"))
        parent[[t for cycle in found for t in cycle]] = NONE
        ranks, rank = self._ranks()
        return Taxa(self.ids, self.number, self.names, ranks, rank, parent, accepted, tuple(self.conflicts), tuple(self.notes))

    def _names(self) -> list[str]:
        """Cleaned; the id where the table gives none."""
        column = self.columns.get("name")
        if column is None:
            return list(self.ids)
        cleaned = [None if is_null(v) else clean_name(v) for v in column.values]
        names = [cleaned[code] for code in column.codes[self.rows].tolist()]
        nameless = names.count(None)
        if nameless:
            self.notes.append(f"{nameless} taxa have no name and are called by their ids")
        return [self.ids[t] if name is None else name for t, name in enumerate(names)]

    def _ranks(self) -> tuple[tuple[str, ...], np.ndarray]:
        if "rank" in self.columns:
            column = self.columns["rank"]
            words = ["" if is_null(v) else " ".join(v.lower().split()) for v in column.values]
        else:
            column = self.columns["level"]
            words = [rank_of_level(v) for v in column.values]
        distinct = sorted(set(words))
        return tuple(distinct), np.array([distinct.index(w) for w in words], dtype=np.int64)[column.codes[self.rows]]

    def _accepted(self) -> np.ndarray:
        """int64 [T]: where chains of synonyms end; a chain that does not end is cut where it began."""
        taxa = np.arange(len(self.ids))
        if "accepted" not in self.columns:
            return taxa
        target = self._references(self.columns["accepted"])[self.rows]
        absent = int((target < NONE).sum())
        if absent:
            self.notes.append(f"{absent} synonyms of taxa that are not in the table stand for themselves")
        target = np.where(target >= 0, target, taxa)
        end = target
        for _ in range(len(taxa).bit_length()):
            end = end[end]
        endless = target[end] != end
        if endless.any():
            self.notes.append(f"{int(endless.sum())} synonyms of each other stand for themselves")
        return np.where(endless, taxa, end)

    def _references(self, column: Column) -> np.ndarray:
        """int64 [rows]: taxon number, NONE for null, or the number of an id that is absent."""
        return np.array([NONE if is_null(v) else self._reference(v) for v in column.values], dtype=np.int64)[column.codes]

    def _reference(self, identifier: str) -> int:
        if identifier in self.number:
            return self.number[identifier]
        if identifier not in self.absent_number:
            self.absent_number[identifier] = len(self.absent)
            self.absent.append(identifier)
        return -2 - self.absent_number[identifier]

    def _parents(self) -> tuple[np.ndarray, np.ndarray]:
        """What each row claims to be its parent, int64 [rows], and the parent of each taxon, int64 [T]."""
        claimed = self._references(self.columns["parent"])
        return claimed, np.maximum(claimed[self.rows], NONE)

    def _ancestry(self) -> tuple[np.ndarray, np.ndarray]:
        """As `_parents`, of whole ancestries: where the parent is not in the table, the nearest ancestor that is takes its place."""
        column = self.columns["ancestry"]
        paths = [[] if is_null(v) else [p for p in v.replace("\\", "/").split("/") if p] for v in column.values]
        claimed = np.array([self._reference(path[-1]) if path else NONE for path in paths], dtype=np.int64)
        nearest = [next((self.number[p] for p in reversed(path) if p in self.number), NONE) for path in paths]
        self._check_ancestries(paths, column.codes[self.rows])
        return claimed[column.codes], np.array(nearest, dtype=np.int64)[column.codes[self.rows]]

    def _check_ancestries(self, paths: list[list[str]], own: np.ndarray) -> None:
        """An ancestry also says who the parents of the ancestors are, which their own rows may contradict."""
        other: dict[int, str] = {}
        for path in paths:
            last = self.number.get(path[-1]) if path else None
            if last is None or paths[own[last]] == path[:-1]:
                continue
            for parent, child in zip(("no parent", *path), path, strict=False):
                taxon = self.number.get(child)
                if taxon is None:
                    continue
                said = (paths[own[taxon]] or ["no parent"])[-1]
                if said != parent:
                    other.setdefault(taxon, f"{said} by its own ancestry, {parent} by that of others")
        texts = tuple(f"{self._called(t)} is under {text}" for t, text in other.items())
        self.conflicts.append(Conflict("id(s) with two parents", tuple((t,) for t in other), texts, "correct the ancestry"))

    def _two_parents(self, claimed: np.ndarray, synonym: np.ndarray) -> None:
        """Ids of several rows that do not say the same."""
        rows = np.flatnonzero(self.row_taxon >= 0)
        repeated = len(rows) - len(self.ids)
        if not repeated:
            return
        self.notes.append(f"{repeated} rows repeat an id; the first of each id counts")
        lowest, span = claimed.min(), np.ptp(claimed) + 1
        taxon, parent = np.divmod(np.unique(self.row_taxon[rows] * span + claimed[rows] - lowest), span)
        starts = np.searchsorted(taxon, np.arange(len(self.ids) + 1))
        several = np.flatnonzero((np.diff(starts) > 1) & ~synonym).tolist()
        under = [" and ".join(self._parent(p) for p in (parent[starts[t] : starts[t + 1]] + lowest).tolist()) for t in several]
        texts = tuple(f"{self._called(t)} is under {text}" for t, text in zip(several, under, strict=True))
        self.conflicts.append(Conflict("id(s) with two parents", tuple((t,) for t in several), texts, "keep one row of each id"))

    def _orphans(self, claimed: np.ndarray, parent: np.ndarray, synonym: np.ndarray) -> None:
        missing = np.flatnonzero((claimed < NONE) & ~synonym)
        order = missing[np.argsort(claimed[missing], kind="stable")]
        children = [group.tolist() for group in np.split(order, np.flatnonzero(np.diff(claimed[order])) + 1) if len(group)]
        texts = []
        for group in children:
            instead = f", taken to be under {self._called(int(parent[group[0]]))}" if parent[group[0]] >= 0 else ""
            texts.append(f"{self.absent[-2 - int(claimed[group[0]])]}, of {', '.join(self._called(t) for t in group[:3])}{instead}")
        self.conflicts.append(Conflict("parent(s) not in the table", tuple(tuple(group) for group in children), tuple(texts)))

    def _parent(self, reference: int) -> str:
        if reference >= 0:
            return self._called(reference)
        return "no parent" if reference == NONE else f"{self.absent[-2 - reference]} (not in the table)"

    def _called(self, taxon: int) -> str:
        return f"{self.ids[taxon]} {self.names[taxon]!r}"
