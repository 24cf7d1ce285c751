"""From cells to labels and metadata: what means null, what is impossible, and how often each occurred.

Nothing impossible is passed on and nothing is dropped unsaid: each reason has a count and the first row it was met in.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.lineages import distinct_lineages, fill_holes
from linnaeus.workloads.taxonomy.manifest.columns import Columns
from linnaeus.workloads.taxonomy.manifest.dates import day_of_year, hour_of_day
from linnaeus.workloads.taxonomy.manifest.table import Column, Table
from linnaeus.workloads.taxonomy.observations import Metadata

NULLS = frozenset(
    (
        *("", "-", "--", "?", ".", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "nat", "<na>", "missing", "undefined", "unknown"),
        *("unidentified", "undetermined", "unassigned", "not identified", "not determined", "indet", "indet.", "incertae sedis"),
        r"\n",  # MySQL exports write \N
    )
)
_UNDETERMINED = re.compile(r".*\bs(?:p|pp)\.?$", re.IGNORECASE)  # "Quercus sp." is no species
HALF_EARTH = 20_037_508.0  # metres; no coordinate is less certain than half the circumference
LOWEST, HIGHEST = -11_000.0, 9_000.0  # metres; the Challenger Deep and Everest lie inside


class Tally:
    """Counts rows by reason and remembers the first of each. `names` [N] are the rows' names."""

    def __init__(self, names: np.ndarray) -> None:
        self.names = names
        self.counts: dict[str, int] = {}
        self.first: dict[str, str] = {}

    def add(self, reason: str, rows: np.ndarray) -> None:
        """Count the rows where `rows`, bool [N], is set."""
        if rows.any():
            self.counts[reason] = self.counts.get(reason, 0) + int(rows.sum())
            self.first.setdefault(reason, str(self.names[int(np.argmax(rows))]))

    def notes(self) -> list[str]:
        return [f"{reason}: {n} of {len(self.names)} rows, first {self.first[reason]}" for reason, n in self.counts.items()]


def is_null(cell: str) -> bool:
    return cell.lower() in NULLS


def clean_name(cell: str) -> str:
    """A taxon's name with single spaces, in Unicode's composed form; "" where the cell means null."""
    name = " ".join(unicodedata.normalize("NFC", cell).split())
    return "" if is_null(name) or _UNDETERMINED.match(name) else name


def labelled(table: Table, columns: Columns) -> np.ndarray:
    """bool [N]: the row names a taxon at some rank."""
    named = np.zeros(len(table), dtype=bool)
    for column in (table.columns[c] for c in columns.ranks.values()):
        named |= np.array([clean_name(value) != "" for value in column.values], dtype=bool)[column.codes]
    return named


def read_codes(table: Table, columns: Columns) -> tuple[list[np.ndarray], np.ndarray, list[str]]:
    """Sorted names per rank, the rows as codes into them (int64 [N, R], -1 null), and notes. Holes that other rows fill are filled."""
    names, codes = [], np.full((len(table), len(columns.ranks)), -1, dtype=np.int64)
    for r, column in enumerate(table.columns[c] for c in columns.ranks.values()):
        values, number = np.unique(np.array([clean_name(v) for v in column.values], dtype=str), return_inverse=True)
        empty = int(len(values) > 0 and values[0] == "")
        names.append(values[empty:])
        codes[:, r] = (number - empty)[column.codes]
    notes = [f"{rank}: {n} of {len(table)} rows have no name" for rank, n in zip(columns.ranks, (codes < 0).sum(axis=0), strict=True) if n]
    notes += [note for rank, values in zip(columns.ranks, names, strict=True) for note in _capitals(rank, values)]
    lineages, row_lineage = distinct_lineages(codes)
    filled = fill_holes(lineages)
    changed = int((filled != lineages).any(axis=1)[row_lineage].sum())
    if changed:
        notes.append(f"{changed} rows name a taxon but not all its ancestors; these were taken from other rows of the same taxon")
    return names, filled[row_lineage], notes


def _capitals(rank: str, names: np.ndarray) -> list[str]:
    _, inverse, count = np.unique([n.casefold() for n in names.tolist()], return_inverse=True, return_counts=True)
    alike = [names[inverse == i].tolist() for i in np.flatnonzero(count > 1)[:3]]
    return [f"{rank}: names that differ only in capitals are different taxa: {'; '.join(' / '.join(a) for a in alike)}"] if alike else []


def clean_metadata(table: Table, columns: Columns, elevation_missing: float | None, tally: Tally) -> Metadata:
    """Metadata with NaN for what is absent or impossible; the latter goes into `tally`."""
    latitude, longitude = _coordinates(table, columns, tally)
    uncertainty = _numbers(table, columns.uncertainty, "uncertainty", tally)
    _void(uncertainty, uncertainty < 0, "negative uncertainty, taken as missing", tally)
    _void(uncertainty, uncertainty > HALF_EARTH, "uncertainty beyond half the Earth, taken as missing", tally)
    uncertainty[np.isnan(latitude)] = np.nan
    elevation = _numbers(table, columns.elevation, "elevation", tally)
    if elevation_missing is not None:
        _void(elevation, elevation == elevation_missing, f"elevation of {elevation_missing:g}, which means missing", tally)
    _void(elevation, (elevation < LOWEST) | (elevation > HIGHEST), "impossible elevation, taken as missing", tally)
    day = _parsed(table, columns.date, day_of_year, "date", tally)
    hour = _parsed(table, columns.time, hour_of_day, "time", tally)
    known = ~np.isnan(hour)
    if known.sum() > 1 and not hour[known].any():  # a column of nothing but midnight says nothing
        _void(hour, known, "every time is midnight, taken as missing", tally)
    quantities = (latitude, longitude, uncertainty, day, hour, elevation)
    return Metadata(*(quantity.astype(np.float32) for quantity in quantities))


def clean_weights(table: Table, columns: Columns, tally: Tally) -> np.ndarray | None:
    """float64 [N], at least 0, of `data.weight_column`; None without one. What is no number is tallied and NaN, to be taken as 1."""
    if columns.weight is None:
        return None
    weights = _numbers(table, columns.weight, "weight", tally)
    if (weights < 0).any():
        row = int(np.argmax(weights < 0))
        raise ConfigError(
            f"data.weight_column: {columns.weight!r} of {tally.names[row]} is {weights[row]:g}; a weight is at least 0, or empty for 1"
        )
    return weights


def _coordinates(table: Table, columns: Columns, tally: Tally) -> tuple[np.ndarray, np.ndarray]:
    latitude = _numbers(table, columns.latitude, "latitude", tally)
    longitude = _numbers(table, columns.longitude, "longitude", tally)
    _void(latitude, np.abs(latitude) > 90, "latitude outside [-90, 90], coordinates taken as missing", tally)
    _void(longitude, np.abs(longitude) > 180, "longitude outside [-180, 180], coordinates taken as missing", tally)
    _void(latitude, (latitude == 0) & (longitude == 0), "suspicious coordinates 0, 0, taken as missing", tally)
    absent = np.isnan(latitude) | np.isnan(longitude)
    latitude[absent] = longitude[absent] = np.nan
    return latitude, longitude


def _void(values: np.ndarray, where: np.ndarray, reason: str, tally: Tally) -> None:
    tally.add(reason, where)
    values[where] = np.nan


def _numbers(table: Table, column: str | None, what: str, tally: Tally) -> np.ndarray:
    """float64 [N], NaN where null or not a finite number."""
    if column is None:
        return np.full(len(table), np.nan)
    return _parsed(table, column, lambda text: _number(text, table.decimal_comma), what, tally)


def _number(text: str, decimal_comma: bool) -> float | str:
    if decimal_comma and text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    return value if math.isfinite(value) else "not a number"


def _parsed(table: Table, name: str | None, parse: Callable[[str], float | str], what: str, tally: Tally) -> np.ndarray:
    """float64 [N]: `parse` of each distinct cell, NaN where it is null or `parse` gives a reason instead; reasons are tallied."""
    if name is None:
        return np.full(len(table), np.nan)
    column: Column = table.columns[name]
    parsed = [math.nan if is_null(value) else parse(value) for value in column.values]
    reasons = sorted({p for p in parsed if isinstance(p, str)})
    kind = np.array([reasons.index(p) if isinstance(p, str) else -1 for p in parsed], dtype=np.int64)[column.codes]
    for number, reason in enumerate(reasons):
        tally.add(f"{what}: {reason}, taken as missing", kind == number)
    return np.array([math.nan if isinstance(p, str) else p for p in parsed])[column.codes]
