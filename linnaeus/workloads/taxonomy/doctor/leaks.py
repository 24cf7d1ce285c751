"""Check the split for leaks: groups of rows, such as one observation, or bursts of photographs, that have rows in several of training,
validation and test."""

import numpy as np

from linnaeus.errors import counted, quoted
from linnaeus.workloads.taxonomy.doctor.dropped_rows import NO_ROWS
from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, Severity, found
from linnaeus.workloads.taxonomy.doctor.places import SITE_NAMES, on_earth
from linnaeus.workloads.taxonomy.manifest.columns import plain_name
from linnaeus.workloads.taxonomy.manifest.splitting.split import LEFT_OUT
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import value_numbers
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.observations import VALIDATION

EARLIER = "an earlier split (training before validation before test)"
BURST = 60.0  # most seconds between two consecutive photographs of a burst
_WORKERS = {"recordedby", "rightsholder"} | {name + end for name in ("observer", "photographer", "user") for end in ("", "id", "uuid")}


def group_leaks(records: Inspected) -> list[Finding]:
    """Return findings with the rows whose observation, site or observer also occurs in an earlier split (of training, validation, test).

    Without a split column, return a note for each column of groups that a random split would divide; no notes if data.group_column is
    set."""
    findings = []
    for name, column in records.groups.items():
        number = value_numbers(column)
        plain = plain_name(name)
        kind = "observer" if plain in _WORKERS else "site" if plain in SITE_NAMES else "observation"
        if records.split is None:
            findings += _divided_note(name, number, column) if records.config.group_column is None else []
            continue
        rows = leaking(np.where(records.used, number, -1), records.split)
        severity: Severity = "error" if kind == "observation" else "warning"
        outside = int((records.used & np.isin(records.split, (VALIDATION, LEFT_OUT))).sum())
        text = (
            f"these rows, of {outside:,} outside training, share their {quoted(name)} with rows of {EARLIER}; "
            f"data.split_column=null data.group_column={name} keeps each on one side"
        )
        details = tuple(f"{name} {column.values[code]}" for code in number[rows].tolist())
        findings += found(f"same {kind} in two splits", severity, rows, text, details=details)
    return findings


def leaking(number: np.ndarray, split: np.ndarray) -> np.ndarray:
    """Return the rows whose group also occurs in an earlier split, int64 [K].

    `number` int64 [N]: group of each row, -1 for none and for rows that training leaves out."""
    grouped = np.flatnonzero(number >= 0)
    first = np.full(int(number.max(initial=0)) + 1, LEFT_OUT)
    np.minimum.at(first, number[grouped], split[grouped])
    return grouped[split[grouped] > first[number[grouped]]]


def _divided_note(name: str, number: np.ndarray, column: Column) -> list[Finding]:
    several = int((np.bincount(number[number >= 0], minlength=len(column.values)) > 1).sum())
    text = (
        f"{counted(several, 'value')} of {quoted(name)} with several rows, which a random split divides; data.group_column={name} does not"
    )
    return [Finding("groups in a random split", "note", NO_ROWS, text)] if several else []


def bursts(records: Inspected) -> list[Finding]:
    """Return a finding with the rows that belong to the same burst (photographs at one place, seconds apart) as a row of an earlier split.
    Such rows probably show the same individual. Return a note if rows have a place and a date, but none a time."""
    if records.split is None:
        return []
    place = _places(records)
    when = records.date.astype(np.float64) * 86400 + records.hour * 3600
    dated = records.used & (place >= 0) & ~np.isnat(records.date)
    if dated.any() and np.isnan(records.hour[dated]).all():
        text = "no row with a place and a date has a time, so it is unknown which photographs were taken seconds apart"
        return [Finding("bursts not checked", "note", NO_ROWS, text)]
    rows = np.flatnonzero(dated & ~np.isnan(records.hour))
    order = rows[np.lexsort((when[rows], place[rows]))]
    close = (place[order[1:]] == place[order[:-1]]) & (when[order[1:]] - when[order[:-1]] <= BURST)
    burst = np.full(len(place), -1, dtype=np.int64)
    burst[order] = np.cumsum(np.append(True, ~close)) if len(order) else burst[order]
    text = f"taken within {BURST:g} s of a photograph of {EARLIER} at the same place; split by observation, site or date"
    return found("burst in two splits", "error", leaking(burst, records.split), text)


def _places(records: Inspected) -> np.ndarray:
    """Return the number of the site of each row, int64 [N]; -1 if the site is unknown. Without a column of sites, rows with equal
    coordinates are one site."""
    for name, column in records.groups.items():
        if plain_name(name) in SITE_NAMES:
            return value_numbers(column)
    number = np.full(len(records), -1, dtype=np.int64)
    rows = np.flatnonzero(on_earth(records))
    order = np.lexsort((records.longitude[rows], records.latitude[rows]))
    place = np.stack([records.latitude[rows][order], records.longitude[rows][order]])
    number[rows[order]] = np.cumsum(np.append(True, (place[:, 1:] != place[:, :-1]).any(axis=0))) if len(rows) else number[rows]
    return number
