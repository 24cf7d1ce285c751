"""Read data=webdataset: photographs in tar files, each with other members that contain its labels and metadata.

    train-000000.tar    0001.jpg 0001.json 0002.jpg 0002.json ...

Members with the same key (the path up to the first dot of the base name) are a sample. The photograph of a sample is the member with the
suffix of an image. The values in the member `json` are columns; a value in a nested object is a column named OUTER.INNER. Text members,
such as `cls`, are columns named after their suffixes.

`data.path` is a tar file, a folder with tar files, or a pattern: `train-{000000..000147}.tar`, `*.tar`.

The tar files are not unpacked. Their headers are read at each start (half a minute for a million samples on a local disk). Photographs are
read as byte ranges.
"""

from __future__ import annotations

import glob
import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted, shorten
from linnaeus.workloads.taxonomy.arrays.text_arrays import first_places, strings
from linnaeus.workloads.taxonomy.arrays.text_lines import TextLines
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.manifest.records import Choose, Records, with_values
from linnaeus.workloads.taxonomy.manifest.tables.column import Column, ColumnBuilder
from linnaeus.workloads.taxonomy.manifest.tables.table import Table
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from linnaeus.workloads.taxonomy.sources.folders.image_folder import SUFFIXES, label_ranks, split_notes, split_words
from linnaeus.workloads.taxonomy.sources.folders.local_files import files_in
from linnaeus.workloads.taxonomy.sources.shards.byte_ranges import ByteRanges
from linnaeus.workloads.taxonomy.sources.shards.tar_index import Member, TarReader

LONGEST_TEXT = 1 << 20  # most bytes of a member that is read as text
MOST_COLUMNS = 1000  # most columns from json; if there are more, the names in it are probably values
MOST_KINDS = 8  # most kinds of unread members that are listed, each on its own line
MOST_SHARDS = 1_000_000
TEXTS = ("txt", "text", "cls")
LABELS = ("label", "cls")  # columns with the name of the taxon, if no column is named like a rank
_BRACES = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}|\{([^{}]*,[^{}]*)\}")


def read_records(config: ManifestConfig, choose: Choose) -> Records:
    """Return a row for each sample with a photograph, in the order of the tar files.

    Raise `ConfigError` for a path without tar files, a tar file that cannot be read, and two samples of a tar file with the same key."""
    shards = shard_paths(config.path)
    samples = _Samples()
    for number, shard in enumerate(shards):
        if not os.path.isfile(shard):
            raise ConfigError(f"data.path: {quoted(shard, 200)} is not a file; remove it, or replace it with the tar file")
        try:
            with TarReader(shard) as tar:
                samples.read(tar, number)
        except OSError as error:
            raise ConfigError(f"data.path: {quoted(shard, 200)} cannot be read: {error.strerror}") from error
    if not len(samples.names):
        reasons = list_some([*samples.fallen_out(), *(f"{reason} ({count})" for reason, count in samples.excluded.items())])
        raise ConfigError(f"data.path: {quoted(config.path, 120)} has no sample with a photograph: {reasons or 'the tar files are empty'}")
    path, repeated = samples.photographs(shards)
    columns = samples.columns() | {"path": path}
    splits = split_words([Path(shard).name for shard in shards]) or split_words([Path(shard).parent.name for shard in shards])
    if splits and "split" not in columns:
        columns["split"] = with_values(Column(np.array(samples.shard, dtype=np.int32), shards), splits)
    columns = label_ranks(list(columns), LABELS, columns.__getitem__, config) | columns
    names = choose(list(columns))
    if "path" not in names:
        raise ConfigError("data.image_column: the photograph of a sample is a member of its tar file; leave data.image_column=auto")
    unsplit = split_notes([Path(shard).name for shard in shards]) if not splits else []
    notes = (counted(len(shards), "tar file"), *unsplit, *repeated, *samples.fallen_out())
    table = Table({name: columns[name] for name in names}, excluded=samples.excluded, notes=notes)
    arrays = (np.array(samples.shard, dtype=np.int32), np.array(samples.start, dtype=np.int64), np.array(samples.length, dtype=np.int64))
    return Records(
        table, lambda distinct: ByteRanges(shards, distinct if isinstance(distinct, TextLines) else strings(distinct), *arrays), config.path
    )


def shard_paths(pattern: str) -> list[str]:
    """Return the paths of the tar files for `pattern`: a file, a folder or a pattern such as train-{000..147}.tar. Raise `ConfigError` if a
    tar file is missing."""
    path = os.path.expanduser(pattern)
    if os.path.isdir(path):
        names = [os.path.join(path, name) for name in files_in(path)]
        found = sorted(name for name in names if re.search(r"\.(tar(\.\w+)?|tgz|tbz2?|txz)$", name))
    elif os.path.exists(path):
        found = [path]
    else:
        found = [name for one in _expanded(path) for name in (sorted(glob.glob(one)) if glob.has_magic(one) else [one])]
        absent = [name for name in found if not os.path.isfile(name)]
        if absent:
            raise ConfigError(f"data.path: tar files that do not exist: {len(absent)} of {len(found)}, such as {quoted(absent[0], 160)}")
    if not found:
        raise ConfigError(
            f"data.path: {quoted(pattern, 160)} does not contain a tar file; set a .tar, a folder of them, or a pattern such as "
            "train-{000..147}.tar"
        )
    return found


def _expanded(pattern: str) -> list[str]:
    """Expand a pattern with {000..147} or {train,val} as a shell does. Return all texts.

    Raise `ConfigError` for more than `MOST_SHARDS` texts."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    if match[3] is not None:
        middles: Sequence[str] = match[3].split(",")
    else:
        first, last = int(match[1]), int(match[2])
        if last - first >= MOST_SHARDS:
            raise ConfigError(f"data.path: {quoted(match[0])} means {last - first + 1} tar files, more than {MOST_SHARDS}")
        middles = [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    ends = _expanded(pattern[match.end() :])
    if len(middles) * len(ends) > MOST_SHARDS:
        raise ConfigError(f"data.path: {quoted(pattern, 160)} means more than {MOST_SHARDS} tar files")
    return [pattern[: match.start()] + middle + end for middle in middles for end in ends]


class _Samples:
    """Samples with a photograph that were read so far. Other samples are in `excluded`, with reasons."""

    def __init__(self) -> None:
        self.names = ColumnBuilder()  # names of the photographs
        self.shard, self.start, self.length = array("i"), array("q"), array("q")
        self.excluded = LeftOut()
        self.cut: list[str] = []  # tar files without the end-of-archive mark
        self._keys, self._shard_of_key = ColumnBuilder(str), array("i")
        self._cells: dict[str, ColumnBuilder] = {}
        self._unread: Counter[str] = Counter()  # kind of member -> number of them

    def read(self, tar: TarReader, shard: int) -> None:
        """Add the samples of a tar file with the number `shard`. Consecutive members with the same key are a sample.

        Raise `ConfigError` for two samples with the same key."""
        key, members = "", dict[str, Member]()
        for member in tar.members():
            folder, _, base = member.name.removeprefix("./").rpartition("/")
            stem, _, suffix = base.partition(".")
            if not member.regular or not stem or not suffix:
                if base and (member.regular or member.size or not member.name.endswith("/")):
                    self._unread["folder or link" if not member.regular else "name without a key or a suffix"] += 1
                continue
            own = f"{folder}/{stem}" if folder else stem
            if own != key:
                self._finish(tar, shard, key, members)
                key, members = own, {}
            if suffix.lower() in members:
                raise _repeated(own, tar.path)
            members[suffix.lower()] = member
        self._finish(tar, shard, key, members)
        if not tar.ended:
            self.cut.append(Path(tar.path).name)

    def columns(self) -> dict[str, Column]:
        """Return name -> column of the texts and json values of the samples."""
        for cells in self._cells.values():
            cells.extend([""] * (len(self.names) - len(cells)))
        return {name: cells.column() for name, cells in self._cells.items()}

    def photographs(self, shards: Sequence[str]) -> tuple[Column, list[str]]:
        """Return the names of the photographs, and lines for the user. If tar files have the same keys, as those of splits that are
        numbered from 0, each name begins with its tar file. `shards`: paths of the tar files.

        Raise `ConfigError` if a tar file has two samples with the same key."""
        keys, names = self._keys.column(), self.names.column()
        self._keys = ColumnBuilder(str)
        if len(keys.values) == len(keys.codes):
            return names, []
        shard = np.array(self._shard_of_key, dtype=np.int64)
        again = first_places(keys.codes + shard * len(keys.values)) < np.arange(len(shard))
        if again.any():
            row = int(np.argmax(again))
            raise _repeated(keys.values[keys.codes[row]], shards[shard[row]])
        folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in shards])
        places = [os.path.relpath(path, folder) for path in shards]
        whole = ColumnBuilder(str)
        for number, code in zip(self.shard, names.codes.tolist(), strict=True):
            whole.append(f"{places[number]}/{names.values[code]}")
        several = counted(len(keys.codes) - len(keys.values), "sample")
        return whole.column(), [f"{several} with a key of another tar file; names of photographs begin with their tar file"]

    def fallen_out(self) -> list[str]:
        """Return a line of text for each kind of member that is not read, and a line about tar files that may be cut off."""
        kinds = self._unread.most_common()
        others = sum(count for _, count in kinds[MOST_KINDS:])
        shown = [*sorted(kinds[:MOST_KINDS]), *([("other suffixes", others)] if others else [])]
        lines = [f"{counted(count, 'member')} of the tar files not read: {shorten(kind)}" for kind, count in shown]
        cut = f"{counted(len(self.cut), 'tar file')} without the mark of the end, perhaps cut: {list_some(self.cut, 3)}"
        return [*lines, cut] if self.cut else lines

    def _finish(self, tar: TarReader, shard: int, key: str, members: dict[str, Member]) -> None:
        """Add the sample with these members (suffix -> member), or add its key to `excluded` with a reason."""
        if not members:
            return
        self._keys.append(key)
        self._shard_of_key.append(shard)
        photographs = [suffix for suffix in members if suffix in SUFFIXES]
        texts = {suffix: member for suffix, member in members.items() if suffix == "json" or suffix.rpartition(".")[2] in TEXTS}
        for suffix in members.keys() - texts.keys() - set(photographs[:1]):
            self._unread[f"second photograph of a sample (.{suffix})" if suffix in photographs else f".{suffix}"] += 1
        if not photographs:
            return self.excluded.add("a sample without a photograph", [key])
        cells: dict[str, str] = {}
        for suffix, member in texts.items():
            if member.size > LONGEST_TEXT:
                return self.excluded.add(f"a sample with a text of more than {LONGEST_TEXT >> 20} MiB", [key])
            text = tar.read(member.start, member.size).decode("utf-8-sig", "replace")
            try:
                cells |= dict(_flat(json.loads(text), self._unread)) if suffix == "json" else {suffix: text}
                if "\\u" in text:  # a lone surrogate is not text
                    cells = {_encodable(name): _encodable(cell) for name, cell in cells.items()}
            except (ValueError, RecursionError):
                return self.excluded.add("a sample with a json that is not an object", [key])
        photograph = members[photographs[0]]
        self._set(cells)
        self.names.append(photograph.name.removeprefix("./"))
        self.shard.append(shard)
        self.start.append(photograph.start)
        self.length.append(photograph.size)

    def _set(self, cells: dict[str, str]) -> None:
        """Append the cells of one sample, column -> text. Columns beyond `MOST_COLUMNS` are left out and counted."""
        for name, cell in cells.items():
            if name not in self._cells:
                if len(self._cells) >= MOST_COLUMNS:
                    self._unread[f"values of json beyond {MOST_COLUMNS} names"] += 1
                    continue
                self._cells[name] = ColumnBuilder()
            cells_of = self._cells[name]
            if len(cells_of) < len(self.names):
                cells_of.extend([""] * (len(self.names) - len(cells_of)))
            cells_of.append(cell)


def _flat(value: Any, unread: Counter[str], outer: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, text) for each value of a JSON object; a value of a nested object is named OUTER.INNER. Lists are counted in `unread`.

    Raise `ValueError` if `value` is not an object."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, unread, f"{outer}{name}.")
        elif isinstance(inner, list):
            unread[_encodable(f"list {outer}{name} of json")] += 1
        else:
            whole = isinstance(inner, float) and inner.is_integer() and abs(inner) < 1 << 53  # an id that was stored as a float
            yield outer + name, "" if inner is None else str(int(inner) if whole else inner)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _repeated(key: str, shard: str) -> ConfigError:
    return ConfigError(
        f"data.path: two samples have the key {quoted(key, 100)}, the second in {quoted(Path(shard).name, 100)}; give each sample its "
        "own key, and keep the members of a sample together"
    )
