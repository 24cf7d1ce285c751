"""Clean the Darwin Core terms (columns) that describe an occurrence: taxon, date, elevation, and the quality flags of GBIF.

Cells are changed where terms contradict each other. `notes` are lines for the user with the numbers of changed rows. All columns have N
cells.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from linnaeus.errors import counted
from linnaeus.workloads.taxonomy.manifest.labels.ranks import RANK_ORDER
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import is_null, null_values
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.dates import date_range

_BINOMIAL = re.compile(r"([×x]\s?)?([^\W\d_][\w-]+)(?:\s+\([^\W\d_][\w-]+\))?\s+([×x]\s?)?([^\W\d_A-Z][\w-]+)(?=[\s.]|$)")
_OPEN = frozenset(("sp", "spp", "cf", "aff", "nr", "indet"))  # words after a genus if the species is not identified
_NOT_EPITHETS = _OPEN | {"ex", "et", "in", "var", "subsp", "ssp", "der", "den", "van", "von", "de", "la", "le", "da", "di"}
INVALID = {  # flag of GBIF for an invalid value -> terms whose cells become empty
    "COORDINATE_INVALID": ("decimalLatitude", "decimalLongitude", "coordinateUncertaintyInMeters"),
    "COORDINATE_OUT_OF_RANGE": ("decimalLatitude", "decimalLongitude", "coordinateUncertaintyInMeters"),
    "COORDINATE_UNCERTAINTY_METERS_INVALID": ("coordinateUncertaintyInMeters",),
    "RECORDED_DATE_INVALID": ("eventDate", "eventTime"),
}
ELEVATIONS = ("minimumElevationInMeters", "elevation", "elevationInMeters")
DATES = ("eventDate", "year", "month", "day")


class Name(NamedTuple):
    """Names of a species and its genus; "" for unknown."""

    genus: str
    species: str


def clean(columns: dict[str, Column], ranks: dict[str, str], notes: list[str]) -> None:
    """Clean the columns of records in place, and add columns that are derived from other columns. Append lines to `notes`.

    `ranks`: rank -> name of its column; ranks whose columns are added here are added to `ranks`."""
    count = len(next(iter(columns.values())).codes)
    for term in ("occurrenceID", "occurrenceStatus", "associatedMedia"):
        columns.setdefault(term, blank(count))
    add_names(columns, ranks, notes)
    drop_finer_ranks(columns, ranks, notes)
    fill_date(columns, notes)
    fill_elevation(columns)
    drop_invalid(columns, notes)


def name_of(genus: str, epithet: str, scientific: str, rank: str) -> Name:
    """Return genus and species, from a genus and an epithet, or else from a scientific name with or without subgenus and author.

    `rank`: rank of the scientific name. If it is above the species, the result has the species "". If it is "", a binomial names a
    species."""
    above = rank.lower() in RANK_ORDER and RANK_ORDER.index(rank.lower()) < RANK_ORDER.index("species")
    found = _BINOMIAL.match(scientific)
    parsed = None if found is None or found[4].lower() in _NOT_EPITHETS else found
    genus = "" if is_null(genus) else genus
    if not genus and rank.lower() == "genus":
        genus = scientific.lstrip("× ").split(" ")[0]
    if not genus and found and (parsed or found[4].lower() in _OPEN):
        genus = found[2]
    if above:
        return Name(genus, "")
    if not is_null(epithet) and epithet.rstrip(".").lower() not in _NOT_EPITHETS:
        return Name(genus, epithet if " " in epithet.strip("×x ") or not genus else f"{genus} {epithet}")
    return Name(genus, f"{parsed[2]} {'× ' if parsed[3] else ''}{parsed[4]}" if parsed else "")


def combined(columns: Sequence[Column], function: Callable[..., str]) -> Column:
    """Return the column of `function(cell of each column)`. `function` is called once per distinct combination of cells."""
    codes = np.stack([column.codes for column in columns], axis=1)
    distinct, inverse = np.unique(codes, axis=0, return_inverse=True)
    values = [function(*(c.values[i] for c, i in zip(columns, row, strict=True))) for row in distinct.tolist()]
    return Column(inverse.reshape(-1).astype(np.int32), values)


def add_names(columns: dict[str, Column], ranks: dict[str, str], notes: list[str]) -> None:
    """Add columns of the species and the genus, if they do not exist, from scientific names and epithets."""
    terms = (ranks.get("genus", "genus"), "specificEpithet", "scientificName", "taxonRank")
    if not columns.keys() & set(terms[1:3]):
        return
    count = len(next(iter(columns.values())).codes)
    parts = [columns.get(term, blank(count)) for term in terms]
    for place, rank in enumerate(Name._fields):
        if rank not in ranks:
            columns[rank] = combined(parts, lambda *cells, place=place: name_of(*cells)[place])
            ranks[rank] = rank
            notes.append(f"{rank} from names and epithets: {_known(columns[rank])} of {count} records")


def drop_finer_ranks(columns: dict[str, Column], ranks: dict[str, str], notes: list[str]) -> None:
    """Make cells empty at the ranks that are finer than the `taxonRank` of the record. `ranks`: rank -> name of its column."""
    if "taxonRank" not in columns:
        return
    given = columns["taxonRank"]
    order = [RANK_ORDER.index(value.lower()) if value.lower() in RANK_ORDER else len(RANK_ORDER) for value in given.values]
    place = np.array(order, dtype=np.int64)[given.codes]
    dropped = np.zeros(len(place), dtype=bool)
    for rank, term in ranks.items():
        finer = (RANK_ORDER.index(rank) > place) & ~_nulls(columns[term])
        columns[term] = emptied(columns[term], finer)
        dropped |= finer
    if dropped.any():
        notes.append(f"not used: names of finer ranks than taxonRank, in {counted(int(dropped.sum()), 'record')}")


def drop_invalid(columns: dict[str, Column], notes: list[str]) -> None:
    """Make the cells empty that GBIF flags as invalid (`INVALID`). Other flags are only counted in `notes`."""
    if "issue" not in columns:
        return
    issue = columns["issue"]
    flags = [set(re.split(r"[;|,\s]+", value.upper())) - {""} for value in issue.values]
    rows = np.bincount(issue.codes, minlength=len(flags))
    for flag, terms in INVALID.items():
        flagged = np.array([flag in own for own in flags], dtype=bool)[issue.codes]
        changed = np.zeros(len(flagged), dtype=bool)
        for term in terms:
            if term in columns:
                changed |= flagged & ~_nulls(columns[term])
                columns[term] = emptied(columns[term], flagged)
        if changed.any():
            notes.append(
                f"{counted(changed.sum(), 'record')} flagged {flag} by GBIF: {', '.join(t for t in terms if t in columns)} set to missing"
            )
    others: dict[str, int] = {}
    for own, n in zip(flags, rows.tolist(), strict=True):
        for flag in own - INVALID.keys():
            others[flag] = others.get(flag, 0) + n
    if others:
        shown = ", ".join(f"{flag} ({n})" for flag, n in sorted(others.items(), key=lambda item: (-item[1], item[0]))[:6])
        notes.append(f"other flags of GBIF, for which nothing is left out: {shown}{' and more' if len(others) > 6 else ''}")


def fill_date(columns: dict[str, Column], notes: list[str]) -> None:
    """Fill empty cells of `eventDate`, and cells with only the same year or month, with the year, the month and, if known, the day."""
    if not {"year", "month"} <= columns.keys():
        return
    count = len(columns["year"].codes)
    whole = combined([columns.get(term, blank(count)) for term in DATES[1:]], _iso_date)
    given = columns.get("eventDate", blank(len(whole.codes)))
    new = combined([given, whole], lambda own, full: full if is_null(own) or _completes(own, full) else "")
    columns["eventDate"] = first_known(new, given)
    if added := _known(new):
        notes.append(f"{counted(added, 'date')} from year, month and day")


def fill_elevation(columns: dict[str, Column]) -> None:
    """Fill the empty cells of the first term of `ELEVATIONS` that exists from the other terms."""
    terms = [term for term in ELEVATIONS if term in columns]
    for other in terms[1:]:
        columns[terms[0]] = first_known(columns[terms[0]], columns[other])


def are_absent(columns: dict[str, Column]) -> np.ndarray:
    """Return bool [N]: True for records with occurrenceStatus "absent": the organism was searched for and not found."""
    status = columns["occurrenceStatus"]
    return np.array([value.lower() == "absent" for value in status.values], dtype=bool)[status.codes]


def first_known(first: Column, second: Column) -> Column:
    """Return a column with the cells of `first`; where a cell of `first` is null, with the cell of `second`."""
    codes = np.where(_nulls(first), second.codes + len(first.values), first.codes)
    return Column(codes.astype(np.int32), [*first.values, *second.values])


def concatenated(columns: Sequence[Column]) -> Column:
    """Return a column with the cells of several columns, one after the other."""
    start = np.cumsum([0, *(len(column.values) for column in columns)])
    codes = [column.codes + s for column, s in zip(columns, start[:-1].tolist(), strict=True)]
    return Column(np.concatenate(codes).astype(np.int32), [value for column in columns for value in column.values])


def emptied(column: Column, where: np.ndarray) -> Column:
    """Return the column with empty cells where `where`, bool [N], is True."""
    if not where.any():
        return column
    return Column(np.where(where, len(column.values), column.codes).astype(np.int32), [*column.values, ""])


def _completes(own: str, full: str) -> bool:
    """Return True if `full`, a possible date or month, is in the year or the month `own`."""
    return full.startswith(f"{own}-") and not isinstance(date_range(full), str)


def _iso_date(year: str, month: str, day: str) -> str:
    """Return a date, or a month if the day is null or 0, as some archives write an unknown day; "" if a cell is not a whole number."""
    numbers = [text.removesuffix(".0") for text in (year, month, *([] if is_null(day) or not day.strip("0.") else [day]))]
    if not all(n.isascii() and n.isdecimal() and len(n) <= size for n, size in zip(numbers, (4, 2, 2), strict=False)):
        return ""
    return "-".join(n.zfill(size) for n, size in zip(numbers, (4, 2, 2), strict=False))


def blank(count: int) -> Column:
    """Return a column of empty cells."""
    return Column(np.zeros(count, dtype=np.int32), [""])


def _nulls(column: Column) -> np.ndarray:
    return null_values(column.values)[column.codes]


def _known(column: Column) -> int:
    return int((~_nulls(column)).sum())
