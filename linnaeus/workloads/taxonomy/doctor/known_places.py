"""Check coordinates against points to which records are georeferenced if only a country, a province or a museum is known.

The points are the capitals in `capitals.csv`, rounded to 0.01 degrees, and those of a table of the user (`--places`), with the columns
name, latitude, longitude and kind, or with those of GBIF's Catalogue of Centroids. A record is near a point within the distance that
CoordinateCleaner uses for the kind (Zizka et al. 2019, doi:10.1111/2041-210X.13152): 1 km for a centroid of a country or province, 100 m
for an institution. For capitals, whose real records are many, it is 2 km in place of 10 km. Centres differ between lists: 39 of 190 by more
than 2 km, up to 11 km, from those of GeoNames. So some of these records are missed.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, Places, Severity, found
from linnaeus.workloads.taxonomy.doctor.places import on_earth, place_columns
from linnaeus.workloads.taxonomy.manifest.tables.table import read_table

CAPITALS = Path(__file__).with_name("capitals.csv")
COLUMNS = ("name", "latitude", "longitude", "kind")
CATALOGUE = ("source_locality_name", "decimal_latitude", "decimal_longitude", "type")  # the same in centroids.tsv of GBIF's catalogue
CATALOGUE_KINDS = {"pcli": "country", "adm1": "province"}  # its types: a country or an area with an own code, and a province
KINDS: dict[str, tuple[float, Severity, str]] = {  # kind -> distance in km, severity, words of the finding
    "capital": (2.0, "note", "the centre of a capital"),
    "country": (1.0, "warning", "the centroid of a country"),
    "province": (1.0, "warning", "the centroid of a province"),
    "institution": (0.1, "warning", "an institution, such as a museum or a zoo"),
    "other": (1.0, "warning", "a place of the list"),
}
KM_PER_DEGREE = 111.2  # of latitude
SHOWN = 4  # places named in the line of a finding


@cache
def capitals() -> Places:
    """Return the capitals of the world."""
    return _places(CAPITALS, COLUMNS[:3])


def read_places(path: Path) -> Places:
    """Return the capitals and the points of a CSV. Raise `ConfigError` for a file without the columns or with an impossible cell."""
    own, world = _places(path, COLUMNS), capitals()
    both = [np.concatenate(pair) for pair in ((own.latitude, world.latitude), (own.longitude, world.longitude))]
    return Places([*own.name, *world.name], both[0], both[1], [*own.kind, *world.kind])


def _places(path: Path, names: tuple[str, ...]) -> Places:
    def choose(header: Sequence[str]) -> Sequence[str]:
        if set(CATALOGUE) <= set(header):
            return CATALOGUE
        if absent := [name for name in names if name not in header]:
            raise ConfigError(f"--places: {quoted(str(path), 120)} has no column {absent[0]}; its columns must be {', '.join(COLUMNS)}")
        return names

    table = read_table(path, choose, "--places", whole=True)
    own = dict(zip(CATALOGUE, COLUMNS, strict=True))
    cells = {own.get(name, name): [column.values[code] for code in column.codes.tolist()] for name, column in table.columns.items()}
    kind = [CATALOGUE_KINDS.get(word.lower(), word.lower()) for word in cells.get("kind", ["capital"] * len(table))]
    if unknown := sorted(set(kind) - set(KINDS)):
        raise ConfigError(f"--places: {quoted(str(path), 120)} has the kind {quoted(unknown[0])}; it must be one of {', '.join(KINDS)}")
    degrees = []
    for name, most in (("latitude", 90), ("longitude", 180)):
        numbers = [_number(text.replace(",", ".") if table.decimal_comma else text) for text in cells[name]]
        if wrong := [row for row, number in enumerate(numbers) if not abs(number) <= most]:
            raise ConfigError(f"--places: {quoted(str(path), 120)}, row {wrong[0] + 1}: {name} must be from -{most} to {most}")
        degrees.append(np.array(numbers))
    return Places(cells["name"], degrees[0], degrees[1], kind)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def near_known_places(records: Inspected) -> list[Finding]:
    """Return a finding for each kind of known places with the rows near one. Capitals are a note: real records of cities are near them,
    too. A row near several places is in the finding of the first kind of `KINDS`, with the nearest place of it."""
    rows = np.flatnonzero(on_earth(records))
    findings: list[Finding] = []
    seen = np.zeros(len(records), dtype=bool)
    for kind, (limit, severity, words) in KINDS.items():
        place, km = nearest(records.latitude[rows], records.longitude[rows], records.places, kind, limit)
        near = (place >= 0) & ~seen[rows]
        seen[rows[near]] = True
        place, km = place[near], km[near]
        number, count = np.unique(place, return_counts=True)
        order = np.argsort(-count, kind="stable")
        names = [f"{records.places.name[number[i]]} ({count[i]:,})" for i in order[: SHOWN + 1].tolist()]
        text = f"within {limit:g} km of {words}, to which records without an exact place are georeferenced: {list_some(names, SHOWN)}"
        text += f"; {counted(len(number), 'place')}" if len(number) > SHOWN else ""
        details = tuple(f"{distance:.2f} km from {records.places.name[p]}" for p, distance in zip(place.tolist(), km.tolist(), strict=True))
        empty = () if severity == "note" else place_columns(records)
        findings += found(f"near {kind if kind != 'other' else 'a known place'}", severity, rows[near], text, details=details, empty=empty)
    return findings


def nearest(latitude: np.ndarray, longitude: np.ndarray, places: Places, kind: str, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest place of a kind within `limit` km of each of N points, int64 [N], -1 for none, and its distance in km, float64
    [N]. The points are sorted by latitude, so that a place is compared only with the points in its band of latitudes."""
    order = np.argsort(latitude, kind="stable")
    north, east = latitude[order], longitude[order]
    place, best = np.full(len(order), -1, dtype=np.int64), np.full(len(order), np.inf)
    band = limit / KM_PER_DEGREE
    for number in (i for i, own in enumerate(places.kind) if own == kind):
        own = slice(*np.searchsorted(north, [places.latitude[number] - band, places.latitude[number] + band]))
        wide = (east[own] - places.longitude[number] + 180) % 360 - 180
        high = north[own] - places.latitude[number]
        km = KM_PER_DEGREE * np.hypot(high, wide * np.cos(np.radians(places.latitude[number])))
        nearer = (km <= limit) & (km < best[own])
        best[own][nearer] = km[nearer]
        place[own][nearer] = number
    found_place, found_km = np.empty_like(place), np.empty_like(best)
    found_place[order], found_km[order] = place, best
    return found_place, found_km
