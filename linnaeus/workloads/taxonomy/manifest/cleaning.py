"""Convert the cells of a manifest to names of taxa, metadata and weights.

Dates and times are ISO 8601, and what occurs in practice: partial dates, intervals, and EXIF's colons. Impossible values become missing.
Nothing is dropped silently: a `Tally` keeps the number of rows and the first row of each reason.
"""

import calendar
import datetime
import math
import re
import unicodedata
from collections.abc import Callable

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.manifest.table import Table
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.tree import distinct_lineages, fill_holes, number_column

_NULLS = "- -- ? . na n/a #n/a nan null none nil nat <na> missing undefined unknown unidentified undetermined unassigned indet indet."
NULLS = {*_NULLS.split(), "", "not identified", "not determined", "incertae sedis", r"\n"}  # MySQL exports write \N
_UNDETERMINED = re.compile(r".*\bs(?:p|pp)\.?$", re.IGNORECASE)  # "Quercus sp." is not the name of a species
HALF_EARTH = 20_037_508.0  # metres: half the circumference, the largest possible uncertainty of coordinates
LOWEST, HIGHEST = -11_000.0, 9_000.0  # metres; the Challenger Deep and Everest are inside the limits
LONGEST_INTERVAL = 31  # days; the middle of a longer interval is a poor estimate of the season

_DATE = re.compile(r"(\d{4})(?:[-/:](\d{1,2})(?:[-/:](\d{1,2}))?)?$")
_COMPACT_DATE = re.compile(r"(\d{4})(\d{2})(\d{2})$")
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)?\s*(Z|UTC|[+-]\d{2}(?::?\d{2})?)?$", re.IGNORECASE)


class Tally:
    """Number of rows and first row of each reason. `names` [N] are the names of the rows."""

    def __init__(self, names: np.ndarray) -> None:
        self.names = names
        self.counts: dict[str, int] = {}
        self.first: dict[str, str] = {}

    def add(self, reason: str, rows: np.ndarray) -> None:
        """Count the rows where `rows`, bool [N], is True."""
        if rows.any():
            self.counts[reason] = self.counts.get(reason, 0) + int(rows.sum())
            self.first.setdefault(reason, str(self.names[int(np.argmax(rows))]))

    def notes(self) -> list[str]:
        """Return a line for each reason."""
        return [f"{reason}: {n} of {len(self.names)} rows, first {self.first[reason]}" for reason, n in self.counts.items()]


def is_null(cell: str) -> bool:
    """Return True if the cell is empty or a word for a missing value, in any case."""
    return cell.lower() in NULLS


def clean_name(cell: str) -> str:
    """Return the name of a taxon with single spaces, in Unicode normalisation form C, or "" if the cell is null or undetermined."""
    name = " ".join(unicodedata.normalize("NFC", cell).split())
    return "" if is_null(name) or _UNDETERMINED.match(name) else name


def has_label(table: Table, ranks: dict[str, str]) -> np.ndarray:
    """Return bool [N]: True where the row has the name of a taxon at some rank."""
    named = np.zeros(len(table), dtype=bool)
    for column in (table.columns[c] for c in ranks.values()):
        named |= np.array([clean_name(value) != "" for value in column.values], dtype=bool)[column.codes]
    return named


def read_codes(table: Table, ranks: dict[str, str], notes: list[str]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the sorted names of each rank, and the rows as indices into them (int64 [N, R], -1 for null). Append to `notes`.

    A missing name between two known ranks is filled in from other rows of the same taxon."""
    names, codes = [], np.full((len(table), len(ranks)), -1, dtype=np.int64)
    for r, column in enumerate(table.columns[c] for c in ranks.values()):
        own, number = number_column(np.array([clean_name(v) for v in column.values], dtype=str))
        names.append(own)
        codes[:, r] = number[column.codes]
    unnamed = zip(ranks, (codes < 0).sum(axis=0), strict=True)
    notes += [f"{rank}: {n} of {len(table)} rows do not have a name" for rank, n in unnamed if n]
    notes += [note for rank, values in zip(ranks, names, strict=True) for note in _case_notes(rank, values)]
    lineages, row_lineage = distinct_lineages(codes)
    filled = fill_holes(lineages)
    changed = int((filled != lineages).any(axis=1)[row_lineage].sum())
    if changed:
        notes.append(f"{changed} rows have a taxon but not all its ancestors; the others were filled in from rows of the same taxon")
    return names, filled[row_lineage]


def _case_notes(rank: str, names: np.ndarray) -> list[str]:
    """Return a line on names that differ only in upper and lower case, with up to three examples."""
    _, inverse, count = np.unique([n.casefold() for n in names.tolist()], return_inverse=True, return_counts=True)
    alike = [names[inverse == i].tolist() for i in np.flatnonzero(count > 1)[:3]]
    return [f"{rank}: names that differ only in case are different taxa: {'; '.join(' / '.join(a) for a in alike)}"] if alike else []


def clean_metadata(table: Table, config: ManifestConfig, tally: Tally) -> Metadata:
    """Return the metadata, with NaN for missing and impossible values. Impossible values are counted in `tally`."""
    latitude = _numbers(table, config.latitude_column, "latitude", tally)
    longitude = _numbers(table, config.longitude_column, "longitude", tally)
    _set_missing(latitude, np.abs(latitude) > 90, "latitude outside [-90, 90], coordinates set to missing", tally)
    _set_missing(longitude, np.abs(longitude) > 180, "longitude outside [-180, 180], coordinates set to missing", tally)
    _set_missing(latitude, (latitude == 0) & (longitude == 0), "suspicious coordinates 0, 0, set to missing", tally)
    absent = np.isnan(latitude) | np.isnan(longitude)
    latitude[absent] = longitude[absent] = np.nan
    uncertainty = _numbers(table, config.uncertainty_column, "uncertainty", tally)
    _set_missing(uncertainty, uncertainty < 0, "negative uncertainty, set to missing", tally)
    _set_missing(uncertainty, uncertainty > HALF_EARTH, "uncertainty beyond half the Earth, set to missing", tally)
    uncertainty[absent] = np.nan
    elevation = _numbers(table, config.elevation_column, "elevation", tally)
    if config.elevation_missing is not None:
        _set_missing(elevation, elevation == config.elevation_missing, f"elevation of {config.elevation_missing:g}, set to missing", tally)
    _set_missing(elevation, (elevation < LOWEST) | (elevation > HIGHEST), "impossible elevation, set to missing", tally)
    day = _parsed(table, config.date_column, day_of_year, "date", tally)
    hour = _parsed(table, config.time_column, hour_of_day, "time", tally)
    known = ~np.isnan(hour)
    if known.sum() > 1 and not hour[known].any():  # midnight in every row means that the time was not recorded
        _set_missing(hour, known, "every time is midnight, set to missing", tally)
    place = {"latitude": latitude, "longitude": longitude, "uncertainty": uncertainty, "elevation": elevation}
    quantities = place | {"day": day, "hour": hour}
    return Metadata(**{name: quantity.astype(np.float32) for name, quantity in quantities.items()})


def clean_weights(table: Table, config: ManifestConfig, tally: Tally) -> np.ndarray | None:
    """Return the weights of `data.weight_column`, float64 [N], or None without that column.

    A cell that is null or not a number becomes NaN, which later counts as 1. Raises ConfigError for a negative weight."""
    name = config.weight_column
    if name is None:
        return None
    weights = _numbers(table, name, "weight", tally)
    if (weights < 0).any():
        row = int(np.argmax(weights < 0))
        raise ConfigError(f"data.weight_column: {name!r} of {tally.names[row]} is {weights[row]:g}; it must be at least 0, or empty for 1")
    return weights


def _set_missing(values: np.ndarray, where: np.ndarray, reason: str, tally: Tally) -> None:
    """Set `values` to NaN where `where`, bool [N], is True, and count the rows."""
    tally.add(reason, where)
    values[where] = np.nan


def _numbers(table: Table, column: str | None, quantity: str, tally: Tally) -> np.ndarray:
    """Return float64 [N]: the cells of a column as numbers, NaN where null or not a finite number."""

    def number(text: str) -> float | str:
        if table.decimal_comma and text.count(",") == 1 and "." not in text:
            text = text.replace(",", ".")
        try:
            value = float(text.replace("_", "x"))  # float() accepts 1_0
        except ValueError:
            value = math.nan
        return value if math.isfinite(value) else "not a number"

    return _parsed(table, column, number, quantity, tally)


def _parsed(table: Table, name: str | None, parse: Callable[[str], float | str], quantity: str, tally: Tally) -> np.ndarray:
    """Return float64 [N]: `parse` of the cells, called once per distinct cell. NaN where the cell is null or `parse` returns a reason.

    The reasons are counted in `tally`."""
    if name is None:
        return np.full(len(table), np.nan)
    column = table.columns[name]
    parsed = [math.nan if is_null(value) else parse(value) for value in column.values]
    reasons = sorted({p for p in parsed if isinstance(p, str)})
    kind = np.array([reasons.index(p) if isinstance(p, str) else -1 for p in parsed], dtype=np.int64)[column.codes]
    for number, reason in enumerate(reasons):
        tally.add(f"{quantity}: {reason}, set to missing", kind == number)
    return np.array([math.nan if isinstance(p, str) else p for p in parsed])[column.codes]


def day_of_year(text: str) -> float | str:
    """Return the fraction of the year, in [0, 1), at the start of a date, or a reason.

    The text may be a date, a date with time, or an interval of up to a month, which counts as its middle date."""
    start, interval, end = text.partition("/") if not re.match(r"\d{4}/", text) or text.count("/") % 2 else (text, "", "")
    first = _date(start)
    if isinstance(first, str) or not interval:
        return first if isinstance(first, str) else _fraction_of_year(first)
    last = _date(_complete_end(start.strip(), end.strip()))
    if isinstance(last, str):
        return last
    if not 0 <= (last - first).days <= LONGEST_INTERVAL:
        return "interval longer than a month" if last > first else "interval that ends before it starts"
    return _fraction_of_year(first + (last - first) / 2)


def hour_of_day(text: str) -> float | str:
    """Return the hours, in [0, 24), of a time or of a date with time, or a reason. A time in UTC is not a local time."""
    match = _TIME.match(re.split(r"[T ]", text.strip(), maxsplit=1)[-1].strip() if _has_date(text) else text.strip().lstrip("Tt"))
    if not match:
        return "not a time"
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    if hour > 23 or minute > 59 or second > 60:
        return "impossible time"
    if (match[4] or "").upper() in ("Z", "UTC"):
        return "time in UTC, not local"
    return hour + minute / 60 + min(second, 59) / 3600


def _has_date(text: str) -> bool:
    return re.match(r"\s*\d{4}[-/:]?\d", text) is not None


def _date(text: str) -> datetime.date | str:
    """Return the date of a date, or of a date with time, or a reason."""
    text = re.split(r"[T ]", text.strip(), maxsplit=1)[0]
    match = _COMPACT_DATE.match(text) or _DATE.match(text)
    if not match:
        return "not a date"
    year, month, day = match.groups()
    if day is None:
        return "no month" if month is None else "no day of the month"
    try:
        return datetime.date(int(year), int(month), int(day))
    except ValueError:
        return "impossible date"


def _complete_end(start: str, end: str) -> str:
    """Return the end of an interval with the part it shares with the start, which ISO 8601 allows to omit: 2021-04-27/30."""
    start = re.split(r"[T ]", start, maxsplit=1)[0]
    return start[: len(start) - len(end)] + end if re.match(r"\d{1,2}(-\d{1,2})?$", end) else end


def _fraction_of_year(date: datetime.date) -> float:
    """Return the fraction of the year, in [0, 1), at the start of a date."""
    return (date.timetuple().tm_yday - 1) / (366 if calendar.isleap(date.year) else 365)
