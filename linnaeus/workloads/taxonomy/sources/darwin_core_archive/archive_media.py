"""Find the photographs of the records of a Darwin Core Archive, in rows of its media extensions or as links in the records."""

import re
from collections.abc import Sequence

import numpy as np

from linnaeus.workloads.taxonomy.manifest.tables.cleaning import is_null
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_tables import KEY, DataRows
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.occurrences import are_absent, blank, combined, concatenated, first_known

TERMS = ("accessURI", "identifier", "type", "format", "occurrenceID")  # columns of media extensions that are read
_SEPARATORS = (re.compile(r"[|;]"), re.compile(r"\||;(?=\s|https?://|$)|,\s*(?=https?://)"))  # of paths; of URLs, which may have ; and ,
_PHOTOGRAPHS = ("", "stillimage", "image", "photo", "photograph", "picture")  # types of media that count as photographs
_NONE, _SEVERAL = -1, -2  # in place of the row of a record: no record, several records


class Photographs:
    """M photographs of N records. `excluded`: the photographs that were dropped and the records without a photograph, with reasons."""

    def __init__(self, record: np.ndarray, link: Column, records: Column) -> None:
        """Take M photographs and N records. `record`: int64 [M], row of each photograph's record, -1 for none, -2 for several.

        `link`: [M], link or path of each photograph. `records`: [N], ids of the records."""
        self.record, self.link, self.records, self.excluded = record, link, records, LeftOut()
        without = np.ones(len(records.codes), dtype=bool)
        without[record[record >= 0]] = False
        self.excluded.add("record without a photograph", records.cells(without))

    def drop(self, where: np.ndarray, reason: str) -> None:
        """Drop the photographs where `where`, bool [M], is True, and add them with `reason` to `excluded`.

        In `excluded`, a photograph is named by its link, or, without a link, by the id of its record."""
        linked = given(self.link)
        self.excluded.add(reason, self.link.cells(where & linked))
        self.excluded.add(reason, self.records.cells(self.record[where & ~linked & (self.record >= 0)]))
        self.excluded.add_rows(reason, np.flatnonzero(where & ~linked & (self.record < 0)) + 1, "the photographs")
        self.record, self.link = self.record[~where], taken(self.link, ~where)

    def drop_without_record(self) -> None:
        """Drop the photographs without exactly one record, add them to `excluded`, and sort the remaining photographs by record."""
        self.drop(self.record == _SEVERAL, "photograph of an id or an event with several records")
        self.drop(self.record == _NONE, "photograph of a record that is not in the archive")
        order = np.argsort(self.record, kind="stable")
        self.record, self.link = self.record[order], taken(self.link, order)


def taken(column: Column, rows: np.ndarray) -> Column:
    """Return the column with only the cells of `rows`, row numbers or bool [N]."""
    return Column(column.codes[rows], column.values)


def given(column: Column) -> np.ndarray:
    """Return bool [N]: True where a cell is not empty."""
    return np.array([bool(value) for value in column.values], dtype=bool)[column.codes]


def codes_in(ids: Column, keys: Column) -> np.ndarray:
    """Return, for each of N ids, its code in the column `keys`, int64 [N]; -1 for an id that is empty or not in `keys`."""
    number = {value: code for code, value in enumerate(keys.values) if value}
    return np.array([number.get(value, -1) for value in ids.values], dtype=np.int64)[ids.codes]


def first_rows(codes: np.ndarray, size: int) -> np.ndarray:
    """Return the first row of each code from 0 to `size` - 1, int64 [size + 1]; -1 for a code without a row.

    The last element, to which the code -1 points, is -1."""
    first = np.full(size + 1, _NONE, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    first[-1] = _NONE
    return first


def linked(
    media: Sequence[DataRows], records: DataRows, keys: Column, labels: Sequence[Column], events: bool, names: Column
) -> Photographs:
    """Return the photographs in media extensions that have a link and a record, in the order of the records.

    `keys`: [N], id of the core row of each record. `labels`: columns of taxa, [N] each. `names`: [N], names of the records for `excluded`.
    A photograph belongs to the record of its core row. Of several records of the core row, it belongs to the one with its occurrenceID.
    `events`: True if the core rows are events with several records. A photograph of an event without an occurrenceID belongs to the first
    record of the event, if all records of the event that are not marked as absent have the same taxon."""
    ids, uri, identifier, kind, form, occurrence = (
        concatenated([rows.columns.get(term, blank(rows.size)) for rows in media]) for term in (KEY, *TERMS)
    )
    codes = key_codes = codes_in(keys, keys)
    first = first_rows(codes, len(keys.values))
    if events:
        codes = np.where(are_absent(records.columns), _NONE, codes)
        present = first_rows(codes, len(keys.values))
        first = np.where(present != _NONE, present, first)
    count = np.bincount(codes[codes >= 0], minlength=len(keys.values))
    several = count > 1
    if events and several.any():
        several &= _divided(combined(labels, lambda *names: "|".join(names)), codes, len(keys.values))
    found = codes_in(ids, keys)
    record = np.where(np.append(several, False)[found], _SEVERAL, first[found])
    if "occurrenceID" in records.columns:
        named = _with_occurrence(found, occurrence, key_codes, records.columns["occurrenceID"])
        record = np.where(named != _NONE, named, record)
    photographs = Photographs(record, first_known(uri, identifier), names)
    other = combined([kind, form], _other_than_photograph)
    photographs.drop(given(other), "sound, film or another file that is not a photograph")
    photographs.drop(~given(photographs.link), "photograph without a link")
    photographs.drop_without_record()
    return photographs


def _with_occurrence(found: np.ndarray, occurrence: Column, codes: np.ndarray, own: Column) -> np.ndarray:
    """Return the record of each of M photographs that has the same core row and the same occurrenceID, int64 [M]; -1 if there is none or
    more than one. Words for missing values, such as NA, are not an occurrenceID.

    `found`: int64 [M], code of the core row of each photograph, -1 for none. `occurrence`: [M], its occurrenceID. `codes`: int64 [N], code
    of the core row of each record, -1 for none. `own`: [N], its occurrenceID."""
    number = {value: code for code, value in enumerate(own.values) if not is_null(value)}
    pairs = []
    for core, ids in ((codes, own), (found, occurrence)):
        code = np.array([number.get(value, -1) for value in ids.values], dtype=np.int64)[ids.codes]
        pairs.append(np.where((core >= 0) & (code >= 0), core * len(own.values) + code, -1))
    pair, first, count = np.unique(np.append(pairs[0], -1), return_index=True, return_counts=True)
    place = np.minimum(np.searchsorted(pair, pairs[1]), len(pair) - 1)
    same = (pairs[1] >= 0) & (pair[place] == pairs[1]) & (count[place] == 1)
    return np.where(same, first[place], _NONE)


def associated(links: Column, names: Column) -> Photographs:
    """Return the photographs in the term `associatedMedia`. `links`: [N], a cell has links separated as in `_SEPARATORS`. `names`: [N],
    names of the records for `excluded`."""
    parts = [[part.strip() for part in _SEPARATORS["://" in value].split(value) if part.strip()] for value in links.values]
    count = np.array([len(part) for part in parts], dtype=np.int64)
    start = np.cumsum(count) - count
    record = np.repeat(np.arange(len(links.codes)), count[links.codes])
    before = np.cumsum(count[links.codes]) - count[links.codes]
    codes = start[links.codes][record] + np.arange(len(record)) - before[record]
    return Photographs(record, Column(codes.astype(np.int32), [link for part in parts for link in part]), names)


def _divided(labels: Column, codes: np.ndarray, size: int) -> np.ndarray:
    """Return bool [size], True for each code from 0 to `size` - 1 whose rows have different labels. `codes`: int64 [N], -1 for none."""
    number = {value: i for i, value in enumerate(dict.fromkeys(labels.values))}
    label = np.array([number[value] for value in labels.values], dtype=np.int64)[labels.codes]
    low, high = np.full(size + 1, len(number)), np.full(size + 1, -1)
    np.minimum.at(low, codes, label)
    np.maximum.at(high, codes, label)
    return (low != high)[:-1]


def _other_than_photograph(kind: str, form: str) -> str:
    """Return the type of a medium that is not a photograph, such as "sound"; "" for a photograph. `kind`, `form`: type and format of the
    medium."""
    word = "".join(re.split(r"[/:]", kind.rstrip("/"))[-1].lower().split())
    if word and word not in _PHOTOGRAPHS and not kind.lower().startswith("image/"):  # some archives write the format as the type
        return kind
    return form if re.match(r"(audio|video|text|application|model)/", form.lower()) else ""
