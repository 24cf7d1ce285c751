"""Read and write the files of a store. A store is complete when it contains `store.json`, which is written last.

store.json              format, encoding, numbers of records stored and left out, source, group column, notes, checksums of the other
                        files, and of the tables of the source if they were fetched by URL
taxonomy.json           the tree: ranks, names of the classes of each rank, and the node of the nearest known ancestor of each
labels.npy              int64 [N, R]: class of each record at each rank, stored rank after rank; -1 for null
names.txt               the name of each record's photograph, one per line; line breaks and backslashes are escaped as in C
latitude.npy ...        float32 [N]: latitude, longitude, uncertainty, day, hour, elevation; NaN for missing
split.npy, weight.npy   int8 [N] (0 training, 1 validation, 2 test) and float64 [N], if the source has them
columns/I.npy, I.txt    column I, by which records can be grouped: int32 [N], for each record the line of its value in the text file
place.npy               int64 [N, 3]: part, offset and size in bytes of each photograph
shape.npy               int32 [N, 2]: height and width, for raw pixels
hashes.npy              uint64 [N]: BLAKE2b (8 bytes) of each stored photograph
originals.npy           uint8 [N, 16]: BLAKE2b (16 bytes) of each original file, by which `linnaeus calibrate` finds training photographs;
                        not in a store of an earlier program
digests.npy             uint64 [N]: BLAKE2b (8 bytes) of each name, by which a split is computed
parts/00000.bin ...     the photographs, one after the other
left_out.csv            name and reason of each record that was left out
"""

import os
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, quoted
from linnaeus.files import TEMPORARY, atomic_file, read_json, to_json, to_utf8, write_atomic
from linnaeus.workloads.taxonomy.arrays.text_lines import TextLines, encoded_lines
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

FORMAT = 2
RECORD = "store.json"
PARTS = "parts"
FETCHED = f"{TEMPORARY}source"  # folder with tables of a source that is a URL, until the store is complete
CHECKED = ("taxonomy.json", "names.txt", "left_out.csv", "*.npy", "columns/*.npy", "columns/*.txt")  # with a checksum in store.json
BLOCK = 1 << 20  # bytes read at once
THREADS = 4


def part_path(store: Path, part: int) -> Path:
    """Return the path of the file with the photographs of a part."""
    return store / PARTS / f"{part:05d}.bin"


def write_array(path: Path, array: np.ndarray) -> None:
    """Write an array to a .npy file. After a failure the file does not exist, or is unchanged."""
    with atomic_file(path) as file:
        np.save(file, array)


def read_array(path: Path, mapped: bool = False) -> np.ndarray:
    """Return the array in a .npy file, memory-mapped if `mapped`. Raise `ConfigError` if the file cannot be read."""
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"data.path: {quoted(str(path), 200)} cannot be read ({error}); prepare the store again") from error


def write_lines(path: Path, values: Iterable[str]) -> None:
    """Write texts to a file, one per line, with line breaks escaped."""
    with atomic_file(path) as file:
        file.writelines(encoded_lines(values))


def read_lines(path: Path) -> TextLines:
    """Return the texts that `write_lines` wrote. Raise `ConfigError` if the file cannot be read."""
    try:
        return TextLines.read(path)
    except OSError as error:
        raise ConfigError(f"data.path: {quoted(str(path), 200)} cannot be read ({error.strerror}); prepare the store again") from error


def write_columns(store: Path, columns: Mapping[str, Column]) -> list[str]:
    """Write columns, name -> values of the records. Return their names in the order of the files 0.npy, 1.npy, ..."""
    (store / "columns").mkdir(exist_ok=True)
    for number, column in enumerate(columns.values()):
        write_array(store / "columns" / f"{number}.npy", column.codes)
        write_lines(store / "columns" / f"{number}.txt", column.values)
    return list(columns)


def read_columns(store: Path, names: list[str]) -> dict[str, Column]:
    """Return the columns that `write_columns` wrote. `names`: result of `write_columns`."""
    folder = store / "columns"
    return {name: Column(read_array(folder / f"{i}.npy", mapped=True), read_lines(folder / f"{i}.txt")) for i, name in enumerate(names)}


def write_metadata(store: Path, metadata: Metadata) -> None:
    """Write a .npy file for each quantity, such as latitude.npy."""
    for name, values in vars(metadata).items():
        write_array(store / f"{name}.npy", values)


def read_metadata(store: Path) -> Metadata:
    """Return the metadata that `write_metadata` wrote, memory-mapped."""
    return Metadata(**{name: read_array(store / f"{name}.npy", mapped=True) for name in Metadata.__dataclass_fields__})


def read_record(store: Path) -> dict[str, Any]:
    """Return the content of store.json. Raise `ConfigError` if the folder is not a complete store of this format."""
    if not store.is_dir():
        raise ConfigError(f"data.path: {quoted(str(store), 200)} is not a folder; give a folder that `linnaeus prepare` has written")
    content = read_json(store / RECORD) if os.path.isfile(store / RECORD) else None
    if content is None:
        begun = (store / PARTS).is_dir()
        advice = "its preparation was interrupted; continue it" if begun else "make one"
        raise ConfigError(f"data.path: {quoted(str(store), 200)} is not a complete store; {advice} with `linnaeus prepare`")
    if content.get("format") != FORMAT:
        raise ConfigError(f"data.path: {quoted(str(store), 200)} has store format {content.get('format')}, not {FORMAT}; prepare it again")
    if content.get("checksum") != _own_checksum(content):
        raise _damaged(store / RECORD)
    return content


def read_tree(store: Path) -> TaxonomyTree:
    """Return the tree of taxa of a store whose files have been checked."""
    return TaxonomyTree.from_dict(read_json(store / "taxonomy.json") or {})


def write_record(store: Path, record: Mapping[str, Any]) -> None:
    """Write store.json, with checksums of the other files and of its own content."""
    names = sorted(str(path.relative_to(store)) for pattern in CHECKED for path in store.glob(pattern))
    content = {"format": FORMAT, **record, "checksums": {name: _checksum(store / name) for name in names}}
    write_atomic(store / RECORD, to_json(content | {"checksum": _own_checksum(content)}))


def check_files(store: Path, record: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if a file of a store was changed. `record`: content of store.json.

    Files of photographs are only checked for being too short; all other files are compared with their checksums."""
    expected = record["checksums"]
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(_checksum, [store / name for name in expected])
        wrong = [name for name, checksum in zip(expected, found, strict=True) if checksum != expected[name]]
    if wrong:
        raise _damaged(store / wrong[0])
    place = read_array(store / "place.npy", mapped=True)
    ends = np.zeros(int(place[:, 0].max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(ends, place[:, 0], place[:, 1] + place[:, 2])
    for part, end in enumerate(ends.tolist()):
        path = part_path(store, part)
        if end and not (os.path.isfile(path) and os.path.getsize(path) >= end):
            raise _damaged(path)


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a file; -1 if it cannot be read."""
    checksum = 0
    try:
        if not os.path.isfile(path):  # reading a pipe would never end
            return -1
        with open(path, "rb") as file:
            while block := file.read(BLOCK):
                checksum = zlib.crc32(block, checksum)
    except OSError:
        return -1
    return checksum


def _own_checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(to_utf8(to_json({name: value for name, value in content.items() if name != "checksum"})))


def _damaged(path: Path) -> ConfigError:
    return ConfigError(f"data.path: {quoted(str(path), 200)} is not as `linnaeus prepare` wrote it; delete the store and prepare it again")
