"""Check coordinates against the other records of the species: report records that are far away. If a changed sign or swapped numbers would
move a record near the others, the finding names this mistake.

A record is an outlier if its mean distance to the other records of its species is larger than the third quartile of these means by more
than five times their interquartile range, for species with at least seven records (the rule `quantile` of CoordinateCleaner; Zizka et al.
2019, doi:10.1111/2041-210X.13152). The mean distance must also be larger than 1,000 km and than four times the median of these means,
because the quartiles of ten records are uncertain, and large ranges have long tails. Distances are computed to at most `REFERENCES`
records, so the work is linear in the records.
"""

from collections.abc import Callable

import numpy as np

from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, found
from linnaeus.workloads.taxonomy.doctor.places import on_earth, place_columns

FEWEST, MULTIPLE, LEAST_KM, TIMES_MEDIAN = 7, 5.0, 1000.0, 4.0
REFERENCES = 128  # records of a species to which distances are computed
EARTH_KM = 6371.0  # mean radius

MISTAKES: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {  # correction -> corrected coordinates
    "latitude with the other sign": lambda latitude, longitude: (-latitude, longitude),
    "longitude with the other sign": lambda latitude, longitude: (latitude, -longitude),
    "both with the other sign": lambda latitude, longitude: (-latitude, -longitude),
    "latitude and longitude exchanged": lambda latitude, longitude: (longitude, latitude),
}


def far_from_their_species(records: Inspected) -> list[Finding]:
    """Return findings with the rows far from the other records of their species: one finding for each kind of mistake that explains the
    distance, and one for the rows that no mistake explains."""
    rows = np.flatnonzero((records.species >= 0) & on_earth(records))
    rows = rows[np.argsort(records.species[rows], kind="stable")]
    _, starts = np.unique(records.species[rows], return_index=True)
    far: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
    details: list[str] = []
    mistakes: dict[str, list[np.ndarray]] = {name: [np.empty(0, dtype=np.int64)] for name in MISTAKES}
    for own in np.split(rows, starts[1:]):
        if len(own) < FEWEST:
            continue
        outliers, distance, limit, others = _outliers(records.latitude[own], records.longitude[own])
        best, near = _mistakes(records.latitude[own[outliers]], records.longitude[own[outliers]], others)
        rest = near > limit
        for number, name in enumerate(MISTAKES):
            mistakes[name].append(own[outliers[~rest & (best == number)]])
        far.append(own[outliers[rest]])
        details += [f"{km:,.0f} km from the other records of its species on average" for km in distance[outliers[rest]]]
    return _findings(records, np.concatenate(far), details, {name: np.concatenate(rows) for name, rows in mistakes.items()})


def _findings(records: Inspected, far: np.ndarray, details: list[str], mistakes: dict[str, np.ndarray]) -> list[Finding]:
    remedy = {"empty": place_columns(records)}
    order = np.argsort(far)
    text = "far from the other records of the species, which are close to each other"
    findings = found("far from its species", "warning", far[order], text)
    findings = [Finding(**vars(f) | {"details": tuple(details[i] for i in order.tolist())}) for f in findings]
    for name, rows in mistakes.items():
        text = f"far from the other records of the species, but near them after a correction: {name}"
        check = "coordinates exchanged" if "exchanged" in name else "sign of coordinates"
        findings += found(check, "warning", np.sort(rows), text, **remedy)
    return findings


def _mistakes(latitude: np.ndarray, longitude: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each of K places, the correction that moves the place nearest to `others`, as a position in `MISTAKES`, int64 [K], and
    the mean distance to `others` after this correction in km, float64 [K]. `others`: unit vectors, float64 [M, 3]."""
    corrected = [correct(latitude, longitude) for correct in MISTAKES.values()]
    km = np.stack([np.where(np.abs(a) <= 90, mean_distance(unit_vectors(a, b), others), np.inf) for a, b in corrected])
    return km.argmin(axis=0), km.min(axis=0)


def _outliers(latitude: np.ndarray, longitude: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """Return the outliers among the K records of a species (int64), the mean distance of each record in km (float64 [K]), the limit of the
    rule `quantile` in km, and the unit vectors of the records to which distances are computed (float64 [M, 3])."""
    points = unit_vectors(latitude, longitude)
    others = points[np.linspace(0, len(points) - 1, min(len(points), REFERENCES)).astype(np.int64)]
    distance = mean_distance(points, others)
    low, middle, high = np.quantile(distance, (0.25, 0.5, 0.75))
    usual = float(high + MULTIPLE * (high - low))
    return np.flatnonzero(distance > max(usual, LEAST_KM, TIMES_MEDIAN * middle)), distance, usual, others


def unit_vectors(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Return the unit vectors from the centre of the Earth to the places with these coordinates in degrees, float64 [K, 3]."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=1)


def mean_distance(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the mean distance in km from each of K points to all `others`, float64 [K]. `points` [K, 3] and `others` [M, 3] are unit
    vectors."""
    angle = np.arccos(np.clip(points @ others.T, -1, 1))
    return EARTH_KM * angle.mean(axis=1)
