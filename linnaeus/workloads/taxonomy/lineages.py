"""Rows of taxon names as numbers: factorising, distinct lineages, holes filled from other rows, names in conflict.

A lineage is a row of codes, int [R], coarse to fine, -1 for null. Tables have millions of rows and few distinct lineages, so
everything after `distinct_lineages` is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np


def number_names(rows: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Sorted names of each column of `rows` (names [N, R], "" for null) and the rows as codes into them, int64 [N, R]."""
    names, codes = [], np.full(rows.shape, -1, dtype=np.int64)
    for r in range(rows.shape[1]):
        values, inverse = np.unique(rows[:, r].astype(str), return_inverse=True)
        empty = int(len(values) > 0 and values[0] == "")  # "" sorts first
        names.append(values[empty:])
        codes[:, r] = inverse - empty
    return names, codes


def distinct_lineages(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows of `codes` [N, R] in lexicographic order, [U, R], and the number of each row's lineage, int64 [N]."""
    prefix = np.zeros(len(codes), dtype=np.int64)
    first = np.zeros(min(len(codes), 1), dtype=np.int64)
    for r in range(codes.shape[1]):
        column = codes[:, r].astype(np.int64) + 1
        width = int(column.max(initial=0)) + 1
        _, first, prefix = np.unique(prefix * width + column, return_index=True, return_inverse=True)
    return codes[first], prefix


def fill_holes(lineages: np.ndarray) -> np.ndarray:
    """The lineages [U, R] with holes filled where the others leave one choice, so that a cell left empty makes no second taxon.

    A hole (null at a rank while a finer one is known) takes the name that all other lineages with the same nearest finer name
    have there, provided one of them also agrees with the nearest coarser name the lineage does have."""
    filled = lineages.copy()
    ranks = filled.shape[1]
    for hole in range(ranks - 2, -1, -1):
        for finer in range(hole + 1, ranks):
            between = filled[:, hole + 1 : finer]
            rows = np.flatnonzero((filled[:, hole] < 0) & (filled[:, finer] >= 0) & (between < 0).all(axis=1))
            if len(rows):
                filled[rows, hole] = _only_choice(filled, rows, hole, finer)
    return filled


def _only_choice(lineages: np.ndarray, rows: np.ndarray, hole: int, finer: int) -> np.ndarray:
    """The code each of `rows` must have at `hole` given its code at `finer`, -1 where there is none or more than one."""
    both = lineages[(lineages[:, hole] >= 0) & (lineages[:, finer] >= 0)]
    pairs = np.unique(both[:, [finer, hole]], axis=0)
    keys, first, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    choice = np.full(int(lineages[:, finer].max()) + 1, -1, dtype=lineages.dtype)
    choice[keys[count == 1]] = pairs[first[count == 1], 1]
    found = choice[lineages[rows, finer]]
    for coarser in range(hole):  # a homonym elsewhere in the tree must not lend its parent
        agreed = {tuple(p) for p in np.unique(both[:, [hole, coarser]], axis=0).tolist()}
        known = [code < 0 or (name, code) in agreed for name, code in zip(found.tolist(), lineages[rows, coarser].tolist(), strict=True)]
        found = np.where(known, found, -1)
    return found


def lineage_text(names: Iterable[str]) -> str:
    """The names joined by `|`; a `|` or backslash inside a name is escaped, so that distinct lineages have distinct texts."""
    return "|".join(n.replace("\\", "\\\\").replace("|", "\\|") for n in names)


def conflicting_names(rank: str, names: Sequence[str], lineage_id: Callable[[int], str], rows: np.ndarray) -> list[str]:
    """A line on the names of a rank that belong to several taxa, with up to three examples and the rows of each; or nothing."""
    _, inverse, count = np.unique(np.asarray(names, dtype=str), return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(count > 1)
    if not len(repeated):
        return []
    examples = []
    for name in repeated[:3]:
        taxa = np.flatnonzero(inverse == name)
        examples.append(", ".join(f"{lineage_id(int(c))} ({rows[c]} rows)" for c in taxa[:4]))
    more = f"; and {len(repeated) - 3} more" if len(repeated) > 3 else ""
    return [f"{rank}: {len(repeated)} name(s) under several parents, kept apart as different taxa: {'; '.join(examples)}{more}"]
