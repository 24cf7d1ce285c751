"""Convert place and time, given as numbers and texts in arguments of `predict`, to `Metadata`.

An impossible value raises an error here. In a manifest (`manifest.metadata_columns`), an impossible cell becomes null and is counted."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, counted, quoted
from linnaeus.workloads.taxonomy.manifest.metadata_columns import HALF_EARTH, HIGHEST, LOWEST
from linnaeus.workloads.taxonomy.manifest.tables.dates import day_of_year, hour_of_day, is_utc
from linnaeus.workloads.taxonomy.observations import Metadata

LIMITS = {  # argument -> least and largest value, unit
    "latitude": (-90.0, 90.0, "degrees north"),
    "longitude": (-180.0, 180.0, "degrees east"),
    "uncertainty": (0.0, HALF_EARTH, "metres"),
    "elevation": (LOWEST, HIGHEST, "metres"),
}
ARGUMENTS = (*LIMITS, "date", "time")
NEEDS = {"latitude": "longitude", "longitude": "latitude", "uncertainty": "latitude", "time": "date"}  # argument -> the one it requires


def metadata_of(count: int, given: Mapping[str, Any]) -> Metadata:
    """Return the metadata of `count` photographs, float32 [count] per quantity, NaN where unknown.

    `given`: name in `ARGUMENTS` -> one value for all photographs, a sequence of `count` values, or None. One `time` for all photographs
    applies only to photographs with a date, one `uncertainty` only to photographs with coordinates. Raise `ConfigError` for a value that is
    impossible or cannot be read, for a sequence of another length, and for a value without a second value that it requires (`NEEDS`)."""
    columns = {name: _column(name, given.get(name), count) for name in ARGUMENTS}
    for name in ("uncertainty", "time"):
        needed = columns[NEEDS[name]]
        if not _is_column(given.get(name)) and any(value is not None for value in needed):
            columns[name] = [value if known is not None else None for value, known in zip(columns[name], needed, strict=True)]
    for name, other in NEEDS.items():
        for row, value in enumerate(columns[name]):
            if value is not None and columns[other][row] is None:
                raise ConfigError(f"{name} has no effect without {other}; give both or neither")
    readers: dict[str, tuple[str, Callable[[str, Any], float]]] = {name: (name, _number) for name in LIMITS}
    readers |= {"day": ("date", _day), "hour": ("time", _hour)}
    quantities = {
        quantity: np.array([math.nan if value is None else read(name, value) for value in columns[name]], dtype=np.float32)
        for quantity, (name, read) in readers.items()
    }
    if ((quantities["latitude"] == 0) & (quantities["longitude"] == 0)).any():
        raise ConfigError("latitude and longitude are both 0, which most programs write for an unknown place; leave both out")
    return Metadata(**quantities)


def _is_column(value: Any) -> bool:
    """Return True for a sequence with one value per photograph, False for one value for all photographs."""
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)


def _column(name: str, value: Any, count: int) -> list[Any]:
    """Return the values of an argument, one per photograph. Replace NaN and "" by None (unknown).

    Raise `ConfigError` if `value` is a sequence whose length is not `count`, the number of photographs."""
    values = list(value) if _is_column(value) else [value] * count
    if len(values) != count:
        raise ConfigError(
            f"{name} has {counted(len(values), 'value')} for {counted(count, 'photograph')}; give one for each, or one for all"
        )
    return [None if v is None or v == "" or (isinstance(v, float | np.floating) and np.isnan(v)) else v for v in values]


def _number(name: str, value: Any) -> float:
    low, high, unit = LIMITS[name]
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {quoted(str(value))}; it must be a number, in {unit}") from None
    if not low <= number <= high:
        raise ConfigError(f"{name} is {number:g}; it must be from {low:g} to {high:g} {unit}")
    return number


def _day(name: str, value: Any) -> float:
    found = day_of_year(value.isoformat() if isinstance(value, datetime.date) else str(value))
    if isinstance(found, str):
        raise ConfigError(f"{name} is {quoted(str(value))} ({found}); write it as 2026-05-01")
    return found


def _hour(name: str, value: Any) -> float:
    text = value.isoformat() if isinstance(value, datetime.time) else str(value)
    found = "in UTC" if is_utc(text) else hour_of_day(text)
    if isinstance(found, str):
        raise ConfigError(f"{name} is {quoted(text)} ({found}); write the local time as 16:10")
    return found
