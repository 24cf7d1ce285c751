"""Find and open the files of a data set that the library `datasets` has saved, Arrow files or Parquet shards, and find their splits."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from linnaeus.errors import ConfigError, list_some, one_line, quoted, shorten
from linnaeus.workloads.taxonomy.manifest.splitting.split import SPLIT_WORDS
from linnaeus.workloads.taxonomy.sources.folders.image_folder import split_words
from linnaeus.workloads.taxonomy.sources.folders.local_files import files_in

if TYPE_CHECKING:
    import pyarrow as pa

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.parquet")


class Part(NamedTuple):
    """File of a data set, with the name of its split; "" if the data set has no splits."""

    path: Path
    split: str


def find_parts(folder: Path) -> list[Part]:
    """Return the files of the data set in `folder`. Raise `ConfigError` if the folder has no files of a data set, or a file is missing."""
    if not folder.is_dir():
        raise ConfigError(f"data.path: {quoted(str(folder), 200)} is not a folder; set a folder of save_to_disk or of Parquet shards")
    if (folder / "dataset_dict.json").is_file():
        splits = [str(split) for split in read_object(folder / "dataset_dict.json")["splits"]]
        if len(splits) > 1 and not {split.lower() for split in splits} <= SPLIT_WORDS:
            shown = list_some(splits)
            raise ConfigError(f"data.path: the splits {shown} are not train, val and test; set data.path to the folder of one of them")
        return [Part(path, split) for split in splits for path in _saved(folder / split)]
    if (folder / "state.json").is_file():
        return [Part(path, "") for path in _saved(folder)]
    paths = sorted(folder / name for name in files_in(str(folder)) if name.endswith(".parquet"))
    if not paths:
        raise ConfigError(f"data.path: {quoted(str(folder), 160)} has neither dataset_dict.json, state.json nor a .parquet file")
    if others := [path for path in paths if not path.is_file()]:  # reading a pipe would never end
        raise ConfigError(f"data.path: {quoted(str(others[0]), 160)} is not a file; remove it, or replace it with the shard")
    shards = Counter((path.parent, match[1], int(match[3])) for path in paths if (match := _SHARD.fullmatch(path.name)))
    for (_, stem, total), count in shards.items():
        if count != total:
            raise ConfigError(f"data.path: the folder has {count} of {total} shards of {quoted(stem)}; download all of them")
    words = split_words([path.name for path in paths]) or split_words([path.parent.name for path in paths]) or [""] * len(paths)
    return [Part(path, word) for path, word in zip(paths, words, strict=True)]


def _saved(folder: Path) -> list[Path]:
    """Return the Arrow files in a folder that `save_to_disk` wrote. Raise `ConfigError` if a file is missing."""
    state = read_object(folder / "state.json")
    if state.get("_indices_data_files"):
        raise ConfigError(f"data.path: {quoted(str(folder), 160)} has an order of its own in indices; save it again with flatten_indices()")
    files = [folder / str(file["filename"]) for file in state["_data_files"]]
    absent = [file.name for file in files if not file.is_file()]
    if absent or not files:
        raise ConfigError(f"data.path: {quoted(str(folder), 160)} lacks {list_some(absent, 3) or 'files of data'}; copy the whole folder")
    return files


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raise `ConfigError` if the file cannot be read or contains something else."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"data.path: {quoted(str(path), 160)} is not a file; copy the whole folder")
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"data.path: {quoted(str(path), 160)} cannot be read: {shorten(one_line(error), 160)}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"data.path: {quoted(str(path), 160)} is not an object of JSON")
    return content


class SavedFile(NamedTuple):
    """Open file of a data set: an Arrow file (its table, and the bytes that the table refers to) or a Parquet file."""

    path: str
    schema: pa.Schema
    table: pa.Table | None
    buffer: pa.Buffer | None
    parquet: Any

    def read(self, column: str, field: str = "") -> pa.ChunkedArray:
        """Return a column, or, if `field` is given, this field of a column of structs."""
        import pyarrow.compute as pc

        if self.table is not None:
            cells = self.table.column(column)
            return pc.struct_field(cells, field) if field else cells
        cells = self.parquet.read(columns=[f"{column}.{field}" if field else column], use_threads=False).column(0)
        return pc.struct_field(cells, [0]) if field else cells

    @property
    def rows(self) -> int:
        return self.table.num_rows if self.table is not None else self.parquet.metadata.num_rows


def open_file(path: Path) -> SavedFile:
    """Open an Arrow or a Parquet file. Raise `ConfigError` if it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            parquet = pq.ParquetFile(path)
            return SavedFile(str(path), parquet.schema_arrow, None, None, parquet)
        buffer = pa.memory_map(str(path)).read_buffer()
        open_ = pa.ipc.open_file if buffer[:6].to_pybytes() == b"ARROW1" else pa.ipc.open_stream
        table = open_(pa.BufferReader(buffer)).read_all()
        table.validate()
        return SavedFile(str(path), table.schema, table, buffer, None)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"data.path: {quoted(str(path), 160)} cannot be read: {shorten(one_line(error), 160)}") from error
