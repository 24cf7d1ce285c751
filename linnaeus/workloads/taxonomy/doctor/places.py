"""Check coordinates of records.

Findings are: latitude and longitude both 0, both equal, or swapped; whole degrees; points with many records; and unlikely uncertainties
and elevations."""

import numpy as np

from linnaeus.errors import counted
from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, found
from linnaeus.workloads.taxonomy.manifest.columns import plain_name

SITE_NAMES = {name + end for name in ("site", "location", "plot", "camera", "deployment", "parentevent") for end in ("", "id", "uuid")}
PLACEHOLDERS = (301, 3036, 999, 9999)  # metres; written by georeferencing services that find only a country, and by forms
SEA_LEVEL = 10.0  # metres above and below 0 among which the rows of an elevation of exactly 0 are too frequent or not
PEAK, PEAK_ROWS = 10.0, 10  # least number of rows of elevation 0: as a multiple of the mean of the other metres, and absolute
SHARED_ROWS, SHARED_DAYS = 20, 10  # fewest rows and days at a point that many records share
USUAL_SHARE = 0.2  # share of the rows; if more rows are at such points, the data are from fixed sites


def on_earth(records: Inspected) -> np.ndarray:
    """Return bool [N], True for rows with possible coordinates. 0, 0 is possible with data.keep_zero_coordinates=true."""
    possible = (np.abs(records.latitude) <= 90) & (np.abs(records.longitude) <= 180)
    return possible & (records.config.keep_zero_coordinates | ~_zero(records))


def _zero(records: Inspected) -> np.ndarray:
    """Return bool [N], True for rows with the coordinates 0, 0."""
    return (records.latitude == 0) & (records.longitude == 0)


def place_columns(records: Inspected) -> tuple[str, ...]:
    """Return the names of the columns of latitude, longitude and uncertainty, without columns that the source does not have."""
    config = records.config
    return tuple(name for name in (config.latitude_column, config.longitude_column, config.uncertainty_column) if name is not None)


def coordinates(records: Inspected) -> list[Finding]:
    """Return findings with the rows whose coordinates are impossible or improbable in themselves, without a comparison with other rows."""
    latitude, longitude = records.latitude, records.longitude
    remedy = {"empty": place_columns(records)}
    zero = _zero(records)
    swapped = (np.abs(latitude) > 90) & (np.abs(latitude) <= 180) & (np.abs(longitude) <= 90)
    outside = ((np.abs(latitude) > 90) | (np.abs(longitude) > 180)) & ~swapped
    good = on_earth(records) & ~zero
    equal = good & (np.abs(latitude) == np.abs(longitude))
    one_zero = good & ((latitude == 0) | (longitude == 0))
    whole = good & ~equal & ~one_zero & (latitude == np.round(latitude)) & (longitude == np.round(longitude))
    half = np.isnan(latitude) != np.isnan(longitude)
    kept = " (not with data.keep_zero_coordinates=true)"
    missing = "training sets them to missing"
    return [
        *found("coordinates 0, 0", "error", zero & (not records.config.keep_zero_coordinates), missing + kept, **remedy),
        *found(
            "latitude and longitude swapped",
            "error",
            swapped,
            f"only the latitude is beyond 90 degrees; {missing}",
            **remedy,
        ),
        *found("impossible coordinates", "error", outside, f"latitude beyond 90 or longitude beyond 180 degrees; {missing}", **remedy),
        *found("latitude equals longitude", "warning", equal, "equal except for the sign, probably a data-entry mistake", **remedy),
        *found("latitude or longitude 0", "warning", one_zero, "exactly 0, probably a missing number", **remedy),
        *found("whole degrees", "warning", whole, "latitude and longitude are whole numbers: up to 78 km from the place", **remedy),
        *found("latitude or longitude missing", "warning", half, f"only one of the two is known; {missing}", **remedy),
    ]


def uncertainties(records: Inspected) -> list[Finding]:
    """Return findings with the rows whose coordinate uncertainty is 0, or a placeholder that programs write for an unknown uncertainty."""
    remedy = {"empty": (str(records.config.uncertainty_column),)}
    frequent = [value for value in PLACEHOLDERS if _stands_out(records.uncertainty, value)]
    text = f"{', '.join(map(str, frequent))} m: placeholders that programs write for an unknown uncertainty"
    return [
        *found("placeholder uncertainty", "warning", np.isin(records.uncertainty, frequent), text, **remedy),
        *found(
            "uncertainty 0",
            "warning",
            records.uncertainty == 0,
            "the uncertainty of a place cannot be 0 m; the cell should be empty",
            **remedy,
        ),
    ]


def elevations(records: Inspected) -> list[Finding]:
    """Return a finding with the rows whose elevation is exactly 0 if they are many more than the rows of other metres near the sea level;
    otherwise []. Rows that training sets to missing, by data.elevation_missing=0, are not reported."""
    elevation = records.elevation
    zero = elevation == 0
    near = int(((np.abs(elevation) <= SEA_LEVEL) & ~zero).sum()) / (2 * SEA_LEVEL)
    if records.config.elevation_missing == 0 or zero.sum() < max(PEAK_ROWS, PEAK * near):
        return []
    text = f"other metres near 0 have {near:.1f} rows each: 0 may be an unknown elevation; data.elevation_missing=0 sets it to missing"
    return found("elevation 0", "warning", zero, text)


def _stands_out(values: np.ndarray, value: float) -> bool:
    """Return True if `value` occurs more than twice as often in `values` as the other values within 2 % of `value` do on average."""
    near, count = np.unique(values[np.abs(values - value) <= 0.02 * value], return_counts=True)
    own, others = count[near == value].sum(), count[near != value]
    return own > 2 * others.mean() if len(others) else own > 0


def shared_points(records: Inspected) -> list[Finding]:
    """Return a finding with the rows at points (equal coordinates) that have many records from many days. Such a point is probably the
    centroid of a country or province, a capital or an institution.

    Return [] for data from fixed sites: if there is a column of sites, or if more than `USUAL_SHARE` of the rows are at such points."""
    if any(plain_name(name) in SITE_NAMES for name in records.groups):
        return []
    rows = np.flatnonzero(on_earth(records))
    point = np.unique(np.stack([records.latitude[rows], records.longitude[rows]], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    days = np.unique(np.stack([point, records.date[rows].astype(np.int64)], axis=1)[~np.isnat(records.date[rows])], axis=0)
    count, different = np.bincount(point), np.bincount(days[:, 0], minlength=point.max(initial=-1) + 1)
    shared = (count >= SHARED_ROWS) & (different >= SHARED_DAYS)
    at = shared[point]
    if at.sum() > USUAL_SHARE * len(rows):
        return []
    text = f"{counted(shared.sum(), 'point')} with records of many days, probably a centroid, a capital or an institution"
    details = tuple(f"{counted(count[p], 'row')} of {counted(different[p], 'day')} at this point" for p in point[at].tolist())
    return found("point of many records", "warning", rows[at], text, details=details)
