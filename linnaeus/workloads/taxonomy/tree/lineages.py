"""Number the names of lineages, find the distinct lineages, and fill holes in them.

Lineages are numbered as rows of codes, int [R], coarse to fine, -1 for null. Tables have millions of rows but few distinct lineages, so all
work after `distinct_lineages` is small."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from linnaeus.workloads.taxonomy.arrays.text_arrays import unique_strings

BLOCK = 1 << 16  # rows that are sorted together


def number_names(rows: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the sorted names of each column of `rows` (names [N, R], "" for null), and int64 [N, R]: the index of each name, -1 for
    null."""
    columns = [number_column(rows[:, r].astype(str)) for r in range(rows.shape[1])]
    return [names for names, _ in columns], np.stack([codes for _, codes in columns], 1)


def number_column(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted names among `values` (texts [N], "" for null), and the values as indices of these names, int64 [N], -1 for null."""
    names, inverse = unique_strings(values)
    empty = int(len(names) > 0 and names[0] == "")  # "" sorts first
    return names[empty:], inverse - empty


def distinct_lineages(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the U distinct rows of `codes` [N, R], sorted, [U, R], and for each of the N rows the number of its distinct row, int64
    [N]."""
    found, number, count = [codes[:0]], np.empty(len(codes), dtype=np.int64), 0
    for first in range(0, len(codes), BLOCK):
        rows, own = _distinct_rows(codes[first : first + BLOCK])
        number[first : first + BLOCK] = own + count
        found.append(rows)
        count += len(rows)
    lineages, of_found = _distinct_rows(np.concatenate(found))
    return lineages, of_found[number]


def _distinct_rows(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the result of `distinct_lineages`. All rows are sorted at once, which takes about 60 bytes for each."""
    prefix = np.zeros(len(codes), dtype=np.int64)
    first = np.zeros(min(len(codes), 1), dtype=np.int64)
    for r in range(codes.shape[1]):
        column = codes[:, r].astype(np.int64) + 1
        width = int(column.max(initial=0)) + 1
        _, first, prefix = np.unique(prefix * width + column, return_index=True, return_inverse=True)
    return codes[first], prefix


def fill_holes(lineages: np.ndarray) -> np.ndarray:
    """Return the lineages, [U, R], with each hole filled if the other lineages allow only one name. A lineage whose hole is not filled
    becomes a separate taxon.

    A hole is a null at a rank with a known finer rank. Let `finer` be the nearest known finer name of the lineage. The hole gets a name if
    all lineages with `finer` that have a name at the rank of the hole have this same name. In addition, each known coarser name of the
    lineage must occur together with this name in one of the other lineages. If it has no coarser name, this must hold for all lineages with
    `finer` and this hole: otherwise `finer` is the name of several taxa."""
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
    """Return for each of `rows` the code at rank `hole` that follows from its code at rank `finer` (see `fill_holes`), int [rows]; -1 if no
    code, or several codes, are possible."""
    both = lineages[(lineages[:, hole] >= 0) & (lineages[:, finer] >= 0)]
    size = int(lineages[:, finer].max()) + 1
    low, high = np.full(size, np.iinfo(lineages.dtype).max, lineages.dtype), np.full(size, -1, lineages.dtype)
    np.minimum.at(low, both[:, finer], both[:, hole])
    np.maximum.at(high, both[:, finer], both[:, hole])
    searched = np.zeros(size + 1, dtype=bool)  # the last is of -1
    searched[lineages[rows, finer]] = True
    without = np.flatnonzero((lineages[:, hole] < 0) & searched[lineages[:, finer]])  # `rows`, and others with a name between the ranks
    below = lineages[without, finer]
    only = np.where(low == high, low, -1)[below]
    found, placed = only, np.zeros(len(without), dtype=bool)
    wanted = np.zeros(int(lineages[:, hole].max(initial=-1)) + 2, dtype=bool)  # names that may be filled in; the last is of -1
    wanted[found] = True
    both = both[wanted[:-1][both[:, hole]]]
    for coarser in range(hole):  # the parent of a homonym elsewhere in the tree must not be used
        code = lineages[without, coarser]
        placed |= code >= 0
        width = int(lineages[:, coarser].max()) + 2
        pairs = [name.astype(np.int64) * width + above + 1 for name, above in ((found, code), (both[:, hole], both[:, coarser]))]
        found = np.where((code < 0) | np.isin(*pairs), found, -1)
    several = np.zeros(size, dtype=bool)  # finer names that also occur under other ancestors
    several[below[(only >= 0) & (found < 0)]] = True
    found = np.where(placed | ~several[below], found, -1)
    return found[np.searchsorted(without, rows)]


def lineage_text(names: Iterable[str]) -> str:
    """Return the names joined by `|`. `|` and backslash in a name are escaped, so that distinct lineages have distinct texts."""
    return "|".join(n.replace("\\", "\\\\").replace("|", "\\|") for n in names)
