"""Read data=hugging_face: a data set that the library `datasets` has saved on disk. Only pyarrow is needed to read it.

    save_to_disk    state.json, dataset_info.json, data-00000-of-00002.arrow, ...; dataset_dict.json above the folders of the splits
    hub             Parquet shards such as data/train-00000-of-00002.parquet

The photographs are in the first column with the feature Image or of bytes, or in the column `data.image_column`. Class numbers in a column
with the feature ClassLabel are replaced by the names of the classes. Columns of numbers, texts and dates are read; lists and other
structures are not. If no column is named like a rank, the class names of the only ClassLabel are the taxa, interpreted like folders of
`image_folder`. Photographs in Arrow files are read as byte ranges. Parquet is read by groups of rows: `parquet_images.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, one_line, quoted, shorten
from linnaeus.workloads.taxonomy.arrays.text_arrays import strings
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.images.image_files import MISSING, clean_path
from linnaeus.workloads.taxonomy.manifest.columns import AUTO
from linnaeus.workloads.taxonomy.manifest.records import Choose, Records, column_of, distinct_names, in_folder, with_values
from linnaeus.workloads.taxonomy.manifest.tables.column import Column, from_arrow
from linnaeus.workloads.taxonomy.manifest.tables.table import Table, without_long_values
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.occurrences import concatenated
from linnaeus.workloads.taxonomy.sources.folders.image_folder import label_ranks, split_notes
from linnaeus.workloads.taxonomy.sources.shards.byte_ranges import ByteRanges
from linnaeus.workloads.taxonomy.sources.shards.hugging_face_files import Part, SavedFile, find_parts, open_file, read_object
from linnaeus.workloads.taxonomy.sources.shards.parquet_images import ParquetImages

if TYPE_CHECKING:
    import pyarrow as pa


def read_records(config: ManifestConfig, choose: Choose) -> Records:
    """Return the rows of a data set, in the order of its splits and files. Raise `ConfigError` if the data set cannot be read."""
    import pyarrow as pa

    folder = Path(config.path).expanduser()
    try:
        return _read(folder, config, choose)
    except ConfigError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, MemoryError) as error:
        raise ConfigError(
            f"data.path: {quoted(str(folder), 160)} cannot be read as a data set of Hugging Face: {shorten(one_line(error), 160)}"
        ) from error


def _read(folder: Path, config: ManifestConfig, choose: Choose) -> Records:
    parts = find_parts(folder)
    data = _Dataset([open_file(part.path) for part in parts], parts)
    photograph = data.photograph(config.image_column)
    name = config.image_column if photograph == config.image_column else "path"
    columns: dict[str, Callable[[], Column]] = {key: partial(data.column, key) for key in data.plain if key != name}
    if len({part.split for part in parts}) > 1 and "split" not in columns:
        columns["split"] = data.split
    names = data.names(photograph) if photograph is not None else []
    if photograph is not None:
        columns[name] = lambda: column_of(names)
    labels = list(data.classes) if len(data.classes) == 1 else [key for key in ("label",) if key in data.plain]
    ranks = label_ranks(list(columns), labels, data.column, config)
    columns |= {rank: lambda column=column: column for rank, column in ranks.items()}  # type: ignore[misc]
    chosen = choose(list(columns))
    notes = [f"{counted(data.rows, 'row')} in {counted(len(parts), 'file')}", *data.notes(photograph)]
    if not any(part.split for part in parts):
        notes += split_notes([part.path.name for part in parts])
    table = without_long_values(Table({key: columns[key]() for key in chosen}, notes=tuple(notes)), Path(config.path).name)
    if photograph is None:
        return in_folder(table, config, folder)
    if name not in chosen:
        raise ConfigError(f"data.image_column: the photographs are in the column {photograph!r}; leave data.image_column=auto, or name it")
    files = data.photographs(photograph, strings(names))
    return Records(table, lambda distinct: files, str(folder))  # the names of all rows are distinct, and in their order


class _Dataset:
    """Rows of open files with the same schema. `plain`: names of columns of numbers, texts and dates. `features`: those of the first file.

    `classes`: column with the feature ClassLabel -> for each file the names of its classes. The files of two splits may number them
    differently."""

    def __init__(self, files: Sequence[SavedFile], parts: Sequence[Part]) -> None:
        import pyarrow as pa

        self.files, self.parts, self.schema = files, parts, files[0].schema
        for file in files:
            if not file.schema.equals(self.schema):
                name = quoted(file.path, 160)
                raise ConfigError(f"data.path: {name} has other columns than the first file; set the folder of one data set")
        self.rows = sum(file.rows for file in files)
        if not self.rows:
            raise ConfigError(f"data.path: {quoted(str(parts[0].path.parent), 160)} has no rows; use a data set with rows")
        texts = [(file.schema.metadata or {}).get(b"huggingface", b"{}") for file in files]
        described = [(text, part.path.with_name("dataset_info.json")) for text, part in zip(texts, parts, strict=True)]
        features = {place: _features(*place) for place in dict.fromkeys(described)}  # many files have the same thousands of classes
        self.features = features[described[0]]
        types = pa.types
        tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string, types.is_temporal)
        plain = [field.name for field in self.schema if any(test(field.type) for test in (*tests, types.is_decimal, types.is_dictionary))]
        repeated = {name for name in self.schema.names if self.schema.names.count(name) > 1}
        self.plain = [name for name in plain if name not in repeated and not types.is_duration(self.schema.field(name).type)]
        named = {name: first for name in self.plain if (first := _classes(self.features, name))}
        classes = {place: {name: _classes(own, name) or first for name, first in named.items()} for place, own in features.items()}
        self.classes = {name: [classes[place][name] for place in described] for name in named}

    def photograph(self, wanted: str) -> str | None:
        """Return the name of a column with photographs: `wanted`, or the first such column if `wanted` is "auto".

        Return None if there is no such column, or if `wanted` is a column of paths."""
        found = [field.name for field in self.schema if self._is_photograph(field) and field.name not in self.plain]
        first = found[0] if found and wanted == AUTO else None
        return wanted if wanted in found else first

    def _is_photograph(self, field: pa.Field) -> bool:
        """Return True for a column of the feature Image, of bytes, or, if its feature is not known, of structs with bytes."""
        feature = self.features.get(field.name)
        if feature is not None and feature.get("_type") == "Image":
            return True
        return _is_bytes(field.type) or (feature is None and _has_bytes(field.type))

    def notes(self, photograph: str | None) -> list[str]:
        """Return lines of text about columns that are not read, and about the speed of Parquet. `photograph`: column of the photographs."""
        others = [name for name in self.schema.names if name not in self.plain and name != photograph]
        lines = [f"columns of lists and structures are not read: {list_some(others)}"] if others else []
        if photograph is not None and self.files[0].table is None:
            lines.append("photographs in Parquet are read by groups of rows, which is slow; `linnaeus prepare` makes a store of them")
        return lines

    def column(self, name: str) -> Column:
        """Return a column by its name. Class numbers of a ClassLabel are replaced by class names, -1 by an empty cell.

        Raise `ConfigError` for a class number without a name."""
        import pyarrow as pa

        kind, parts = self.schema.field(name).type, []
        classes = self.classes[name] if name in self.classes and pa.types.is_integer(kind) else [None] * len(self.files)
        for own, pairs in groupby(zip(classes, self.files, strict=True), key=itemgetter(0)):
            chunks = pa.chunked_array([chunk for _, file in pairs for chunk in file.read(name).chunks], kind)
            parts.append(_named(chunks, own, name) if own is not None else _plain(chunks))
        return parts[0] if len(parts) == 1 else concatenated(parts)

    def split(self) -> Column:
        """Return a column with the name of the split of each row."""
        number = np.repeat(np.arange(len(self.files), dtype=np.int32), [file.rows for file in self.files])
        return with_values(Column(number, [""] * len(self.files)), [part.split for part in self.parts])

    def names(self, photograph: str) -> list[str]:
        """Return a distinct name for each photograph: its path in the data set, or the number of its row if the path is not known.

        `photograph`: name of the column of photographs."""
        import pyarrow as pa

        kind = self.schema.field(photograph).type
        if not pa.types.is_struct(kind) or kind.get_field_index("path") < 0:
            return [f"row {row}" for row in range(self.rows)]
        cells = [file.read(photograph, "path") for file in self.files]
        for column in cells:
            column.validate(full=True)
        paths = [clean_path(path or "") for column in cells for path in column.to_pylist()]
        return distinct_names([os.path.basename(path) if os.path.isabs(path) else path for path in paths])

    def photographs(self, photograph: str, names: np.ndarray) -> ByteRanges | ParquetImages:
        """Return the image files of the rows. `photograph`: name of the column of photographs. `names`: [N], result of the method `names`.

        Raise `ConfigError` if the photographs are in files outside of the data set."""
        field = "" if _is_bytes(self.schema.field(photograph).type) else "bytes"
        paths = [file.path for file in self.files]
        if self.files[0].table is None:
            return ParquetImages.of(paths, f"{photograph}.{field}" if field else photograph, names)
        ranges = [_ranges(file, photograph, field) for file in self.files]
        number = np.repeat(np.arange(len(ranges), dtype=np.int32), [len(start) for start, _ in ranges])
        start, length = (np.concatenate([pair[i] for pair in ranges]) for i in (0, 1))
        if (length == MISSING).all():
            raise ConfigError(f"data.path: the photographs of {photograph!r} are in other files; save the data set with their bytes")
        return ByteRanges(paths, names, number, start, length)


def _features(text: bytes, beside: Path) -> dict[str, dict[str, Any]]:
    """Return the features of a file, column -> description: those in the JSON `text` of its schema, or else in the file `beside`.

    Return {} without both."""
    info = json.loads(text).get("info") or {}
    features = info.get("features") or (read_object(beside).get("features") if beside.is_file() else None)
    return {k: f for k, f in features.items() if isinstance(f, dict)} if isinstance(features, dict) else {}


def _classes(features: dict[str, dict[str, Any]], name: str) -> list[str] | None:
    """Return the names of the classes of a column; None if it does not have the feature ClassLabel with names."""
    feature = features.get(name, {})
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    return [str(one) for one in names] if isinstance(names, list) and names else None


def _plain(chunks: pa.ChunkedArray) -> Column:
    chunks.validate(full=True)
    return from_arrow(chunks)


def _named(chunks: pa.ChunkedArray, classes: Sequence[str], name: str) -> Column:
    """Return the column of class names for a column of class numbers. `name`: its name, for the error."""
    import pyarrow as pa
    import pyarrow.compute as pc

    used, codes = np.unique(pc.fill_null(chunks.cast(pa.int64()), -1).to_numpy(), return_inverse=True)
    if used.max(initial=-1) >= len(classes):
        raise ConfigError(f"data.path: {name!r} has the class {used[-1]}, but names for {len(classes)} classes")
    return with_values(Column(codes.astype(np.int32), [""] * len(used)), [classes[number] if number >= 0 else "" for number in used])


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _has_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and _is_bytes(kind.field("bytes").type)


def _ranges(file: SavedFile, column: str, field: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the byte offset in the file and the length of each cell of a column of bytes, int64 [N] each; length `MISSING` for null.

    Raise `ConfigError` if the cells are not bytes, or if the Arrow file is compressed or damaged."""
    import pyarrow as pa

    assert file.buffer is not None
    starts, lengths = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for chunk in file.read(column, field).chunks:
        if not _is_bytes(chunk.type):
            raise ConfigError(
                f"data.path: the photographs of {column!r} are {chunk.type}; they must be bytes: save them as the feature Image"
            )
        _, offsets, data = chunk.buffers()
        wide = np.dtype(np.int64 if pa.types.is_large_binary(chunk.type) else np.int32)
        bounds = np.zeros(1, dtype=np.int64)
        if len(chunk):
            bounds = np.frombuffer(offsets, wide, len(chunk) + 1, chunk.offset * wide.itemsize).astype(np.int64)
        place = data.address - file.buffer.address if data is not None and data.size else 0
        length = np.diff(bounds)
        if place < 0 or place + (bounds.max() if len(chunk) else 0) > file.buffer.size or (length < 0).any() or bounds[0] < 0:
            raise ConfigError(f"data.path: {quoted(file.path, 160)} is compressed or damaged; save it again with save_to_disk")
        starts.append(place + bounds[:-1])
        lengths.append(np.where(chunk.is_valid().to_numpy(zero_copy_only=False), length, MISSING))
    return np.concatenate(starts), np.concatenate(lengths)
