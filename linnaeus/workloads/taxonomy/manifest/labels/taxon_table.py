"""Read a table of taxa: ids with parent ids (GBIF and other Darwin Core tables) or with the ids of all ancestors (iNaturalist).

Names of the columns that are recognised:

    id              taxonID, taxon_id, id
    parent          parentNameUsageID, parent_id, parent; or `ancestry`: ids from the root down, between / or backslashes
    rank            taxonRank, rank; or iNaturalist's `rank_level` (10 species, 20 genus, 30 family, ...)
    name            name, canonicalName, scientificName; a taxon without a name gets its id as name
    accepted        acceptedNameUsageID, for synonyms: a label that is a synonym is replaced by its accepted taxon
    active          false for a taxon that iNaturalist replaced: labels that still refer to it are used unchanged, and counted

Case and prefixes (`dwc:`, `col:`) in the header are ignored. Ids are texts: 007 is not 7. Contradictions in the table are collected as
`Conflict`s; some conflicts are errors if labels use their taxa.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted, shorten
from linnaeus.workloads.taxonomy.manifest.labels.ranks import rank_of_level
from linnaeus.workloads.taxonomy.manifest.labels.taxa import Conflict, Taxa, cycles
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import clean_name, is_null
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.table import read_table

HEADERS = {
    "id": ("taxonid", "taxon_id", "id"),
    "parent": ("parentnameusageid", "parent_id", "parentid", "parent_taxon_id", "parent"),
    "ancestry": ("ancestry",),
    "accepted": ("acceptednameusageid", "accepted_id", "accepted_taxon_id"),
    "rank": ("taxonrank", "rank", "taxon_rank"),
    "level": ("rank_level",),
    "active": ("active",),
    "name": ("name", "canonicalname", "scientificname", "scientific_name", "taxon_name"),
}
LONGEST_CYCLE = 6  # taxa of a cycle in a message
NONE = -1  # no parent; references below -1: -2 - i is the i-th id that is not in the table


def read_taxa(path: Path) -> Taxa:
    """Return the taxa in a CSV, TSV or Parquet table.

    Raise `ConfigError` if the table cannot be read or has no column of ids, parents or ranks."""
    found: dict[str, str] = {}

    def choose(header: Sequence[str]) -> tuple[str, ...]:
        found.update(_find_columns(path, header))
        return tuple(found.values())

    table = read_table(path, choose, key="data.taxonomy")
    columns = {field: table.columns[name] for field, name in found.items()}
    notes = list(table.notes)
    notes += [f"{counted(count, 'row')} left out: {reason}" for reason, count in table.excluded.items()]
    return _TaxaBuilder(columns, path, notes).build()


def _find_columns(path: Path, header: Sequence[str]) -> dict[str, str]:
    """Return key of `HEADERS` -> name of the column. Raise `ConfigError` if a required column does not exist."""
    plain = {name.rpartition(":")[2].strip().lower(): name for name in reversed(header)}
    found = {field: next((plain[n] for n in names if n in plain), None) for field, names in HEADERS.items()}
    if found["parent"] is not None:
        found["ancestry"] = None
    if found["rank"] is not None:
        found["level"] = None
    for alternatives in (("id",), ("parent", "ancestry"), ("rank", "level")):
        if not any(found[field] for field in alternatives):
            names = ", ".join(name for field in alternatives for name in HEADERS[field])
            raise ConfigError(
                f"data.taxonomy: {quoted(str(path), 200)} does not have a column for {alternatives[0]} ({names}); "
                f"the columns are {list_some(header)}"
            )
    return {field: name for field, name in found.items() if name is not None}


class _TaxaBuilder:
    """Builder of `Taxa` from the columns of a table of taxa. Contradictions in the table are collected in `conflicts`."""

    def __init__(self, columns: dict[str, Column], path: Path, notes: list[str]) -> None:
        self.columns, self.notes = columns, notes
        self.conflicts: list[Conflict] = []
        self.number: dict[str, int] = {}  # id -> taxon number
        column = columns["id"]
        occurs = np.bincount(column.codes, minlength=len(column.values)).tolist()  # 0 for the ids of rows that were left out
        cells = zip(column.values, occurs, strict=True)
        of_value = [self.number.setdefault(v, len(self.number)) if n and not is_null(v) else NONE for v, n in cells]
        self.row_taxon = np.array(of_value, dtype=np.int64)[column.codes]  # NONE for a null id
        if not self.number:
            raise ConfigError(f"data.taxonomy: {quoted(str(path), 200)} does not contain any id; choose a table whose id column has values")
        self.ids = list(self.number)
        with_id = np.flatnonzero(self.row_taxon >= 0)
        if absent := len(self.row_taxon) - len(with_id):
            notes.append(f"{counted(absent, 'row')} without an id left out")
        self.rows = with_id[np.unique(self.row_taxon[with_id], return_index=True)[1]]  # the first row of each taxon
        self.names = self._read_names()
        self.absent: dict[str, int] = {}  # referenced id that is not in the table -> i

    def build(self) -> Taxa:
        """Return the taxa: parents without cycles, the accepted taxon of each synonym, and all conflicts and notes."""
        accepted = self._accepted_taxa()
        if "ancestry" in self.columns:
            stated, parent = self._parents_from_ancestry()
        else:
            stated = self._references(self.columns["parent"])
            parent = np.maximum(stated[self.rows], NONE)
        self.absent_ids = list(self.absent)
        synonym = accepted != np.arange(len(accepted))
        self._check_repeated_ids(stated, synonym)
        self._check_absent_parents(stated[self.rows], parent, synonym)
        parent = np.where(synonym, NONE, np.append(accepted, NONE)[parent])
        if len(own := np.flatnonzero(parent == np.arange(len(parent)))):
            shown = ", ".join(self._describe(t) for t in own[:3].tolist())
            self.notes.append(f"roots, because each is its own parent: {counted(len(own), 'taxon')} ({shown})")
            parent[own] = NONE
        found = cycles(parent)
        cases = [(cycle, self._describe_cycle(cycle)) for cycle in found]
        self.conflicts.append(Conflict("cycle", "of parents", cases, "correct the parent of one of them"))
        parent[[t for cycle in found for t in cycle]] = NONE
        ranks, rank = self._read_ranks()
        lines = tuple(self.conflicts), tuple(self.notes)
        return Taxa(self.ids, self.number, self.names, ranks, rank, parent, accepted, self._read_active(), *lines)

    def _read_names(self) -> list[str]:
        """Return the cleaned name of each taxon, or its id if it has no name."""
        column = self.columns.get("name")
        if column is None:
            return list(self.ids)
        cleaned = [None if is_null(v) else clean_name(v) for v in column.values]
        names = [cleaned[code] for code in column.codes[self.rows].tolist()]
        if nameless := names.count(None):
            self.notes.append(f"{counted(nameless, 'taxon')} without a name, named by id")
        return [self.ids[t] if name is None else name for t, name in enumerate(names)]

    def _read_ranks(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Return the distinct ranks, and the index of each taxon's rank among them, int64 [T]."""
        if "rank" in self.columns:
            column = self.columns["rank"]
            words = ["" if is_null(v) else " ".join(v.lower().split()) for v in column.values]
        else:
            column = self.columns["level"]
            words = [rank_of_level(v) for v in column.values]
        distinct = sorted(set(words))
        return tuple(distinct), np.array([distinct.index(w) for w in words], dtype=np.int64)[column.codes[self.rows]]

    def _read_active(self) -> np.ndarray:
        """Return bool [T]: False for taxa with "false" (or "f", "0") in the column `active`."""
        if "active" not in self.columns:
            return np.ones(len(self.ids), dtype=bool)
        column = self.columns["active"]
        return np.array([v.lower() not in ("false", "f", "0") for v in column.values], dtype=bool)[column.codes[self.rows]]

    def _accepted_taxa(self) -> np.ndarray:
        """Return the accepted taxon of each taxon, int64 [T]: the end of its chain of synonyms; the taxon itself if the chain is a
        cycle."""
        taxa = np.arange(len(self.ids))
        if "accepted" not in self.columns:
            return taxa
        target = self._references(self.columns["accepted"])[self.rows]
        if absent := int((target < NONE).sum()):
            self.notes.append(f"kept as taxa, because the accepted taxon is not in the table: {counted(absent, 'synonym')}")
        target = np.where(target >= 0, target, taxa)
        end = target
        for _ in range(len(taxa).bit_length()):
            end = end[end]
        endless = target[end] != end
        if endless.any():
            self.notes.append(f"kept as taxa, because the chain of synonyms is endless: {counted(endless.sum(), 'synonym')}")
        return np.where(endless, taxa, end)

    def _references(self, column: Column) -> np.ndarray:
        """Convert a column of ids to taxon numbers, int64 [rows]: `NONE` for null, -2 - i for the i-th id that is not in the table."""
        return np.array([NONE if is_null(v) else self._reference(v) for v in column.values], dtype=np.int64)[column.codes]

    def _reference(self, identifier: str) -> int:
        if identifier in self.number:
            return self.number[identifier]
        return -2 - self.absent.setdefault(identifier, len(self.absent))

    def _parents_from_ancestry(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the stated parent of each row, int64 [rows], and the parent of each taxon, int64 [T]. Add a conflict if ancestries
        contradict each other.

        The stated parent is the last id of the ancestry, as `_references` converts it. The parent of a taxon is its nearest ancestor that
        is in the table, `NONE` without such an ancestor."""
        column = self.columns["ancestry"]
        paths = [[] if is_null(v) else [p for p in v.replace("\\", "/").split("/") if p] for v in column.values]
        stated = np.array([self._reference(path[-1]) if path else NONE for path in paths], dtype=np.int64)
        nearest = [next((self.number[p] for p in reversed(path) if p in self.number), NONE) for path in paths]
        self._check_ancestries(paths, column.codes[self.rows])
        return stated[column.codes], np.array(nearest, dtype=np.int64)[column.codes[self.rows]]

    def _check_ancestries(self, paths: list[list[str]], own: np.ndarray) -> None:
        """Add a conflict if the ancestry of a taxon gives an ancestor another parent than the ancestor's own row does.

        `paths`: the distinct ancestries, each a list of ids. `own`: int64 [T], index in `paths` of the ancestry of each taxon."""
        other: dict[int, str] = {}
        for path in paths:
            last = self.number.get(path[-1]) if path else None
            if last is None or paths[own[last]] == path[:-1]:
                continue
            for parent, child in zip(("no parent", *path), path, strict=False):
                taxon = self.number.get(child)
                if taxon is None:
                    continue
                own_parent = (paths[own[taxon]] or ["no parent"])[-1]
                if own_parent != parent:
                    other.setdefault(taxon, f"{shorten(own_parent)} in its own ancestry, {shorten(parent)} in that of others")
        cases = [((t,), f"{self._describe(t)} is under {text}") for t, text in other.items()]
        self.conflicts.append(Conflict("id", "with two parents", cases, "correct the ancestry"))

    def _check_repeated_ids(self, stated: np.ndarray, synonym: np.ndarray) -> None:
        """Add a conflict with the ids that occur in several rows with different parents.

        `stated`: int64 [rows], parent of each row as `_references` returns it. `synonym`: bool [T], True for taxa to leave out."""
        rows = np.flatnonzero(self.row_taxon >= 0)
        if not (repeated := len(rows) - len(self.ids)):
            return
        self.notes.append(f"{counted(repeated, 'row')} with the id of an earlier row; the first row of each id is used")
        lowest, span = stated.min(), np.ptp(stated) + 1
        taxon, parent = np.divmod(np.unique(self.row_taxon[rows] * span + stated[rows] - lowest), span)
        starts = np.searchsorted(taxon, np.arange(len(self.ids) + 1))
        cases = []
        for t in np.flatnonzero((np.diff(starts) > 1) & ~synonym).tolist():
            parents = [self._describe(p) for p in (parent[starts[t] : starts[t + 1]] + lowest).tolist()]
            cases.append(((t,), f"{self._describe(t)} is under {' and '.join(parents)}"))
        self.conflicts.append(Conflict("id", "with two parents", cases, "keep one row of each id"))

    def _check_absent_parents(self, stated: np.ndarray, parent: np.ndarray, synonym: np.ndarray) -> None:
        """Add a conflict with the taxa whose stated parent is not in the table.

        `stated`: int64 [T], as `_references` returns it. `parent`: int64 [T], parent that is used. `synonym`: bool [T], True for taxa to
        leave out."""
        missing = np.flatnonzero((stated < NONE) & ~synonym)
        order = missing[np.argsort(stated[missing], kind="stable")]
        children = [group.tolist() for group in np.split(order, np.flatnonzero(np.diff(stated[order])) + 1) if len(group)]
        cases = []
        for group in children:
            instead = f", placed under {self._describe(int(parent[group[0]]))}" if parent[group[0]] >= 0 else ""
            missing_id = self.absent_ids[-2 - int(stated[group[0]])]
            cases.append((group, f"{shorten(missing_id)}, of {', '.join(self._describe(t) for t in group[:3])}{instead}"))
        self.conflicts.append(Conflict("parent", "not in the table", cases))

    def _describe(self, reference: int) -> str:
        if reference >= 0:
            return f"{shorten(self.ids[reference])} {quoted(self.names[reference])}"
        return "no parent" if reference == NONE else f"{shorten(self.absent_ids[-2 - reference])} (not in the table)"

    def _describe_cycle(self, cycle: list[int]) -> str:
        more = f", with {len(cycle) - LONGEST_CYCLE} more before the last" if len(cycle) > LONGEST_CYCLE else ""
        return " > ".join(self._describe(t) for t in (*cycle[:LONGEST_CYCLE], cycle[0])) + more
