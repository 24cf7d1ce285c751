"""Read data=darwin_core: a Darwin Core Archive, such as a download from GBIF, with occurrences and links to their photographs.

`data.path` is a zip or tar file, a folder with `meta.xml`, or a single table. Records are the rows of an Occurrence or Taxon core (the main
table). In an archive with an Event core, records are the occurrences of the events, joined with the terms (columns) of their events.
Photographs are listed in a Multimedia extension or in the term `associatedMedia`, or are files that are named after the ids of records.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linnaeus.errors import ConfigError, list_some, quoted
from linnaeus.workloads.taxonomy.config import DarwinCoreConfig
from linnaeus.workloads.taxonomy.manifest.columns import AUTO, plain_name
from linnaeus.workloads.taxonomy.manifest.labels.ranks import KNOWN_RANKS
from linnaeus.workloads.taxonomy.manifest.records import Choose, Records, in_folder, local_or_url
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import null_values
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.table import Table, without_long_values
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from linnaeus.workloads.taxonomy.sources.darwin_core_archive import archive_media, occurrences
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_descriptor import DataFile, read_descriptor
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_media import Photographs, given, taken
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_members import DESCRIPTOR, Archive
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_tables import KEY, DataRows, describe, read_rows
from linnaeus.workloads.taxonomy.sources.folders.local_files import NOT_DOWNLOADED, files_of_records, find_files

_TABLES = (".csv", ".tsv", ".txt")
_MEDIA = ("Multimedia", "Image")  # kinds of extensions with photographs
_READ = (  # terms that are read in addition to those that the configuration chooses
    *("genus", "specificEpithet", "scientificName", "taxonRank", "occurrenceID", "occurrenceStatus", "issue", "associatedMedia"),
    *occurrences.DATES,
    *occurrences.ELEVATIONS,
)


class _Parts(NamedTuple):
    """Archive, and the descriptions of its tables."""

    archive: Archive
    core: DataFile
    occurrences: DataFile | None  # extension with the occurrences of an Event core
    media: list[DataFile]  # extensions with photographs

    def terms(self) -> list[str]:
        """Return the terms (names of columns) of the records."""
        return list(dict.fromkeys([*(self.occurrences.terms() if self.occurrences else ()), *self.core.terms()]))

    def unit(self) -> str | None:
        """Return the term whose equal values stay on one side of a split by default; None if the records are taxa."""
        return {"Event": "eventID", "Taxon": None}.get(self.core.kind, "occurrenceID")


def read_records(config: DarwinCoreConfig, choose: Choose) -> Records:
    """Return the photographs of an archive, in the order of the records.

    Raise ConfigError if the archive cannot be read, does not name taxa, or none of its photographs has a file."""
    parts = _open(Path(config.path).expanduser())
    terms = parts.terms()
    unit = parts.unit() if config.group_column == AUTO else None
    header = [unit] if unit is not None and unit not in terms else []
    keys = {"group_column": unit} if config.group_column == AUTO else {}
    chosen = list(dict.fromkeys(choose(["path", *_with_derived(terms), *header], **keys)))
    if "path" not in chosen:
        raise ConfigError("data.image_column: an archive defines where its photographs are; leave the key out")
    ranks = {plain_name(term): term for term in reversed(terms) if plain_name(term) in KNOWN_RANKS}
    records, key = _read(parts, list(dict.fromkeys([*chosen, *ranks.values(), *_READ])))
    occurrences.clean(records.columns, ranks, records.notes)
    folder = local_or_url(config.root) if config.root is not None else parts.archive.place()
    excluded = LeftOut(records.left_out)
    photographs = _photographs(parts, records, key, list(ranks.values()), config, folder, excluded)
    photographs.drop(occurrences.are_absent(records.columns)[photographs.record], "record with occurrenceStatus absent")
    excluded.include(photographs.excluded)
    if not len(photographs.record):
        raise ConfigError(f"data.path: no photograph can be used: {list_some([f'{r} ({n})' for r, n in excluded.items()])}")
    if unit is not None:
        records.columns[unit] = _units(records, key, unit)
    cells = {name: taken(records.columns[name], photographs.record) if name != "path" else photographs.link for name in chosen}
    table = Table(cells, decimal_comma=parts.core.delimiter == ";", excluded=excluded, notes=tuple(records.notes))
    return in_folder(without_long_values(table), config, folder)


def _open(path: Path) -> _Parts:
    """Return the tables that the descriptor of an archive lists. Without a descriptor, recognise the tables by the names of the files.

    Raise `ConfigError` if there is no descriptor, and no table or several tables that may be the table of occurrences."""
    alone = os.path.isfile(path) and path.suffix.lower() in _TABLES
    archive = Archive(path.parent if alone else path)
    if archive.has(DESCRIPTOR):
        core, extensions = read_descriptor(archive)
        found = next((file for file in extensions if file.kind == "Occurrence"), None) if core.kind == "Event" else None
        if not alone or path.name in core.names:
            return _Parts(archive, core, found, [file for file in extensions if file.kind in _MEDIA])
    tables = [path.name] if alone else archive.tables()
    cores = [name for name in tables if name.lower() == "occurrence.txt"] or tables
    if len(cores) != 1:
        problem = f"several tables ({list_some(cores, 4)})" if cores else "no table"
        raise ConfigError(f"data.path: {quoted(str(path), 120)} has {problem} and no {DESCRIPTOR}; set the table with the occurrences")
    media = [describe(archive, "multimedia.txt", "Multimedia")] if archive.has("multimedia.txt") and cores[0] != "multimedia.txt" else []
    return _Parts(archive, describe(archive, cores[0], "Occurrence"), None, media)


def _with_derived(terms: Sequence[str]) -> list[str]:
    """Return the terms of an archive, and the terms that `occurrences.clean` can derive from them."""
    plain = {plain_name(term) for term in terms}
    derived = ["genus"] if "scientificname" in plain and "genus" not in plain else []
    derived += ["species"] if plain & {"scientificname", "specificepithet"} and "species" not in plain else []
    derived += ["eventDate"] if {"year", "month"} <= plain and "eventdate" not in plain else []
    return [*terms, *derived]


def _read(parts: _Parts, terms: Sequence[str]) -> tuple[DataRows, Column]:
    """Return the records, and a column with the id of the core row of each record. Occurrences of events also have the terms of their
    events."""
    core = read_rows(parts.archive, parts.core, terms)
    key = core.columns.setdefault(KEY, occurrences.blank(core.size))
    if parts.occurrences is None:
        return core, key
    rows = read_rows(parts.archive, parts.occurrences, terms)
    event_id = rows.columns.setdefault(KEY, occurrences.blank(rows.size))
    event = archive_media.first_rows(key.codes.astype(np.int64), len(key.values))[archive_media.codes_in(event_id, key)]
    columns = dict(rows.columns)
    for term, column in core.columns.items():
        if term != KEY:
            of_event = Column(np.append(column.codes, len(column.values))[event].astype(np.int32), [*column.values, ""])
            columns[term] = occurrences.first_known(columns[term], of_event) if term in columns else of_event
    if orphans := int((event < 0).sum()):
        rows.notes.append(f"occurrences whose event is not in the archive: {orphans}")
    left_out = LeftOut(core.left_out)
    left_out.include(rows.left_out)
    return DataRows(columns, rows.size, left_out, [*core.notes, *rows.notes]), event_id


def _units(records: DataRows, key: Column, unit: str) -> Column:
    """Return the unit of a split for each record: the event (`unit` is eventID) or the occurrence, which may have several photographs.

    `key`: [N], id of the core row of each record, which is the event, or replaces an empty occurrenceID. A record without an id is its own
    unit."""
    found = key if unit == "eventID" else occurrences.first_known(records.columns[unit], key)
    without = np.flatnonzero(null_values(found.values)[found.codes])
    if not len(without):
        return found
    codes = found.codes.copy()
    codes[without] = len(found.values) + np.arange(len(without))
    return Column(codes, [*found.values, *(f"record {row}" for row in (without + 1).tolist())])


def _photographs(
    parts: _Parts, records: DataRows, key: Column, ranks: Sequence[str], config: DarwinCoreConfig, folder: Path | str, excluded: LeftOut
) -> Photographs:
    """Return the photographs of the records, with paths of local files in place of links. Add photographs that are not used to `excluded`.

    `key`: id of each record's core row. `ranks`: names of the columns of the labels. `folder`: contains the files. Raise
    `ConfigError` if data.photo_names needs links, which the archive does not have."""
    columns = records.columns
    core_id = next((term for term, index in parts.core.columns.items() if index == parts.core.key), "id")
    ids = {core_id: key, "occurrenceID": columns["occurrenceID"]}
    media = [read_rows(parts.archive, file, archive_media.TERMS) for file in parts.media]
    names = key if parts.occurrences is None else columns["occurrenceID"]
    for rows in media:
        records.notes.extend(rows.notes)
        excluded.include(rows.left_out)
    media = [rows for rows in media if rows.size]
    if not media and not any(columns["associatedMedia"].values):
        if config.photo_names not in (None, "id"):
            raise ConfigError(f"data.photo_names={config.photo_names} has no effect, because the archive has no links; leave it out")
        record, found = files_of_records(folder, ids)
        records.notes.append(found.note)
        return Photographs(record, found.path, names)
    if media:
        events = parts.occurrences is not None
        photographs = archive_media.linked(media, records, key, [columns[term] for term in ranks], events, names)
    else:
        photographs = archive_media.associated(columns["associatedMedia"], names)
    if len(photographs.record):
        found = find_files(folder, photographs.link, {n: taken(c, photographs.record) for n, c in ids.items()}, config.photo_names)
        there = given(found.path)
        photographs.drop(~there, NOT_DOWNLOADED)
        photographs.link = taken(found.path, there)
        records.notes.append(found.note)
    return photographs
