"""Check the coordinates of land organisms against a map of land and sea, if `global-land-mask` is installed (`linnaeus[doctor]`).

A species is checked if it has at least seven records, nine tenths of them on land. A record is not reported if land is within 10 km of it
or within its coordinate uncertainty. The map has cells of about 1 km and takes 1 GB of memory.
"""

import importlib.util

import numpy as np

from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, found
from linnaeus.workloads.taxonomy.doctor.places import on_earth, place_columns
from linnaeus.workloads.taxonomy.doctor.species_ranges import FEWEST

LAND_SHARE = 0.9
COAST_KM, KM_PER_DEGREE = 10.0, 111.2  # 111.2 km are one degree of latitude
DIRECTIONS = 16  # in which points are tested for land, at the full distance and at half of it


def can_check_sea() -> bool:
    """Return True if the map `global-land-mask` is installed."""
    return importlib.util.find_spec("global_land_mask") is not None


def at_sea(records: Inspected) -> list[Finding]:
    """Return a list with one finding about the records of land organisms that are at sea; [] if there are no such records or the map is not
    installed."""
    rows = np.flatnonzero((records.species >= 0) & on_earth(records))
    if not len(rows) or not can_check_sea():
        return []
    from global_land_mask import globe  # type: ignore[import-not-found]

    land = globe.is_land(records.latitude[rows], records.longitude[rows])
    species = records.species[rows]
    all_of, on_land = np.bincount(species), np.bincount(species, weights=land)
    of_land = (all_of >= FEWEST) & (on_land >= LAND_SHARE * all_of)
    rows = rows[~land & of_land[species]]
    metres = records.uncertainty[rows]
    reach = np.maximum(COAST_KM, np.where(np.isnan(metres), 0, metres) / 1000)
    near = np.zeros(len(rows), dtype=bool)
    for km in (reach / 2, reach):
        for angle in np.arange(DIRECTIONS) * 2 * np.pi / DIRECTIONS:
            latitude = np.clip(records.latitude[rows] + km / KM_PER_DEGREE * np.cos(angle), -90, 90)
            wide = KM_PER_DEGREE * np.maximum(np.cos(np.radians(records.latitude[rows])), 0.01)
            longitude = (records.longitude[rows] + km / wide * np.sin(angle) + 180) % 360 - 180
            near |= globe.is_land(latitude, longitude)
    text = "more than 10 km from land, but nine tenths of the records of the species are on land"
    return found("at sea", "warning", rows[~near], text, empty=place_columns(records))
