"""Read the tables of a Data Package: a folder or a zip archive with `datapackage.json` (the descriptor) and CSV files.

A table (resource) may be in one CSV file, in several CSV files (each with a header, or only the first), in .gz files, or inside
`datapackage.json`. Specification: https://specs.frictionlessdata.io/tabular-data-resource.
"""

import csv
import gzip
import io
import json
import os
import posixpath
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from linnaeus.errors import ConfigError, list_some, one_line, quoted
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.table import LONGEST_LINE, Table, TableFile, read_table

DESCRIPTOR = "datapackage.json"
LARGEST_DESCRIPTOR = 1 << 28  # bytes
MOST_COMPRESSED = 500  # largest ratio of compression; that of tables is rarely above 20, that of Deflate at most 1032
MISSING = ("", "NA", "NaN", "nan")  # cells without a value, in addition to those that the descriptor lists
DAMAGED = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)  # RuntimeError: encrypted, unknown compression
_DIALECT = {"header": (True,), "delimiter": (",", ";", "\t"), "quoteChar": ('"',), "doubleQuote": (True,)}  # values that can be read


@dataclass(frozen=True)
class Member:
    """File in a zip archive, with the interface `TableFile`."""

    archive: zipfile.ZipFile
    info: zipfile.ZipInfo

    @property
    def name(self) -> str:
        return posixpath.basename(self.info.filename)

    @property
    def suffix(self) -> str:
        return posixpath.splitext(self.info.filename)[1]

    @property
    def size(self) -> int:
        return self.info.file_size

    def __str__(self) -> str:
        return f"{self.archive.filename}/{self.info.filename}"

    def open(self, mode: Literal["rb"]) -> IO[bytes]:
        return self.archive.open(self.info)


@dataclass(frozen=True)
class Package:
    """Data Package that is open for reading: its location and its descriptor."""

    place: Path  # path of its folder, archive or descriptor
    archive: zipfile.ZipFile | None  # None: the package is a folder
    folder: str  # folder to which the paths of its files are relative; in an archive "" or a path that ends in /
    descriptor: dict[str, Any]  # content of datapackage.json

    def error(self, problem: str) -> ConfigError:
        """Return a `ConfigError` for a problem of this package: one line with its path."""
        return _error(self.place, problem)

    def table(self, name: str, required: Sequence[str], optional: Sequence[str] = ()) -> Table:
        """Return the `required` and `optional` columns of the resource `name`. Missing cells and missing optional columns are "".

        Raise `ConfigError` if the package does not have the resource, or if the resource cannot be read or lacks a required column."""
        resources = [resource for resource in self.descriptor["resources"] if isinstance(resource, dict)]
        found = [resource for resource in resources if resource.get("name") == name]
        if len(found) != 1:
            names = list_some([str(resource.get("name")) for resource in resources])
            raise self.error(f"{DESCRIPTOR} has {len(found)} resources named {name}, but it must have one; it has {names}")

        def choose(header: Sequence[str]) -> list[str]:
            if lacking := [column for column in required if column not in header]:
                raise self.error(f"{name} lacks the required columns {', '.join(lacking)}; it has {list_some(header)}")
            return [column for column in (*required, *optional) if column in header]

        try:
            table = read_table(self._resource(name, found[0]), choose)
        except ConfigError:
            raise
        except DAMAGED as error:
            raise self.error(f"{name} cannot be read: {one_line(error)}; unpack the archive, and set data.path to the folder") from error
        schema = found[0].get("schema")
        words = schema.get("missingValues") if isinstance(schema, dict) else None
        missing = {*MISSING, *map(str, words if isinstance(words, list) else ())}
        columns = {n: Column(c.codes, [v if v not in missing else "" for v in c.values]) for n, c in table.columns.items()}
        absent = Column(np.zeros(len(table), dtype=np.int32), [""])
        return replace(table, columns={n: columns.get(n, absent) for n in (*required, *optional)})

    def _resource(self, name: str, resource: Mapping[str, Any]) -> Path | TableFile:
        """Return the CSV file of a resource; for several files or data in the descriptor, a temporary file with all rows.

        Raise `ConfigError` for a dialect of CSV that cannot be read."""
        if "data" in resource:
            return _Copy(f"{name} in {DESCRIPTOR}", self._inline(name, resource["data"]))
        dialect = resource.get("dialect")
        for key, values in _DIALECT.items():
            if isinstance(dialect, dict) and dialect.get(key, values[0]) not in values:
                raise self.error(f"the {key} {quoted(dialect[key])} of {name} is not read; write {name} as a CSV with commas and a header")
        paths = resource.get("path")
        files = [self._member(name, path) for path in (paths if isinstance(paths, list) else [paths])]
        if not files:
            raise self.error(f"{name} has an empty list of paths in {DESCRIPTOR}; name its files")
        return files[0] if len(files) == 1 else _Copy(f"{name} of {self.place}", self._joined(name, files))

    def _member(self, name: str, path: object) -> Path | Member:
        """Return the file `path` of the resource `name`. Raise `ConfigError` for a URL or a path outside of the package."""
        if isinstance(path, str) and "://" in path:
            raise self.error(f"{name} is at {quoted(path, 100)}; download it, and write the name of the file in {DESCRIPTOR}")
        if not isinstance(path, str) or not path or "\0" in path or os.path.isabs(path) or ".." in path.split("/"):
            raise self.error(f"the path of {name} is {quoted(path, 100)}; it must be the path of a CSV below the folder of {DESCRIPTOR}")
        return _file(self.place, self.archive, self.folder, os.path.normpath(path))

    def _joined(self, name: str, files: Sequence[Path | Member]) -> Iterator[bytes]:
        """Yield the bytes of one CSV with the rows of all `files`. Either all files have the header of the first file, or only the first
        file has a header.

        Raise `ConfigError` if one of the files has a header with other columns, or in another order."""
        header: list[str] = []
        delimiter = ""
        for file in files:
            with file.open("rb") as stream, gzip.open(stream) if file.suffix == ".gz" else stream as text:
                first = text.readline(LONGEST_LINE)
                line = first.decode("utf-8-sig", errors="replace").strip()
                delimiter = delimiter or max(",\t;", key=line.count)
                cells = next(csv.reader([line], delimiter=delimiter), [])
                if cells != header and 2 * len({*cells} & {*header}) > len({*header}):
                    raise self.error(
                        f"the columns of {name} are others, or in another order, in {quoted(file.name)}; write all its files alike"
                    )
                yield first if cells != header else b""
                header = header or cells
                yield from iter(partial(text.read, 1 << 20), b"")
            yield b"\n"

    def _inline(self, name: str, data: object) -> Iterator[bytes]:
        """Yield the data of a resource inside the descriptor as bytes of CSV.

        `data` is a list of objects, a list of lists with the header first, or a text of CSV. Raise `ConfigError` for other data."""
        rows: list[Any] = data if isinstance(data, list) else [] if not isinstance(data, str) else list(csv.reader(data.splitlines()))
        if rows and all(isinstance(row, dict) for row in rows):
            header = list(dict.fromkeys(key for row in rows for key in row))
            rows = [header, *([row.get(key) for key in header] for row in rows)]
        if not rows or not all(isinstance(row, list) for row in rows):
            raise self.error(f"the data of {name} in {DESCRIPTOR} must be a list of objects, a list of lists, or CSV")
        for row in rows:
            text = io.StringIO(newline="")
            csv.writer(text).writerow(["" if cell is None else str(cell) for cell in row])
            yield text.getvalue().encode(errors="replace")


class _Copy:
    """CSV in an anonymous temporary file, with the interface `TableFile`. `parts`: the bytes of the CSV, in pieces."""

    suffix = ".csv"

    def __init__(self, name: str, parts: Iterable[bytes]) -> None:
        self.name, self._file = name, tempfile.TemporaryFile()  # noqa: SIM115 (read after the function)
        self._file.writelines(parts)
        self._file.flush()

    def __str__(self) -> str:
        return self.name

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def open(self, mode: Literal["rb"]) -> IO[bytes]:
        copy = os.fdopen(os.dup(self._file.fileno()), mode)
        copy.seek(0)
        return copy


def open_package(path: Path) -> Package:
    """Return the package of a folder, a zip archive, or a descriptor file. Raise `ConfigError` if there is no package, or more than one."""
    archive, folder, name = None, str(path), DESCRIPTOR
    if os.path.isfile(path) and path.suffix.lower() == ".json":
        folder, name = str(path.parent), path.name
    elif os.path.isfile(path):
        archive, folder = _archive(path)
    elif not os.path.isdir(path):
        raise _error(path, f"does not exist; set the folder or the zip archive that contains {DESCRIPTOR}")
    try:
        with _file(path, archive, folder, name).open("rb") as stream:
            data = stream.read(LARGEST_DESCRIPTOR + 1)
        descriptor = json.loads(data if len(data) <= LARGEST_DESCRIPTOR else b"")
    except ConfigError:
        raise
    except (*DAMAGED, RecursionError) as error:
        raise _error(path, f"{name} cannot be read as JSON: {one_line(error)}; correct it") from error
    if not isinstance(descriptor, dict) or not isinstance(descriptor.get("resources"), list):
        raise _error(path, f"{name} does not have a list of resources; it must name the tables of the package")
    return Package(path, archive, folder, descriptor)


def _file(place: Path, archive: zipfile.ZipFile | None, folder: str, name: str) -> Path | Member:
    """Return a file of a package. Raise `ConfigError` if the file does not exist, or is compressed more than `MOST_COMPRESSED` times."""
    if archive is None and os.path.isfile(os.path.join(folder, name)):
        return Path(folder, name)
    info = archive.NameToInfo.get(folder + name) if archive is not None else None
    if archive is None or info is None:
        raise _error(place, f"the file {quoted(name, 100)} does not exist; add it to the package")
    if info.file_size > (1 << 24) and info.file_size > MOST_COMPRESSED * info.compress_size:
        raise _error(place, f"{quoted(name, 100)} is compressed {info.file_size // max(info.compress_size, 1)} times; unpack it yourself")
    return Member(archive, info)


def _archive(path: Path) -> tuple[zipfile.ZipFile, str]:
    """Open a zip archive. Return the archive, and the topmost folder in it that contains a descriptor: "" or a path that ends in /.

    Raise `ConfigError` if the file is not a zip archive, or contains no package or several packages."""
    try:
        archive = zipfile.ZipFile(path)
    except DAMAGED as error:
        raise _error(path, f"is neither a folder, a .json file nor a zip archive: {one_line(error)}; set the package") from error
    places = [name for name in archive.namelist() if name.split("/")[-1] == DESCRIPTOR and not name.startswith("__MACOSX/")]
    top = [name for name in places if name.count("/") == min(place.count("/") for place in places)]
    if len(top) != 1:
        raise _error(path, f"contains {len(top)} packages ({DESCRIPTOR}); it must contain one")
    return archive, top[0].removesuffix(DESCRIPTOR)


def _error(place: Path, problem: str) -> ConfigError:
    return ConfigError(f"data.path: {quoted(str(place), 120)}: {problem}")
