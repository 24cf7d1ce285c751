"""List the photographs that a command reads: files, folders and patterns, or the rows of a manifest with places and times."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError, counted, quoted
from linnaeus.workloads.taxonomy.images.image_files import FolderFiles, ImageFiles, is_pipe
from linnaeus.workloads.taxonomy.manifest.clean_records import read_columns
from linnaeus.workloads.taxonomy.manifest.columns import plain_name
from linnaeus.workloads.taxonomy.manifest.metadata_columns import clean_metadata
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import Tally
from linnaeus.workloads.taxonomy.manifest.tables.table import Column
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.sources.folders.local_files import SUFFIXES, files_in
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import metadata_of
from linnaeus.workloads.taxonomy.trained.photographs.manifest_configuration import manifest_configuration
from linnaeus.workloads.taxonomy.trained.photographs.split_rows import rows_of_manifest, rows_of_run

MAGIC = frozenset("*?[")


@dataclass(frozen=True)
class Inputs:
    """N photographs of a command with their metadata. `names`: path of each photograph as the user gave it, or as it was found in a
    folder."""

    names: list[str]
    files: ImageFiles
    metadata: Metadata
    notes: tuple[str, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)  # name in `copied` of `from_manifest` -> column of the manifest
    place: str = ""  # folder or archive at which relative names begin; "": the current folder

    def __len__(self) -> int:
        return len(self.names)

    def identity(self) -> dict[str, Any]:
        """Return a dict with the number of photographs and a hash of their paths, metadata and copied columns, by which a `Journal`
        recognises them."""
        place = "" if all(map(os.path.isabs, self.names)) else os.path.abspath(self.place)
        found = hashlib.sha256("\0".join([*self.names, place]).encode("utf-8", "surrogateescape"))
        for values in vars(self.metadata).values():
            found.update(values.tobytes())
        for column in self.columns.values():
            found.update(json.dumps([column.values[code] for code in column.codes.tolist()]).encode())
        return {"photographs": len(self), "inputs": found.hexdigest()[:32]}


def from_paths(paths: Sequence[str], given: Mapping[str, Any]) -> Inputs:
    """Return the photographs of `paths` (files, folders, and patterns such as `photos/*.jpg`), each once, in the order given.

    Photographs of a folder and of the folders in it (`files_in`) are sorted by folder and name. `notes` of the result names the folders and
    patterns without photographs. `given`: place and time of all photographs, name -> value, as for `metadata_of`. Raise `ConfigError` for a
    path that does not exist, for a folder that cannot be read, and if there are no photographs."""
    found: dict[str, None] = {}
    empty: list[str] = []
    others = pipes = 0
    for path in paths:
        if os.path.isdir(path):
            inside = [os.path.join(path, name) for name in sorted(files_in(path, key="PHOTOS"), key=os.path.split)]
            named = [name for name in inside if name.rpartition(".")[2].lower() in SUFFIXES]
            chosen = [name for name in named if not is_pipe(name)]
            others, pipes = others + len(inside) - len(named), pipes + len(named) - len(chosen)
        elif os.path.exists(path):
            chosen = [path]
        elif MAGIC & set(path):
            named = sorted(name for name in glob.glob(path, recursive=True) if not os.path.isdir(name))  # also a link to no file
            chosen = [name for name in named if not is_pipe(name)]
            pipes += len(named) - len(chosen)
        else:
            raise ConfigError(f"PHOTOS: {quoted(path, 200)} does not exist; give files, folders or patterns such as 'photos/*.jpg'")
        found |= dict.fromkeys(chosen)
        empty += [] if chosen else [path]
    if not found:
        raise ConfigError("PHOTOS: no photograph was found; give files, folders with photographs, or --manifest")
    names = list(found)
    notes = [f"no photograph in {quoted(path, 200)}" for path in empty]
    notes += [f"left out: {counted(others, 'file')} without the suffix of a photograph in the folders"] if others else []
    notes += [f"left out: {counted(pipes, 'pipe')}"] if pipes else []
    return Inputs(names, FolderFiles("", names, listed=True, present=False), metadata_of(len(names), given), tuple(notes))


def from_run(run: Path, split: str, components: Sequence[str]) -> Inputs:
    """Return the photographs of the run in the directory `run` that belong to a split, with their place and time.

    `split`: "training", "validation" or "test". `components`: metadata components that the model reads. Raise `ConfigError` for data that
    cannot be read or are not files, and if they have no such rows."""
    source, rows = rows_of_run(run, split, components)
    files = getattr(source.images, "files", None)
    if not isinstance(files, ImageFiles):
        raise ConfigError(f"--split={split}: the photographs of {run} are not files; give PHOTOS or --manifest FILE")
    return Inputs(source.ids[rows].tolist(), files.take(rows), source.metadata.take(rows), (f"the {split} rows of {run}",), place=str(run))


def from_manifest(
    path: str, overrides: Sequence[str], components: Sequence[str], copied: Sequence[str] = (), split: str | None = None
) -> Inputs:
    """Return the photographs in the rows of a CSV or Parquet manifest, with the place and time in its columns. Labels are not read.

    `overrides`: settings of data=manifest, such as data.date_column=when. `components`: metadata components that the model reads.
    `copied`: names of further columns, which are returned if the manifest has a column of the name, or of its `plain_name`. `split`: as in
    `from_run`, by the manifest's column of the split; None: all rows. Impossible cells become null and are counted in `notes`. Raise
    `ConfigError` for a table that cannot be read, or has no rows of `split`."""
    config = replace(manifest_configuration(path, overrides), components=list(components), weight_column=None, group_column=None)
    config = config if split else replace(config, split_column=None)
    found: dict[str, str] = {}  # name in `copied` -> name in the manifest

    def more(header: Sequence[str]) -> list[str]:
        for name in copied:  # two of them may name one column
            alike = [one for one in header if plain_name(one) == plain_name(name)]
            found.update({name: name if name in header else alike[0]} if alike else {})
        return [*found.values()]

    records, columns = read_columns(config, more, labels=False)
    table, chosen = records.table, list[str]()
    column = table.columns[columns.config.image_column]
    files = records.files(column.values).take(column.codes)
    if split is not None:
        rows = rows_of_manifest(table, files.names, columns, split, chosen)
        table, files = table.take(rows), files.take(rows)
    files = files.unseen() if isinstance(files, FolderFiles) else files
    tally = Tally(files.names)
    metadata = clean_metadata(table, columns.config, tally)
    notes = [
        *columns.notes,
        *records.table.notes,
        *(f"{counted(count, 'row')} left out: {reason}" for reason, count in records.table.excluded.items()),
        *chosen,
    ]
    others = {name: table.columns[column] for name, column in found.items()}
    return Inputs(files.names.tolist(), files, metadata, (*notes, *tally.notes()), others, records.place)
