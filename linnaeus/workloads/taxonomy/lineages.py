"""Lineages as rows of integer codes: numbering of names, distinct lineages, filling of holes.

A lineage is a row of codes, int [R], coarse to fine, -1 for null. Tables have millions of rows but few distinct lineages, so
all work after `distinct_lineages` is small.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def number_names(rows: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the sorted names of each column of `rows` (names [N, R], "" for null), and the rows as codes into them, int64 [N, R]."""
    names, codes = [], np.full(rows.shape, -1, dtype=np.int64)
    for r in range(rows.shape[1]):
        values, inverse = np.unique(rows[:, r].astype(str), return_inverse=True)
        empty = int(len(values) > 0 and values[0] == "")  # "" sorts first
        names.append(values[empty:])
        codes[:, r] = inverse - empty
    return names, codes


def distinct_lineages(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows of `codes` [N, R] in lexicographic order, [U, R], and the number of each row's lineage, int64 [N]."""
    prefix = np.zeros(len(codes), dtype=np.int64)
    first = np.zeros(min(len(codes), 1), dtype=np.int64)
    for r in range(codes.shape[1]):
        column = codes[:, r].astype(np.int64) + 1
        width = int(column.max(initial=0)) + 1
        _, first, prefix = np.unique(prefix * width + column, return_index=True, return_inverse=True)
    return codes[first], prefix


def fill_holes(lineages: np.ndarray) -> np.ndarray:
    """Return the lineages [U, R] with each hole filled if the other lineages allow one name only. Otherwise an empty cell would create a
    second taxon.

    A hole is a null at a rank with a known finer rank. It gets the name that all other lineages with the same nearest finer name have
    at that rank, provided that for each known coarser name of the lineage one of them has that name, too."""
    filled = lineages.copy()
    ranks = filled.shape[1]
    for hole in range(ranks - 2, -1, -1):
        for finer in range(hole + 1, ranks):
            between = filled[:, hole + 1 : finer]
            rows = np.flatnonzero((filled[:, hole] < 0) & (filled[:, finer] >= 0) & (between < 0).all(axis=1))
            if len(rows):
                filled[rows, hole] = _unique_name(filled, rows, hole, finer)
    return filled


def _unique_name(lineages: np.ndarray, rows: np.ndarray, hole: int, finer: int) -> np.ndarray:
    """Return the only code that each of `rows` can have at rank `hole` given its code at rank `finer`; -1 if there is none or several."""
    both = lineages[(lineages[:, hole] >= 0) & (lineages[:, finer] >= 0)]
    pairs = np.unique(both[:, [finer, hole]], axis=0)
    keys, first, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    choice = np.full(int(lineages[:, finer].max()) + 1, -1, dtype=lineages.dtype)
    choice[keys[count == 1]] = pairs[first[count == 1], 1]
    found = choice[lineages[rows, finer]]
    for coarser in range(hole):  # the parent of a homonym elsewhere in the tree must not be used
        agreed = {tuple(p) for p in np.unique(both[:, [hole, coarser]], axis=0).tolist()}
        known = [code < 0 or (name, code) in agreed for name, code in zip(found.tolist(), lineages[rows, coarser].tolist(), strict=True)]
        found = np.where(known, found, -1)
    return found


def lineage_text(names: Iterable[str]) -> str:
    """Return the names joined by `|`, with `|` and backslash in a name escaped, so that distinct lineages have distinct texts."""
    return "|".join(n.replace("\\", "\\\\").replace("|", "\\|") for n in names)
