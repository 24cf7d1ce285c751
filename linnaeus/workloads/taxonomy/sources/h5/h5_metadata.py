"""Decode the metadata in a labels.h5 of the original linnaeus to coordinates, dates, times and metres.

    spatial [N, 3]            cos(lat) cos(lon), cos(lat) sin(lon), sin(lat)
    temporal [N, 2, 4 or 6]   sine and cosine of 2 pi month / 12, 2 pi day / 365.25 or 2 pi hour / 24; attribute column_names
    elevation_SET [N, 2 S]    sine and cosine of 2 pi metres / scale, for each of the attribute scales

The vectors decide whether a value is missing: a vector of zeros is missing, whatever the raw columns contain. The columns `raw_lat`,
`raw_lon`, `raw_elevation` and `raw_date_observed` have more digits than can be decoded, and are used in rows in which they agree with the
vectors. Decoded coordinates have the rounding error of float32; the hour and the day of the year are exact. A month without a day becomes
the interval of all days of the month. The year is not stored; days are counted in a year of 365 days. Elevations that differ by the largest
scale have the same vector: if exactly one value from -500 to 9000 m fits, it is used, otherwise the elevation is missing. An elevation
of zero and a missing elevation have the same vector; only a column raw_elevation that contains NaN distinguishes them.
"""

from __future__ import annotations

import calendar
import datetime
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from linnaeus.errors import ConfigError, counted, quoted
from linnaeus.workloads.taxonomy.manifest.records import column_of
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.dates import hour_of_day

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.sources.h5.labels_h5 import Labels

LOWEST, HIGHEST = -500.0, 9000.0  # metres
CLOSE = 1e-3  # largest difference between encoded values in float32 that count as equal
_YEAR = 365.25  # days
_PERIODS = {"month": 12.0, "jd": _YEAR, "hour": 24.0}


class H5Metadata:
    """Decoder of the metadata of a labels.h5. Lines for the user are appended to the notes of `labels`."""

    def __init__(self, labels: Labels) -> None:
        self.labels, self.names = labels, set(labels.file)
        self._cells: dict[str, Any] = {}

    def columns(self) -> dict[str, Callable[[], Column]]:
        """Return name -> function that returns the column, for the quantities in the file. Names are those of Darwin Core."""
        found: dict[str, Callable[[], Column]] = {}
        if "spatial" in self.names or {"raw_lat", "raw_lon"} <= self.names:
            found["decimalLatitude"] = lambda: _column(self._once("places", self._places)[0])
            found["decimalLongitude"] = lambda: _column(self._once("places", self._places)[1])
        if {"temporal", "raw_date_observed"} & self.names:
            found["eventDate"] = lambda: self._once("dates", self._dates)[0]
            found["eventTime"] = lambda: self._once("dates", self._dates)[1]
        if "raw_elevation" in self.names or self._elevation_set() is not None:
            found["elevation"] = lambda: _column(self._once("metres", self._metres))
        return found

    def missing(self, part: str) -> np.ndarray:
        """Return bool [N], True where `part` ("spatial", "temporal" or "elevation") is missing. Raise `ConfigError` if the file does not
        have this part."""
        if part == "elevation" and "elevation" in self.columns():
            return np.isnan(self._once("metres", self._metres))
        if part not in self.names:
            raise ConfigError(f"data.filters: no_{part} needs a dataset of it, which the file does not have; leave it out")
        return self._null(self._vectors(part, 3 if part == "spatial" else self._temporal_width()))

    def _once(self, name: str, read: Callable[[], Any]) -> Any:
        if name not in self._cells:
            self._cells[name] = read()
        return self._cells[name]

    def _vectors(self, name: str, width: int) -> np.ndarray:
        """Return a dataset of vectors, float64 [N, width]. Values that are not finite become 0, as in the original linnaeus."""
        return np.nan_to_num(self.labels.array(name, "f", width).astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)

    def _temporal_width(self) -> int:
        """Return the number of columns of the dataset `temporal`: 2, 4 or 6. Raise `ConfigError` for another number."""
        shape: tuple[int, ...] = getattr(self.labels.file["temporal"], "shape", ())
        if len(shape) != 2 or shape[1] not in (2, 4, 6):
            found = counted(shape[1], "column") if len(shape) == 2 else f"the shape {list(shape)}"
            raise ConfigError(f"data.path: 'temporal' has {found}; it must have 2 for each of month or jd, and hour")
        return shape[1]

    def _raw(self, name: str) -> np.ndarray | None:
        return self.labels.array(name, "f").astype(np.float64) if name in self.names else None

    @staticmethod
    def _null(vectors: np.ndarray) -> np.ndarray:
        return np.asarray(~vectors.any(axis=1))

    def _note(self, rows: np.ndarray, text: str) -> None:
        if rows.any():
            self.labels.notes.append(f"{counted(int(rows.sum()), 'row')}: {text}")

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Return latitude and longitude in degrees, float64 [N] each.

        Raise `ConfigError` if `spatial` has another method than unit_sphere."""
        raw = self._raw("raw_lat"), self._raw("raw_lon")
        if "spatial" not in self.names:
            return raw  # type: ignore[return-value]
        method = _attribute(self.labels.file["spatial"], "method")
        if method and method != ["unit_sphere"]:
            raise ConfigError(
                f"data.path: 'spatial' has the method {quoted(method[0])}; only unit_sphere is read; remove SPATIAL from data.components"
            )
        vectors = self._vectors("spatial", 3)
        x, y, z = vectors.T
        latitude, longitude = np.degrees(np.arctan2(z, np.hypot(x, y))), np.degrees(np.arctan2(y, x))
        null = self._null(vectors)
        wrong = ~null & (np.abs(np.linalg.norm(vectors, axis=1) - 1) > CLOSE)
        self._note(wrong, "'spatial' is not a point on the unit sphere, set to missing")
        if raw[0] is not None and raw[1] is not None:
            same = np.abs(_on_sphere(raw[0], raw[1]) - vectors).max(axis=1) < 1e-5
            self._note(~same & ~null & ~wrong, "raw_lat and raw_lon differ from 'spatial', which is used")
            latitude, longitude = np.where(same, raw[0], latitude), np.where(same, raw[1], longitude)
        latitude[null | wrong] = longitude[null | wrong] = np.nan
        return latitude, longitude

    def _metres(self) -> np.ndarray:
        """Return the elevations in metres, float64 [N], NaN where missing."""
        raw, chosen = self._raw("raw_elevation"), self._elevation_set()
        if chosen is None:
            return raw  # type: ignore[return-value]
        name, scales = chosen
        vectors = self._vectors(name, 2 * len(scales))
        zero = np.abs(vectors - np.tile([0.0, 1.0], len(scales))).max(axis=1) < 1e-6
        null = self._null(vectors)
        if raw is not None and np.isnan(raw).any():
            null |= np.isnan(raw)
        else:
            null |= zero
            self._note(zero, "an elevation of 0 m is encoded as a missing one, set to missing")
        metres, count = _from_frequencies(vectors, scales)
        if raw is not None:
            same = np.abs(_frequencies(raw, scales) - vectors).max(axis=1) < CLOSE
            self._note(~same & ~null, f"raw_elevation differs from {name!r}, which is used")
            metres, count = np.where(same, raw, metres), np.where(same, 1, count)
        self._note((count != 1) & ~null, f"{name!r} does not determine an elevation from {LOWEST:g} to {HIGHEST:g} m, set to missing")
        return np.where(null | (count != 1), np.nan, metres)

    def _elevation_set(self) -> tuple[str, np.ndarray] | None:
        """Return the name and the scales of one of the datasets `elevation_SET`: the dataset with the largest scale. Return None if none of
        them has valid scales."""
        found = []
        for name in sorted(name for name in self.names if name.startswith("elevation_")):
            try:
                scales = np.array([float(scale) for scale in _attribute(self.labels.file[name], "scales")])
            except ValueError:
                continue
            shape = getattr(self.labels.file[name], "shape", ())
            if len(scales) and np.isfinite(scales).all() and scales.min() >= 1 and scales.max() >= 100 and shape[1:] == (2 * len(scales),):
                found.append((name, scales))
        return max(found, key=lambda one: one[1].max(), default=None)

    def _dates(self) -> tuple[Column, Column]:
        """Return a column of dates and a column of times of day, as texts; "" where missing."""
        count = len(self.labels.paths)
        raw = self.labels.texts("raw_date_observed") if "raw_date_observed" in self.names else [""] * count
        if "temporal" not in self.names:
            return column_of(raw), column_of([text if ":" in text else "" for text in raw])
        vectors = self._vectors("temporal", self._temporal_width())
        numbers = {name: np.zeros(count, dtype=np.int64) - 1 for name in _PERIODS} | self._periods(vectors)
        texts = column_of(raw)
        keys = texts.codes.astype(np.int64)
        for part in ("month", "jd", "hour"):
            keys = keys * 400 + numbers[part] + 1
        _, first, codes = np.unique(keys, return_index=True, return_inverse=True)
        cells = [(raw[row], *(int(numbers[part][row]) for part in ("month", "jd", "hour"))) for row in first.tolist()]
        known = [_date_and_time(*cell) for cell in cells]
        differ = [cell[0] != "" and not date.startswith(cell[0][:10]) for cell, (date, _) in zip(cells, known, strict=True)]
        self._note(np.array(differ)[codes] & ~self._null(vectors), "raw_date_observed differs from 'temporal', which is used")
        self._note(np.array(["/" in date for date, _ in known])[codes], "a month without a day, the middle of the month is used")
        return Column(codes.astype(np.int32), [date for date, _ in known]), Column(codes.astype(np.int32), [time for _, time in known])

    def _periods(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Return the numbers that the dataset `temporal` encodes: "month", "jd" (day of the year) or "hour" -> int64 [N], -1 where missing.

        `vectors`: float64 [N, 2, 4 or 6], the dataset. Parts that the dataset does not have are left out. Raise `ConfigError` for other
        names or numbers of columns."""
        width = vectors.shape[1]
        names = _attribute(self.labels.file["temporal"], "column_names")
        parts = [name.rpartition("_")[0] for name in names[::2]]
        if not names and width in (2, 4):
            month, _ = _number(vectors[:, 0], vectors[:, 1], 12.0)
            parts = ["jd" if (month[vectors[:, :2].any(axis=1)] < 0).any() else "month", "hour"][: width // 2]
        if (names and names != [f"{part}_{function}" for part in parts for function in ("sin", "cos")]) or not set(parts) <= set(_PERIODS):
            raise ConfigError(
                f"data.path: 'temporal' has the column_names {names}; use pairs such as jd_sin, jd_cos, hour_sin, hour_cos, "
                "or remove TEMPORAL from data.components"
            )
        if width != 2 * len(parts):
            raise ConfigError(f"data.path: 'temporal' has {counted(width, 'column')}; it must have 2 for each of month or jd, and hour")
        found = {}
        for place, part in enumerate(parts):
            found[part], wrong = _number(vectors[:, 2 * place], vectors[:, 2 * place + 1], _PERIODS[part])
            self._note(wrong, f"'temporal' is not a {part if part != 'jd' else 'day of the year'}, set to missing")
        return found


def _on_sphere(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Convert coordinates in degrees, [N] each, to points on the unit sphere, float64 [N, 3]; NaN becomes 0."""
    lat, lon = np.radians(latitude), np.radians(longitude)
    return np.nan_to_num(np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=1))


def _frequencies(metres: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return sine and cosine of 2 pi metres / scale for each of S scales, float64 [N, 2 S]."""
    angles = 2 * np.pi * np.nan_to_num(metres, nan=0.0, posinf=0.0, neginf=0.0)[:, None] / scales
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(len(metres), -1)


def _from_frequencies(vectors: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decode metres from the vectors of `_frequencies`, float64 [N]. Also return the number of values that fit, int64 [N].

    Only values from `LOWEST` to `HIGHEST` are considered. The largest scale gives candidates, the other scales select among them, and the
    smallest scale gives the last digits."""
    shares = np.arctan2(vectors[:, 0::2], vectors[:, 1::2]) / (2 * np.pi)
    largest, smallest = int(scales.argmax()), int(scales.argmin())
    metres, count = np.full(len(vectors), np.nan), np.zeros(len(vectors), dtype=np.int64)
    for turn in range(int(LOWEST // scales[largest]) - 1, int(HIGHEST // scales[largest]) + 2):
        candidate = (shares[:, largest] + turn) * scales[largest]
        turns = candidate / scales[smallest] - shares[:, smallest]
        candidate = (np.round(turns) + shares[:, smallest]) * scales[smallest]
        fits = np.abs(_frequencies(candidate, scales) - vectors).max(axis=1) < CLOSE
        fits &= (candidate >= LOWEST) & (candidate <= HIGHEST)
        metres[fits] = candidate[fits]
        count += fits
    return metres, count


def _number(sine: np.ndarray, cosine: np.ndarray, period: float) -> tuple[np.ndarray, np.ndarray]:
    """Decode whole numbers from sine and cosine of 2 pi number / period, int64 [N], -1 where missing or not whole.

    Also return bool [N], True where the number is not whole. Months are 1 to 12, hours 0 to 23, days 1 to 366; day 366 has the same angle
    as day 0.75."""
    value = np.arctan2(sine, cosine) / (2 * np.pi) % 1 * period
    number = np.round(value)
    number = np.where((np.abs(value - 0.75) < 0.01) & (period == _YEAR), 366, number)
    known = (sine != 0) | (cosine != 0)
    off = np.where(number == 366, np.abs(value - 0.75), np.abs(value - number))
    wrong = known & ((off > 0.002) | (np.abs(np.hypot(sine, cosine) - 1) > CLOSE) | ((number == 0) & (period == _YEAR)))
    number = number % period if period == 24 else np.where(number == 0, period, number)
    return np.where(known & ~wrong, number, -1).astype(np.int64), wrong


def _date_and_time(raw: str, month: int, day: int, hour: int) -> tuple[str, str]:
    """Return the date and the time of a row as texts. `raw`: date as it was observed, whose text is used if it agrees with the numbers.
    `month`, `day` (of the year), `hour`: -1 if missing."""
    if month < 0 and day < 0 and hour < 0:
        return "", ""
    date = _iso_date(raw)
    agrees = date is not None and month in (-1, date.month) and day in (-1, date.timetuple().tm_yday)
    if month < 0 and day < 0:
        text = ""
    elif agrees:
        text = raw
    elif day > 0:
        text = str(datetime.date(2000, 12, 31) if day == 366 else datetime.date(2001, 1, 1) + datetime.timedelta(day - 1))
    else:
        text = f"2001-{month:02d}-01/2001-{month:02d}-{calendar.monthrange(2001, month)[1]}"
    clock = hour_of_day(raw) if ":" in raw else ""
    if hour < 0:
        return text, raw if agrees and ":" in raw else ""
    same = agrees and isinstance(clock, float) and int(clock) == hour
    return text, raw if same else f"{hour:02d}:00"


def _iso_date(text: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text[:10])
    except ValueError:
        return None


def _column(values: np.ndarray) -> Column:
    """Convert N numbers to a column of texts with the digits of float32; NaN becomes an empty cell."""
    distinct, codes = np.unique(values.astype(np.float32), return_inverse=True)
    return Column(codes.astype(np.int32), ["" if np.isnan(value) else str(value) for value in distinct])


def _attribute(data: Any, name: str) -> list[str]:
    """Return an attribute of a dataset as a list of texts; [] if there is no such attribute.

    The value of the attribute may be an array of strings or numbers, or a text: a JSON list, or values separated by commas."""
    value = data.attrs.get(name)
    if value is None:
        return []
    values = [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in np.ravel(value).tolist()]
    if len(values) != 1:
        return values
    try:
        parsed = json.loads(values[0])
    except ValueError:
        parsed = [part.strip() for part in values[0].split(",")]
    return [str(one) for one in parsed] if isinstance(parsed, Sequence) and not isinstance(parsed, str) else values
