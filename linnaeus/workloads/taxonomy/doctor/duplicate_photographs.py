"""Check for photographs with the same bytes and for near duplicates, within a split and across splits.

If a photograph is in two splits, its copy in the later split is reported; the order is training, validation, test. Near duplicates of one
observation in one split are not reported, since a series of photographs of one animal is usual.
"""

import itertools
from collections.abc import Callable

import numpy as np

from linnaeus.workloads.taxonomy.arrays.text_arrays import unique_strings
from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, Severity, found
from linnaeus.workloads.taxonomy.doctor.near_duplicates import near_pairs
from linnaeus.workloads.taxonomy.doctor.photograph_checks import INFORMATIVE
from linnaeus.workloads.taxonomy.doctor.pixels import Pixels
from linnaeus.workloads.taxonomy.manifest.columns import plain_name
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import value_numbers

DISTANCE = 8  # largest number of different bits of the 64-bit hashes of near duplicates
ALIKE = 0.9  # least correlation of thumbnails; of 4,000 drawn photographs, 5 pairs have near hashes and correlate by at most 0.75
SIDES = 3  # training, validation, test
NONE = np.iinfo(np.int64).max
CHUNK = 1 << 16  # pairs of thumbnails that are compared at once
_PLACE = 40  # low bits of a key, for the position; the distance is above them, so the least key is the nearest, then the first
_OBSERVATIONS = ("observation", "obs", "occurrence", "individual", "organism", "specimen", "event", "parentevent", "sequence")
OBSERVATION_NAMES = {name + end for name in _OBSERVATIONS for end in ("", "id", "uuid")}

Condition = Callable[[np.ndarray, np.ndarray], np.ndarray]  # function of the positions of K pairs, int64 [K] each; returns bool [K]


def duplicate_findings(records: Inspected, pixels: Pixels) -> list[Finding]:
    """Return the findings of photographs with the same bytes and of near duplicates. Rows that training leaves out do not count.

    `pixels`: measures of the photographs of the N rows."""
    rows = np.flatnonzero(records.used & (records.sizes > 0) & (pixels.reasons == ""))
    rows = rows[_first_of_each(records, rows)]
    side = np.zeros(len(rows), dtype=np.int64) if records.split is None else records.split[rows].astype(np.int64)
    across, within = copies(pixels.content[rows], side)
    taxon = (records.labels[rows] == records.labels[rows[np.where(within < NONE, within, 0)]]).all(axis=1)
    text = "the file has the same bytes as one"
    findings = [
        *_found(records, "same bytes in two splits", "error", rows, across, f"{text} of an earlier split", leave_out=True),
        *_found(records, "same bytes", "warning", rows, np.where(taxon, within, NONE), f"{text} in an earlier row", leave_out=True),
        *_found(records, "same bytes, two taxa", "error", rows, np.where(taxon, NONE, within), f"{text} with another taxon; one is wrong"),
    ]
    rest = (across == NONE) & (within == NONE) & (pixels.entropy[rows] >= INFORMATIVE)  # empty photographs have near hashes
    rows, side = rows[rest], side[rest]
    alike, related = _alike(pixels.thumbnail[rows]), _same_observation(records, rows)
    across, within = copies(pixels.looks[rows], side, DISTANCE, alike, related)
    within = np.where(across < NONE, NONE, within)
    return [
        *findings,
        *_found(
            records, "near duplicate in two splits", "warning", rows, across, "the photograph is nearly equal to one of an earlier split"
        ),
        *_found(records, "near duplicate", "note", rows, within, "the photograph is nearly equal to one in an earlier row"),
    ]


def always(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return True for every pair, bool [K]."""
    return np.ones(len(first), dtype=bool)


def never(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return False for every pair, bool [K]."""
    return np.zeros(len(first), dtype=bool)


def copies(
    hashes: np.ndarray, side: np.ndarray, distance: int = 0, alike: Condition = always, related: Condition = never
) -> tuple[np.ndarray, np.ndarray]:
    """Find, for each of M photographs, the nearest photograph in an earlier split, and the nearest earlier photograph in its own split.

    Return two arrays, int64 [M], one for each search. An entry is the distance of the two hashes in bits times 2^40, plus the position of
    the photograph that was found; it is `NONE` if no photograph is within `distance` bits.
    `hashes`: uint64 [M]. `side`: int64 [M], number of the split. `alike`, `related`: functions of pairs of photographs. A pair is ignored
    if `alike` returns False or, in the search within a split, if `related` returns True. Of the photographs of a split that have the same
    hash, only the first is compared with other hashes."""
    distinct, number = np.unique(hashes, return_inverse=True)
    place = np.arange(len(hashes))
    first = np.full((len(distinct), SIDES), NONE)
    np.minimum.at(first, (number, side), place)
    across, within = np.full(len(hashes), NONE), np.full(len(hashes), NONE)

    def keep(keys: np.ndarray, later: np.ndarray, earlier: np.ndarray, bits: np.ndarray, excluded: Condition) -> None:
        pair = np.flatnonzero((later < NONE) & (earlier < NONE))
        pair = pair[alike(earlier[pair], later[pair])]
        pair = pair[~excluded(earlier[pair], later[pair])]
        np.minimum.at(keys, later[pair], (bits[pair].astype(np.int64) << _PLACE) + earlier[pair])

    none = np.zeros(len(hashes), dtype=np.int64)
    own = first[number, side]
    keep(within, np.where(own < place, place, NONE), own, none, related)
    for early in range(SIDES):
        keep(across, np.where(side > early, place, NONE), first[number, early], none, never)
    for a, b, bits in near_pairs(distinct, distance):
        for one, other in itertools.product(range(SIDES), repeat=2):
            i, j = first[a, one], first[b, other]
            if one == other:
                keep(within, np.where(j < NONE, np.maximum(i, j), NONE), np.minimum(i, j), bits, related)
            else:
                i, j = (i, j) if one < other else (j, i)
                keep(across, j, i, bits, never)
    nearest = np.full((len(distinct), SIDES), NONE)
    np.minimum.at(nearest, (number, side), across)
    return nearest[number, side], within


def _alike(thumbnail: np.ndarray) -> Condition:
    """Return a function `alike(first, second)` of K pairs of positions. It returns bool [K], True for a pair whose thumbnails have a
    correlation of at least `ALIKE`.

    `thumbnail`: uint8 [M, 8, 8]."""

    def alike(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        found = np.zeros(len(first), dtype=bool)
        for i in range(0, len(first), CHUNK):
            x, y = (_standard(thumbnail[part[i : i + CHUNK]]) for part in (first, second))
            found[i : i + CHUNK] = (x * y).sum(axis=1) >= ALIKE
        return found

    return alike


def _standard(thumbnail: np.ndarray) -> np.ndarray:
    """Return thumbnails as vectors with mean 0 and length 1, float32 [K, 64]."""
    values = thumbnail.reshape(len(thumbnail), -1).astype(np.float32)
    values -= values.mean(axis=1, keepdims=True)
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-6)


def _same_observation(records: Inspected, rows: np.ndarray) -> Condition:
    """Return a function `related(first, second)` of K pairs of positions in `rows`. It returns bool [K], True for a pair of rows that have
    the same value in a column of observation ids."""
    numbers = []
    for name, column in records.groups.items():
        if plain_name(name) in OBSERVATION_NAMES or name == records.config.group_column:
            numbers.append(value_numbers(column)[rows])

    def related(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        same = np.zeros(len(first), dtype=bool)
        for number in numbers:
            same |= (number[first] == number[second]) & (number[first] >= 0)
        return same

    return related


def _first_of_each(records: Inspected, rows: np.ndarray) -> np.ndarray:
    """Return the first row of each photograph path, as positions in `rows`, int64 [K] in ascending order. `repeated_photographs` reports
    the other rows."""
    if not len(rows):
        return rows
    _, number = unique_strings(records.files.names[rows])
    return np.sort(np.unique(number, return_index=True)[1])


def _found(
    records: Inspected, check: str, severity: Severity, rows: np.ndarray, keys: np.ndarray, text: str, leave_out: bool = False
) -> list[Finding]:
    """Return a list with one finding about the photographs of `rows` that have a copy; [] if no photograph has a copy.

    `rows`: int64 [M]. `keys`: int64 [M], one of the two results of `copies`. The report shows each photograph beside its copy. The other
    arguments are those of `findings.found`."""
    own = np.flatnonzero(keys < NONE)
    other = rows[keys[own] & ((1 << _PLACE) - 1)]
    bits = keys[own] >> _PLACE
    names = records.files.names[other].tolist()
    details = tuple(_detail(row, name, n) for row, name, n in zip(records.row_numbers[other].tolist(), names, bits.tolist(), strict=True))
    return found(check, severity, rows[own], text, details=details, beside=other, leave_out=leave_out)


def _detail(row: int, name: str, bits: int) -> str:
    return f"row {row}, {name}" + (f", {bits} of 64 bits differ" if bits else "")
