"""Convert the cells of a manifest to metadata and weights.

Impossible values become missing and are counted. If all values of a column are impossible, its format is not supported: that is an error.
"""

import math
import re
from collections.abc import Callable

import numpy as np

from linnaeus.errors import ConfigError, quoted
from linnaeus.workloads.taxonomy.arrays.spool import spooled
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import Tally, is_null
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.dates import day_of_year, first_date, fitting_formats, hour_of_day, is_utc
from linnaeus.workloads.taxonomy.manifest.tables.table import Table
from linnaeus.workloads.taxonomy.observations import Metadata

HALF_EARTH = 20_037_508.0  # metres: half the circumference, the largest possible uncertainty of coordinates
DEGREES_PER_HOUR = 15.0  # of longitude; the sun is highest at about 12 local solar time
LOWEST, HIGHEST = -11_000.0, 9_000.0  # metres; the Challenger Deep and Everest are inside the limits
NO_DATA = -9999.0  # in place of an unknown elevation, in most maps of elevations
FEWEST_MIDNIGHTS, FREQUENT = 3, 10  # limits of the times 00:00:00 of a column that are not times
_NUMBERS = {"uncertainty": "metres", "elevation": "metres", "weight": "numbers"}


def clean_metadata(table: Table, config: ManifestConfig, tally: Tally) -> Metadata:
    """Return the metadata of the rows of a table, with NaN for missing and impossible values. Impossible values are counted in `tally`.

    Raise `ConfigError` for a column whose values are all impossible."""
    cells = Cells(table, config, tally)
    latitude, longitude = cells.numbers("latitude"), cells.numbers("longitude")
    cells.refuse(latitude, "latitude", np.abs(latitude) > 90, "latitude outside [-90, 90]")
    cells.refuse(longitude, "longitude", np.abs(longitude) > 180, "longitude outside [-180, 180]")
    if not config.keep_zero_coordinates:
        zero = (latitude == 0) & (longitude == 0)
        cells.refuse(latitude, "latitude", zero, "coordinates 0, 0 (kept with data.keep_zero_coordinates=true)")
    absent = np.isnan(latitude) | np.isnan(longitude)
    latitude[absent] = longitude[absent] = np.nan
    found = {"latitude": spooled(latitude.astype(np.float32))}
    del latitude  # millions of rows take much memory
    uncertainty = cells.numbers("uncertainty")
    cells.refuse(uncertainty, "uncertainty", uncertainty < 0, "negative uncertainty")
    cells.refuse(uncertainty, "uncertainty", uncertainty > HALF_EARTH, "uncertainty beyond half the Earth")
    uncertainty[absent] = np.nan
    found["uncertainty"] = spooled(uncertainty.astype(np.float32))
    del uncertainty
    elevation = cells.numbers("elevation")
    if config.elevation_missing is not None:
        declared = elevation == config.elevation_missing
        tally.add(f"elevation of {config.elevation_missing:g}, set to missing", declared)
        elevation[declared] = np.nan
    else:
        tally.add("elevation of exactly 0, kept (data.elevation_missing=0 sets it to missing)", elevation == 0)
    impossible = (elevation < LOWEST) | (elevation > HIGHEST) | (elevation == NO_DATA)
    cells.refuse(elevation, "elevation", impossible, "impossible elevation")
    found["elevation"] = spooled(elevation.astype(np.float32))
    del elevation
    hour, moved = cells.hours(longitude)
    found |= {"longitude": spooled(longitude.astype(np.float32)), "hour": spooled(hour.astype(np.float32))}
    del longitude, hour
    return Metadata(**found, day=spooled(cells.days(moved).astype(np.float32)))


def clean_weights(table: Table, config: ManifestConfig, tally: Tally) -> np.ndarray | None:
    """Return the weights in data.weight_column, float64 [N]; None if data.weight_column is not set.

    A cell that is null or not a number becomes NaN, which later counts as 1. Raise `ConfigError` for a negative weight."""
    if config.weight_column is None:
        return None
    weights = Cells(table, config, tally).numbers("weight")
    if (weights < 0).any():
        row = int(np.argmax(weights < 0))
        name, photograph = quoted(config.weight_column), quoted(str(tally.names[row]))
        raise ConfigError(f"data.weight_column: {name} of {photograph} is {weights[row]:g}; it must be at least 0, or empty for 1")
    return weights


class Cells:
    """Reader of the metadata columns of a table. `tally` counts the cells that are set to missing."""

    def __init__(self, table: Table, config: ManifestConfig, tally: Tally) -> None:
        self.table, self.config, self.tally = table, config, tally

    def column(self, role: str) -> str | None:
        """Return the name of the column with a role, such as "date" for data.date_column; None if the table has no such column."""
        return getattr(self.config, f"{role}_column")

    def numbers(self, role: str) -> np.ndarray:
        """Return the cells of a column as numbers, float64 [N], NaN where null or not a finite number."""

        def number(text: str) -> float | str:
            if self.table.decimal_comma and text.count(",") == 1 and "." not in text:
                text = text.replace(",", ".")
            try:
                value = float(text.replace("_", "x"))  # float() accepts 1_0
            except ValueError:
                value = math.nan
            return value if math.isfinite(value) else "not a number"

        return self.parsed(role, number)

    def days(self, moved: np.ndarray) -> np.ndarray:
        """Return the dates as fractions of the year, float64 [N]. `moved`: int64 [N], days to add to the dates, from `hours`.

        If the column of dates also contains times that are not used, these rows are counted in the tally."""
        form, name = self.config.date_format, self.column("date")
        days = self.parsed("date", lambda text: day_of_year(text, form))
        if name is None or not (self.column("time") is None or moved.any()):
            return days
        column = self.table.columns[name]
        timed = np.fromiter((isinstance(hour := hour_of_day(value, form), float) and hour > 0 for value in column.values), dtype=bool)
        if self.column("time") is None:
            self.tally.add(f"time of day in {quoted(name)} is not read (data.time_column={name} reads it)", timed[column.codes])
        local = (timed & ~np.fromiter(map(is_utc, column.values), dtype=bool))[column.codes]
        for step, word in ((-1, "previous"), (1, "next")):
            rows = (moved == step) & ~local & ~np.isnan(days)
            if rows.any():
                rows[rows] = self._same_day(np.flatnonzero(rows))
            found = {code: day_of_year(column.values[code], form, step) for code in np.unique(column.codes[rows]).tolist()}
            days[rows] = [math.nan if isinstance(found[code], str) else found[code] for code in column.codes[rows].tolist()]
            self.tally.add(f"date in UTC, changed to the {word} day, that of the local solar time", rows)
        return days

    def _same_day(self, rows: np.ndarray) -> np.ndarray:
        """Return bool [M], False for each of `rows`, int64 [M], whose time contains another date than its date: then the date is not in
        UTC, but is the local one, as `observed_on` beside `time_observed_at` in exports of iNaturalist."""
        dates, times = (self.table.columns[str(self.column(role))] for role in ("date", "time"))
        pairs = list(zip(dates.codes[rows].tolist(), times.codes[rows].tolist(), strict=True))
        same = {}
        for date, time in set(pairs):
            own, stated = first_date(times.values[time]), first_date(dates.values[date], self.config.date_format)
            same[date, time] = isinstance(own, str) or isinstance(stated, str) or own == stated
        return np.array([same[pair] for pair in pairs], dtype=bool)

    def hours(self, longitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the times in hours, float64 [N], and the days to add to the date of each row, -1, 0 or 1, int64 [N].

        Times in UTC are converted to local solar time by `longitude`, float64 [N], in degrees; this can change the date."""
        form = self.config.date_format if self.column("time") == self.column("date") else None
        hour = self.parsed("time", lambda text: hour_of_day(text, form))
        moved = np.zeros(len(hour), dtype=np.int64)
        known = ~np.isnan(hour)
        if known.sum() > 1 and not hour[known].any():  # midnight in every row means that the time was not recorded
            self.tally.add("every time is midnight, set to missing", known, "time")
            hour[known] = np.nan
        name = self.column("time")
        if name is None:
            return hour, moved
        column = self.table.columns[name]
        zone = np.fromiter(map(is_utc, column.values), dtype=bool)[column.codes]
        self.tally.add(
            f"local time of exactly 00:00:00, more than {FREQUENT} times as frequent as other full hours of the night, set to missing",
            placeholder := _placeholder_midnight(hour, ~zone),
            "time",
        )
        hour[placeholder] = np.nan
        utc = zone & ~np.isnan(hour)
        self.refuse(hour, "time", utc & (hour == 0), "midnight in UTC, usually of a date without a time")
        self.refuse(hour, "time", utc & np.isnan(longitude) & ~np.isnan(hour), "time in UTC without a longitude")
        utc &= ~np.isnan(hour)
        self.tally.add("time in UTC, changed to local solar time by the longitude", utc)
        hour[utc] = (hour[utc] + longitude[utc] / DEGREES_PER_HOUR).astype(np.float32)  # 24:00 in float32 is the next day
        moved[utc] = np.floor(hour[utc] / 24).astype(np.int64)
        hour[utc] = hour[utc] - 24 * moved[utc]
        midnight = hour.astype(np.float32) >= 24
        hour[midnight], moved[midnight] = 0.0, moved[midnight] + 1
        return hour, moved

    def parsed(self, role: str, parse: Callable[[str], float | str]) -> np.ndarray:
        """Return `parse(cell)` for the cells of the column with a role, float64 [N]; NaN where a cell is null or `parse` returns a reason
        (a str).

        `parse` is called once per distinct cell. The reasons are counted in the tally."""
        name = self.column(role)
        if name is None:
            return np.full(len(self.table), np.nan)
        column = self.table.columns[name]
        values, kind = np.full(len(column.values), np.nan), np.full(len(column.values), -1, dtype=np.int16)
        found: dict[str, int] = {}  # reason -> its number
        for number, value in enumerate(column.values):
            if isinstance(parsed := math.nan if is_null(value) else parse(value), str):
                kind[number] = found.setdefault(parsed, len(found))
            else:
                values[number] = parsed
        values = values[column.codes]
        if not found:
            return values
        reasons = sorted(found)
        kind = np.array([*map(reasons.index, found), -1], dtype=np.int16)[kind][column.codes]
        if (kind >= 0).any() and np.isnan(values).all():
            self.tally.refuse(role, self.unusable(role, column, kind >= 0, reasons[int(kind.max())]))
        for number, reason in enumerate(reasons):
            self.tally.add(f"{role}: {reason}, set to missing", kind == number, role)
        return values

    def refuse(self, values: np.ndarray, role: str, where: np.ndarray, reason: str) -> None:
        """Set `values` to NaN in place where `where`, bool [N], is True, and count these rows under `reason`. Raise `ConfigError` if no
        value is left."""
        known = ~np.isnan(values)
        if where.any() and where[known].all():
            self.tally.refuse(role, self.unusable(role, self.table.columns[str(self.column(role))], where, reason.partition(" (")[0]))
        self.tally.add(f"{reason}, set to missing", where, role)
        values[where] = np.nan

    def unusable(self, role: str, column: Column, rows: np.ndarray, reason: str) -> ConfigError:
        """Return the `ConfigError` for a column whose values are all impossible. `rows`: bool [N], True for the rows with these values."""
        values = [column.values[code] for code in np.unique(column.codes[rows])]
        return ConfigError(
            f"data.{role}_column: none of the {int(rows.sum())} values of {quoted(self.column(role))} can be used, such as "
            f"{quoted(values[0])} ({reason}); {_way_to_read(role, values, reason)}"
        )


def _placeholder_midnight(hour: np.ndarray, local: np.ndarray) -> np.ndarray:
    """Return bool [N], True for local times of exactly 00:00:00 if they probably stand for dates without a time; if not, all are False.

    They do if there are at least `FEWEST_MIDNIGHTS`, and more than `FREQUENT` times as many as expected: the mean number of rows at exactly
    22:00, 23:00, 01:00 and 02:00, or, if larger, the number of rows in a minute if rows are equally frequent all day. hour: float64 [N],
    NaN for missing. `local`: bool [N], False for times in UTC."""
    known = hour[local & ~np.isnan(hour)]
    midnight = local & (hour == 0)
    expected = max(np.isin(known, (22.0, 23.0, 1.0, 2.0)).sum() / 4, len(known) / 1440)
    return midnight & (midnight.sum() >= FEWEST_MIDNIGHTS) & (midnight.sum() > FREQUENT * expected)


def _way_to_read(role: str, values: list[str], reason: str) -> str:
    """Return the advice for a column whose values are all impossible: the key to set, or the format to use."""
    off = f"set data.{role}_column=null"
    if role in ("latitude", "longitude"):
        degrees = _decimal_degrees(values[0])
        write = "write decimal degrees with a point" + ("" if degrees is None else f", {degrees:.6f} for this one")
        keep = "set data.keep_zero_coordinates=true" if "0, 0" in reason else write
        return f"{keep}, or set data.latitude_column=null data.longitude_column=null"
    if role == "date":
        if reason.startswith("no "):
            return f"{off} to train without dates"
        if all(re.fullmatch(r"\d{5}(\.\d+)?", value) for value in values):
            return f"they may be day numbers of a spreadsheet: there, format the cells as dates (2026-05-01) and save them again, or {off}"
        quotes = [f"\"data.date_format='{form}'\"" for form in fitting_formats(values)[:2]]
        return f"set {' or '.join(quotes or ['data.date_format to their strptime format, such as %d/%m/%Y'])}, or {off}"
    return f"write {_NUMBERS[role] + ' with a point' if role in _NUMBERS else 'local times such as 16:10'}, or {off}"


def _decimal_degrees(text: str) -> float | None:
    """Convert degrees, minutes and seconds such as 43°52'07"N to decimal degrees. Return None for any other text."""
    parts = [float(part.replace(",", ".")) for part in re.findall(r"\d+(?:[.,]\d+)?", text)]
    if not 1 <= len(parts) <= 3 or not re.search(r"[°º'′NSEWO]|,", text, re.IGNORECASE):
        return None
    degrees = sum(part / 60**i for i, part in enumerate(parts))
    return -degrees if re.search(r"[SW]|^\s*-", text, re.IGNORECASE) else degrees
