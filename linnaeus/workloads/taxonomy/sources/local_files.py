"""Find the files of photographs whose identifiers are URLs, or paths: a table of records does not contain how they were downloaded.

A convention leads from a photograph to the name of its file:

    path    the path of the URL, with or without the host:    photos/731/original.jpg
    name    the last part of the path:                        IMG_731.jpg
    id      an id of the record, with the number of the photograph if there are several:    4021.jpg, 4021_1.jpg, 4021_2.jpg

The convention that finds the most photographs is used for all of them.
"""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np

from linnaeus.errors import ConfigError, list_some, quoted
from linnaeus.workloads.taxonomy.manifest.column import Column
from linnaeus.workloads.taxonomy.manifest.image_files import clean_path

SUFFIXES = frozenset(("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff"))  # of `decoding.FORMATS`
CONVENTIONS = ("path", "name", "id")
NOT_DOWNLOADED = "photograph without a file (not downloaded)"
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://([^/?#]*)/*([^?#]*)")
_NUMBERED = re.compile(r"(.+)_(\d{1,9})")
_NONE = -1


class Found(NamedTuple):
    """Files of N photographs."""

    path: Column  # path below the folder; "" for a photograph without a file
    note: str  # the convention that was used, and the numbers of photographs


class _Match(NamedTuple):
    """The files that a convention finds."""

    convention: str
    words: str  # the convention in messages
    file: np.ndarray  # int64 [N]: index of the file; _NONE for none
    example: str  # name that the first photograph would have


def find_files(folder: Path, identifiers: Column, ids: Mapping[str, Column], convention: str | None = None) -> Found:
    """Return the files below `folder` of N photographs, by the convention that finds the most, or by the given one.

    `identifiers`: URL or path of each photograph, at least one; "" if it has none. `ids`: name of an id -> the ids of their records.
    A file that a convention would give to different photographs is not used. Raise ConfigError if the folder does not exist, none has a
    file, or two conventions find equally many and different files."""
    files = list(files_in(str(folder), key="data.root"))
    matches = [match for match in _matches(files, identifiers, ids) if convention in (None, match.convention)]
    counts = [int((match.file != _NONE).sum()) for match in matches]
    photographs, most = len(identifiers.codes), max(counts)
    if not most:
        names = list_some(list(dict.fromkeys(quoted(match.example, 60) for match in matches if match.example)))
        raise ConfigError(
            f"data.root: none of the {photographs} photographs has a file in {quoted(str(folder), 100)}; the first would be {names}; "
            "download them, or set the folder that contains them"
        )
    best, *others = [match for match, count in zip(matches, counts, strict=True) if count == most]
    for other in others:
        if (differ := best.file != other.file).any():
            row = int(np.argmax(differ))
            pair = [quoted(files[match.file[row]] if match.file[row] != _NONE else "no file", 60) for match in (best, other)]
            raise ConfigError(
                f"data.photo_names: {best.words} and {other.words} find {most} photographs each, different files: "
                f"{' and '.join(pair)}; set {' or '.join(dict.fromkeys((best.convention, other.convention)))}, or remove files"
            )
    note = f"files of photographs found by {best.words}: {most} of {photographs}"
    note += "".join(f"; by {m.words} {n}" for m, n in zip(matches, counts, strict=True) if 0 < n < most)
    used, code = np.unique(best.file, return_inverse=True)
    return Found(Column(code.astype(np.int32), [files[i] if i != _NONE else "" for i in used.tolist()]), note)


def files_of_records(folder: Path, ids: Mapping[str, Column]) -> tuple[np.ndarray, Found]:
    """Return the files ID, ID_1, ID_2, ... below `folder` of N records without identifiers of photographs, and the record of each file.

    `ids`: as for `find_files`; the id with the most files is used. Raise ConfigError if there are none."""
    files = list(files_in(str(folder), key="data.root"))
    by_stem = _unique(files, _stem)
    found: dict[str, list[tuple[int, int]]] = {}  # name of the id -> record and file, in order
    for name, column in ids.items():
        own, more = _of_ids(column, by_stem)
        all_files = [([i] if i != _NONE else []) + [more[k][n] for n in sorted(more[k])] for k, i in enumerate(own)]
        found[name] = [(row, i) for row, code in enumerate(column.codes.tolist()) for i in all_files[code]]
    name = max(found, key=lambda name: len(found[name]))
    if not found[name]:
        names = list_some([quoted(f"{c.values[c.codes[0]]}.jpg", 60) for c in ids.values() if len(c.codes) and c.values[c.codes[0]]])
        raise ConfigError(
            f"data.root: the archive has no links to photographs, and none of its records has a file in {quoted(str(folder), 100)}; "
            f"the first would be {names or 'named by an id, but it has none'}; download an archive with media, or name the files by the id"
        )
    rows, used = np.array(found[name], dtype=np.int64).T
    note = f"the archive does not contain links to photographs; {len(used)} files are named by {name}"
    return rows, Found(Column(np.arange(len(used), dtype=np.int32), [files[i] for i in used.tolist()]), note)


def files_in(folder: str, inside: str = "", seen: frozenset[str] = frozenset(), key: str = "data.path") -> Iterator[str]:
    """Yield the paths of the files of `folder`, relative to it and sorted by folder and name; `inside`: below this folder of it.

    Hidden files and folders are not read. Links are followed, except to the folders above, `seen`. Raise ConfigError, with the
    configuration key `key`, if a folder cannot be read."""
    where = os.path.join(folder, inside)
    seen = seen | {os.path.realpath(where)}
    try:
        entries = sorted(os.scandir(where), key=lambda entry: entry.name)
    except OSError as error:
        raise ConfigError(f"{key}: {quoted(where, 200)} cannot be read: {error.strerror}") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if not is_folder(entry):
            yield inside + entry.name
        elif os.path.realpath(entry.path) not in seen:
            yield from files_in(folder, f"{inside}{entry.name}/", seen, key)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return True for a folder, and False for a link that leads to itself, for which `entry.is_dir` raises OSError."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_file(entry: os.DirEntry[str]) -> bool:
    """Return True for a file, and False for a link that leads to itself."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _matches(files: list[str], identifiers: Column, ids: Mapping[str, Column]) -> Iterator[_Match]:
    """Yield the files that each convention finds. Of a million photographs, no list of their names is kept."""
    values = identifiers.values
    exact = {path: i for i, path in enumerate(files)}
    by_name, by_stem = (_unique(files, form) for form in (posixpath.basename, _stem))
    with_host = _one_to_one(("/".join(_place(value)) for value in values), exact)
    without = _one_to_one((_place(value)[1] for value in values), exact)
    by_path = np.where(with_host != _NONE, with_host, without)
    named = _one_to_one((posixpath.basename(_place(value)[1]) for value in values), by_name)
    stems = _one_to_one((_stem(_place(value)[1]) for value in values), by_stem)
    by_last = np.where(named != _NONE, named, stems)
    first = _place(values[identifiers.codes[0]])[1]
    yield _Match("path", "the path of the URL", by_path[identifiers.codes], first)
    yield _Match("name", "the last part of the path", by_last[identifiers.codes], posixpath.basename(first))
    for name, column in ids.items():
        example = column.values[column.codes[0]]
        yield _Match("id", name, _by_id(column, identifiers, by_stem), example and f"{example}.jpg")


def _place(identifier: str) -> tuple[str, str]:
    """Return the host and the path of a URL, or "" and a path. `?...` and `#...` are not part of the path of a URL."""
    found = _URL.match(identifier)
    host, path = found.groups() if found else ("", identifier)
    path = posixpath.normpath(clean_path(path).strip().lstrip("/"))
    return host, "" if path == "." else path


def _stem(path: str) -> str:
    """Return the last part of a path, without the suffix of a photograph."""
    name = posixpath.basename(path)
    stem, dot, suffix = name.rpartition(".")
    return stem if dot and suffix.lower() in SUFFIXES else name


def _unique(files: Sequence[str], form: Callable[[str], str]) -> dict[str, int]:
    """Return `form` of a file -> its index, for forms that occur once, or once outside of the folders below."""
    names = [form(file) for file in files]
    count, top = Counter(names), Counter(name for name, file in zip(names, files, strict=True) if "/" not in file)
    return {name: i for i, name in enumerate(names) if count[name] == 1 or (top[name] == 1 and "/" not in files[i])}


def _one_to_one(names: Iterable[str], files: Mapping[str, int]) -> np.ndarray:
    """Return int64 [K]: the file of each of K different photographs by its name, also without %20 and the like. _NONE for none, and for a
    file of several photographs."""
    found = np.fromiter((files.get(name, files.get(unquote(name), _NONE)) for name in names), dtype=np.int64)
    _, inverse, count = np.unique(found, return_inverse=True, return_counts=True)
    found[(count > 1)[inverse] & (found != _NONE)] = _NONE
    return found


def _by_id(ids: Column, identifiers: Column, files: Mapping[str, int]) -> np.ndarray:
    """Return int64 [N]: the file ID or ID_NUMBER of each photograph of a record, _NONE for none. `files`: name without suffix -> index.

    The numbers of all records start at 0 if a record has a file ID_0, or ID and ID_1, otherwise at 1. ID is the first photograph."""
    own, more = _of_ids(ids, files)
    start = 0 if any(0 in n or (i != _NONE and 1 in n) for i, n in zip(own, more, strict=True)) else 1
    found = np.full(len(ids.codes), _NONE, dtype=np.int64)
    number: dict[int, dict[int, int]] = {}  # record -> photograph -> its number
    possible = np.array([i != _NONE or bool(n) for i, n in zip(own, more, strict=True)], dtype=bool)
    for row in np.flatnonzero(possible[ids.codes] & _given(identifiers)).tolist():
        record = int(ids.codes[row])
        of_record = number.setdefault(record, {})
        n = of_record.setdefault(int(identifiers.codes[row]), len(of_record))
        found[row] = more[record].get(start + n, own[record] if n == 0 else _NONE)
    return found


def _of_ids(ids: Column, files: Mapping[str, int]) -> tuple[list[int], list[dict[int, int]]]:
    """Return the file ID of each distinct id, _NONE for none, and number -> file ID_NUMBER."""
    numbered: dict[str, dict[int, int]] = {}
    for stem, i in files.items():
        if match := _NUMBERED.fullmatch(stem):
            numbered.setdefault(match[1], {})[int(match[2])] = i
    own = [files.get(value, _NONE) if value else _NONE for value in ids.values]
    return own, [numbered.get(value, {}) if value else {} for value in ids.values]


def _given(identifiers: Column) -> np.ndarray:
    """Return bool [N]: True where a photograph has an identifier."""
    return np.array([bool(value) for value in identifiers.values], dtype=bool)[identifiers.codes]
