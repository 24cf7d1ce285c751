"""`Records`: the table of photographs and the image files that the reader of a data format returns. `manifest_source` does the rest.

A reader is a function `read_records(config, choose)` in a module of `READERS`. It calls `choose(header)` with the names of all columns of
the data set, and returns the columns that `choose` returns. Some formats determine keys of the configuration: their readers call
`choose(header, key=value)` to set the keys. So that columns are recognised, a reader names them as in Darwin Core or as in `columns.NAMES`,
and names columns of labels like their ranks. A row is a photograph of an observation; its column `path` contains the name of the
photograph.
"""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.images.image_files import FolderFiles, ImageFiles
from linnaeus.workloads.taxonomy.images.url_files import UrlFiles, has_urls, is_url
from linnaeus.workloads.taxonomy.manifest.columns import AUTO
from linnaeus.workloads.taxonomy.manifest.tables.column import CHUNK, Column, ColumnBuilder
from linnaeus.workloads.taxonomy.manifest.tables.table import Table, read_table

SOURCES = "linnaeus.workloads.taxonomy.sources"
READERS = {  # data.name -> module of its reader
    "manifest": "linnaeus.workloads.taxonomy.manifest.records",
    "image_folder": f"{SOURCES}.folders.image_folder",
    "inat_competition": f"{SOURCES}.inaturalist.inat_competition",
    "labels_h5": f"{SOURCES}.h5.labels_h5",
    "webdataset": f"{SOURCES}.shards.webdataset",
    "camtrap_dp": f"{SOURCES}.camera_traps.camtrap_dp",
    "hugging_face": f"{SOURCES}.shards.hugging_face",
    "darwin_core": f"{SOURCES}.darwin_core_archive.darwin_core",
    "inat_open_data": f"{SOURCES}.inaturalist.inat_open_data",
}
MEMBERS = ("webdataset", "hugging_face")  # sources whose photographs a manifest can name, with data.root=SOURCE:PATH


class Choose(Protocol):
    """Function that returns the names of the columns to read. `header`: names of all columns. `keys`: configuration keys to set."""

    def __call__(self, header: Sequence[str], **keys: Any) -> Sequence[str]: ...


class Records(NamedTuple):
    """Table of the rows of a data source, and the function that returns their image files.

    `table.excluded` counts rows that cannot be used; `table.notes` are lines for the user."""

    table: Table
    files: Callable[[Sequence[str]], ImageFiles]  # returns the image files for values of the image column
    place: str = ""  # path of the image files, for messages


def read(config: ManifestConfig, choose: Choose) -> Records:
    """Return the records of the data source `config.name`. Raise `ConfigError` if the data source cannot be read."""
    if is_url(config.path) and config.name != "image_folder":
        raise ConfigError(f"data.path: {quoted(config.path, 120)} is a URL; `linnaeus prepare {config.name} OUT data.path=URL` reads it")
    return importlib.import_module(READERS[config.name]).read_records(config, choose)


def read_records(config: ManifestConfig, choose: Choose) -> Records:
    """Return the records of a CSV or Parquet manifest. Raise `ConfigError` if the file or the folder of its photographs does not exist."""
    path = Path(config.path).expanduser()
    table = read_table(path, choose)
    source, colon, place = (config.root or "").partition(":")
    if colon and source in MEMBERS:
        return Records(table, lambda names: members(source, place, config, names), place)
    return in_folder(table, config, path.parent)


def check_rows(rows: int, excluded: Mapping[str, int]) -> None:
    """Raise `ConfigError` if a data source has no rows. `rows`: number of rows. `excluded`: reason -> number of rows that were left out."""
    if not rows:
        reasons = list_some([f"{reason} ({count})" for reason, count in excluded.items()]) or "there are none"
        raise ConfigError(f"data.path: no photograph can be used: {reasons}")


def column_of(cells: Sequence[str]) -> Column:
    """Return a column with these cells."""
    column = ColumnBuilder()
    for first in range(0, len(cells), CHUNK):
        column.extend(cells[first : first + CHUNK])
    return column.column()


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return the names, made distinct: the row number is appended to a name that is empty or occurs in an earlier row."""
    seen = {""}
    found = []
    for row, name in enumerate(names):
        while name in seen:
            name = f"{name}#{row}"
        seen.add(name)
        found.append(name)
    return found


def with_values(column: Column, values: Sequence[str]) -> Column:
    """Return the column with its distinct value i replaced by `values[i]`."""
    coded = column_of(values)
    return Column(coded.codes[column.codes], coded.values)


def local_or_url(path: str) -> Path | str:
    """Return a URL unchanged, and any other text as a local path."""
    return path if is_url(path) else Path(path).expanduser()


def in_folder(table: Table, config: ManifestConfig, folder: Path | str) -> Records:
    """Return records whose photographs are files in data.root, or in `folder` if data.root is not set; either may be a URL. Raise
    `ConfigError` if this is not a folder."""
    root = local_or_url(config.root) if config.root is not None else folder
    if not is_url(root) and not os.path.isdir(root):
        raise ConfigError(f"data.root: {quoted(str(root), 200)} is not a folder; set the folder that the image paths are relative to")
    return Records(table, lambda names: photographs_in(root, names), str(root))


def members(source: str, path: str, config: ManifestConfig, names: Sequence[str]) -> ImageFiles:
    """Return the photographs of another source with these names, such as members of tar files. source: one of `MEMBERS`, with the data.path
    `path`. config: of the manifest.

    Raise `ConfigError` if the source cannot be read, or does not have a photograph."""
    wanted = AUTO if config.image_column == "path" else config.image_column  # the reader gives the name path to the only photographs
    other = replace(config, name=source, path=path, root=None, image_column=wanted)

    def choose(header: Sequence[str], **keys: Any) -> Sequence[str]:
        return [wanted if wanted in header else "path"]

    try:
        records = importlib.import_module(READERS[source]).read_records(other, choose)
    except ConfigError as error:
        raise ConfigError(str(error).replace("data.path", "data.root", 1)) from error
    (column,) = records.table.columns.values()
    files = records.files(column.values)
    row = {name: i for i, name in enumerate(files.names.tolist())}
    absent = [name for name in names if name not in row]
    if absent:
        shown = list_some([quoted(name) for name in absent], 3)
        raise ConfigError(f"data.root: {quoted(path, 160)} does not have {counted(len(absent), 'photograph')} of the manifest: {shown}")
    return files.take(np.array([row[name] for name in names], dtype=np.int64))


def photographs_in(root: Path | str, names: Sequence[str]) -> ImageFiles:
    """Return the image files in a folder, which may be a URL. Names may be URLs, too."""
    return UrlFiles(str(root), names) if is_url(root) or has_urls(names) else FolderFiles(root, names)
