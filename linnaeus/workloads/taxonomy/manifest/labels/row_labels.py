"""Read the labels of a manifest, from columns of names, one per taxonomic rank, or from ids in a table of taxa (`data.taxonomy`).

An id may be of any rank. The id of a genus gives labels at the genus and all coarser ranks, and a missing label at the species.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.arrays.text_arrays import unique_strings
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.manifest.labels.ranks import DEFAULT_RANKS, check_lineages, tree_ranks
from linnaeus.workloads.taxonomy.manifest.labels.taxon_table import read_taxa
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import has_label, is_null, read_codes
from linnaeus.workloads.taxonomy.manifest.tables.table import Table
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


@dataclass(frozen=True)
class NameLabels:
    """Reader of labels from columns of names, one per rank."""

    columns: dict[str, str]  # rank -> column, coarse to fine
    check_order: bool  # True: raise `ConfigError` if a rank has clearly more names than the next finer one

    def unlabelled(self, table: Table, in_use: np.ndarray) -> dict[str, np.ndarray]:
        """Return reason -> bool [N], True for rows without a label. Only rows where `in_use`, bool [N], is True are considered."""
        return {"no label at any rank": in_use & ~has_label(table, self.columns)}

    def read(self, table: Table, notes: list[str], problems: list[str] | None = None) -> tuple[TaxonomyTree, np.ndarray]:
        """Return the tree of taxa and the labels, int64 [N, R], of a table whose rows all have a label. Append lines to `notes`.

        Raise `ConfigError` if the ranks are not coarse to fine; with a list `problems`, append the message to it and go on."""
        names, codes = read_codes(table, self.columns, notes)
        if self.check_order:
            try:
                check_lineages(self.columns, codes)
            except ConfigError as error:
                _refuse(error, problems)
        return TaxonomyTree.from_codes(tuple(self.columns), names, codes)


class IdLabels:
    """Reader of labels from a column of ids in a table of taxa, with the methods of `NameLabels`.

    `ConfigError` is raised by the constructor if the table cannot be read or has no rank that can be predicted, by `unlabelled` for too
    many unknown ids, and by `read` if labels use taxa whose rows in the table contradict each other."""

    def __init__(self, config: ManifestConfig) -> None:
        self.config, self.column = config, str(config.taxon_column)
        path = Path(str(config.taxonomy)).expanduser()
        self.file, self.taxa = path.name, read_taxa(path)
        self.ranks = tree_ranks(self.taxa.ranks, config.ranks)

    def unlabelled(self, table: Table, in_use: np.ndarray) -> dict[str, np.ndarray]:
        column = table.columns[self.column]
        null = np.array([is_null(v) for v in column.values], dtype=bool)[column.codes]
        unknown = (self._taxon(table) < 0) & ~null & in_use
        ids = column.text()[unknown]
        self._check_unknown(ids, int(in_use.sum()))
        reason = f"a {quoted(self.column)} that is not in the table of taxa ({_most_frequent(ids)})"
        return {f"no {quoted(self.column)}": in_use & null, reason: unknown}

    def read(self, table: Table, notes: list[str], problems: list[str] | None = None) -> tuple[TaxonomyTree, np.ndarray]:
        given = self._taxon(table)
        taxon = self.taxa.accepted[given]
        distinct, row = np.unique(taxon, return_inverse=True)
        below = self.taxa.rows_below(distinct, np.bincount(row))
        self._check_conflicts(below, problems)
        placed = self.taxa.place(distinct, below, self.ranks)
        own = [*self.taxa.notes, f"{counted(len(self.taxa.ids), 'taxon')}, {np.count_nonzero(below)} of them used"]
        own += [line for c in (*self.taxa.conflicts, *placed.conflicts) if (line := c.line(below))]
        if synonyms := int((given != taxon).sum()):
            own.append(f"{counted(synonyms, 'row')} with a synonym, replaced by its accepted taxon")
        if (inactive := ~self.taxa.active[given]).any():
            example = self.taxa.describe(int(given[np.argmax(inactive)]))
            own.append(f"{counted(inactive.sum(), 'row')} with a taxon that is not active any more, which is kept, such as {example}")
        own += self._depth_note(placed.codes[row]) + self._other_ranks_note(below)
        notes += [f"{self.file}: {note}" for note in own]
        return TaxonomyTree.from_codes(self.ranks, placed.names, placed.codes[row], placed.ids)

    def _taxon(self, table: Table) -> np.ndarray:
        """Return int64 [N]: the taxon number of each row, -1 for null and unknown ids."""
        column = table.columns[self.column]
        return np.array([self.taxa.number.get(v, -1) for v in column.values], dtype=np.int64)[column.codes]

    def _check_unknown(self, unknown: np.ndarray, rows: int) -> None:
        """Raise ConfigError if more than data.max_bad_fraction of the rows have an unknown id."""
        if len(unknown) <= self.config.max_bad_fraction * rows:
            return
        whole = str(unknown[0]).removesuffix(".0")
        hint = f"{quoted(whole)} is in it" if whole in self.taxa.number else f"its ids are {list_some([repr(i) for i in self.taxa.ids], 3)}"
        raise ConfigError(
            f"data.max_bad_fraction: {len(unknown)} of {counted(rows, 'row')} with a {quoted(self.column)} that is not in the table of "
            f"taxa {quoted(self.file)}, more than {self.config.max_bad_fraction:g}: {_most_frequent(unknown)}; {hint}; "
            "check data.taxon_column and data.taxonomy"
        )

    def _check_conflicts(self, below: np.ndarray, problems: list[str] | None) -> None:
        """Raise `ConfigError` if labels use taxa with a conflict that must be corrected first; with a list `problems`, append the messages
        to it. `below`: result of `Taxa.rows_below`."""
        for conflict in self.taxa.conflicts:
            if conflict.fix is not None and (line := conflict.line(below, only_used=True)):
                _refuse(ConfigError(f"data.taxonomy: {quoted(self.file)} has {line}; {conflict.fix}"), problems)

    def _depth_note(self, codes: np.ndarray) -> list[str]:
        """Return a line with the number of rows by their finest labelled rank; [] if this rank is the same for all rows."""
        finest = np.where(codes >= 0, np.arange(codes.shape[1]), -1).max(axis=1)
        count = np.bincount(finest + 1, minlength=len(self.ranks) + 1)
        counts = [f"{rank} {n}" for rank, n in zip(("none", *self.ranks), count.tolist(), strict=True) if n]
        return [f"rows labelled down to {', '.join(counts)}"] if len(counts) > 1 else []

    def _other_ranks_note(self, below: np.ndarray) -> list[str]:
        """Return a line about the ranks that are in the lineages of labels but not predicted: at most eight, with their numbers of taxa,
        most taxa first.

        Return [] if there are no such ranks or data.ranks is set. `below`: int64 [T], number of rows labelled with each taxon or a taxon
        below it."""
        if self.config.ranks is not None:
            return []
        used = np.bincount(self.taxa.rank[below > 0], minlength=len(self.taxa.ranks))
        others = [(rank, int(n)) for rank, n in zip(self.taxa.ranks, used, strict=True) if n and rank and rank not in self.ranks]
        shown = ", ".join(f"{rank} ({counted(n, 'taxon')})" for rank, n in sorted(others, key=lambda other: -other[1])[:8])
        return [f"ranks other than {', '.join(DEFAULT_RANKS)} are not predicted unless data.ranks contains them: {shown}"] if others else []


def _refuse(error: ConfigError, problems: list[str] | None) -> None:
    """Raise `error`, or append its message to the list `problems`."""
    if problems is None:
        raise error
    problems.append(str(error))


def _most_frequent(values: np.ndarray) -> str:
    """Return the three most frequent values with their numbers of rows, as text."""
    distinct, number = unique_strings(values)
    count = np.bincount(number)
    order = np.argsort(-count, kind="stable")
    shown = ", ".join(f"{quoted(str(distinct[i]))} ({counted(int(count[i]), 'row')})" for i in order[:3])
    return shown + (f" and {len(distinct) - 3} more" if len(distinct) > 3 else "")
