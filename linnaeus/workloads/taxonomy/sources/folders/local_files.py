"""Find the local files of photographs that a table lists by URL, if it is unknown how the downloaded files were named.

Several conventions are tried. Each gives a file name for a photograph:

    path    the path of the URL, with or without the host:    photos/731/original.jpg
    name    the last part of the path:                        IMG_731.jpg
    id      an id of the record, with a number if the record has several photographs:       4021.jpg, 4021_1.jpg, 4021_2.jpg

The convention for which most photographs have a file is used for all photographs.
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

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.images.image_files import clean_path
from linnaeus.workloads.taxonomy.images.url_files import UrlFolder, is_url
from linnaeus.workloads.taxonomy.manifest.records import with_values
from linnaeus.workloads.taxonomy.manifest.tables.column import Column

SUFFIXES = frozenset(("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff"))  # usual suffixes of `decoding.FORMATS`
CONVENTIONS = ("path", "name", "id")
NOT_DOWNLOADED = "photograph without a file (not downloaded)"
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://([^/?#]*)/*([^?#]*)")
_NUMBERED = re.compile(r"(.+)_(\d{1,9})")
_NONE = -1


class Found(NamedTuple):
    """Local files of N photographs."""

    path: Column  # [N], path relative to the folder; "" for a photograph without a file
    note: str  # a line for the user with the convention that was used, and numbers of photographs


class _Match(NamedTuple):
    """Files that a convention finds for N photographs."""

    convention: str  # one of `CONVENTIONS`
    words: str  # name of the convention in messages
    file: np.ndarray  # int64 [N]: index of the photograph's file; _NONE for none
    example: str  # file name that the first photograph would have


def find_files(folder: Path | str, identifiers: Column, ids: Mapping[str, Column], convention: str | None = None) -> Found:
    """Return the files of N photographs in `folder` or below it. `convention`: one of `CONVENTIONS`; None: the convention that finds most
    files; "url": no files are looked for, and the photographs are read by URL.

    `identifiers`: [N], N > 0, URL or path of each photograph; "" for a photograph without either. `ids`: name of an id -> [N], this id of
    the record of each photograph. A file that a convention would give to several photographs is not used. Raise `ConfigError` if the folder
    does not exist, if no photograph has a file, or if two conventions find equally many, but different files."""
    if convention == "url":
        urls = [value if is_url(value) else "" for value in identifiers.values]
        count = int(np.array([bool(url) for url in urls])[identifiers.codes].sum())
        return Found(Column(identifiers.codes, urls), f"photographs read by URL: {count} of {len(identifiers.codes)}")
    identifiers = with_values(identifiers, identifiers.values)  # each once, also one of two tables of media or of two records
    files = list(files_in(str(folder), key="data.root"))
    matches = [match for match in _matches(files, identifiers, ids) if convention in (None, match.convention)]
    counts = [int((match.file != _NONE).sum()) for match in matches]
    photographs, most = len(identifiers.codes), max(counts)
    if not most:
        names = list_some(list(dict.fromkeys(quoted(match.example, 60) for match in matches if match.example)))
        raise ConfigError(
            f"data.root: not one of {counted(photographs, 'photograph')} has a file in {quoted(str(folder), 100)}; "
            f"the first would be {names}; download them, or set the folder that contains them"
        )
    best, *others = [match for match, count in zip(matches, counts, strict=True) if count == most]
    for other in others:
        if (differ := best.file != other.file).any():
            row = int(np.argmax(differ))
            pair = [quoted(files[match.file[row]] if match.file[row] != _NONE else "no file", 60) for match in (best, other)]
            raise ConfigError(
                f"data.photo_names: {best.words} and {other.words} find {counted(most, 'photograph')} each, different files: "
                f"{' and '.join(pair)}; set {' or '.join(dict.fromkeys((best.convention, other.convention)))}, or remove files"
            )
    note = f"files of photographs found by {best.words}: {most} of {photographs}"
    note += "".join(f"; by {m.words} {n}" for m, n in zip(matches, counts, strict=True) if 0 < n < most)
    used, code = np.unique(best.file, return_inverse=True)
    return Found(Column(code.astype(np.int32), [files[i] if i != _NONE else "" for i in used.tolist()]), note)


def files_of_records(folder: Path | str, ids: Mapping[str, Column]) -> tuple[np.ndarray, Found]:
    """Find the photographs of N records that do not list photographs, by the file names ID, ID_1, ID_2, ... in `folder` or below it.

    Return the row of the record of each photograph, int64, and the files. `ids`: name of an id -> [N], this id of each record; the id with
    the most files is used. Raise `ConfigError` if there are no such files."""
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
    note = f"the archive does not contain links to photographs; {counted(len(used), 'file')} named by {name}"
    return rows, Found(Column(np.arange(len(used), dtype=np.int32), [files[i] for i in used.tolist()]), note)


def files_in(folder: str, inside: str = "", seen: frozenset[str] = frozenset(), key: str = "data.path") -> Iterator[str]:
    """Yield the paths of all files in `folder` and below it, relative to `folder`, sorted by name within each folder. It may be a URL.

    Hidden files and folders are skipped. Links are followed, except to a folder above. `inside`: start at this subfolder, "" or a path that
    ends in /. `seen`: real paths of the folders above the subfolder. Raise `ConfigError` if a folder cannot be read. `key`: configuration
    key of the folder, for messages."""
    if is_url(folder):
        yield from UrlFolder(folder, key).names()
        return
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
    """Return True for a folder or a link to a folder. Return False for a link to itself, for which `entry.is_dir` raises `OSError`."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_file(entry: os.DirEntry[str]) -> bool:
    """Return True for a file or a link to a file. Return False for a link to itself, for which `entry.is_file` raises `OSError`."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _matches(files: list[str], identifiers: Column, ids: Mapping[str, Column]) -> Iterator[_Match]:
    """Yield the files that each convention for file names finds (see the top of this file). The convention `id` is tried for each name in
    `ids`.

    `files`: paths of all local files. `identifiers`, `ids`: as in `find_files`."""
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
    """Return the host and the path of a URL, without `?...` and `#...`. For a path, return "" and the path."""
    found = _URL.match(identifier)
    host, path = found.groups() if found else ("", identifier)
    path = posixpath.normpath(clean_path(path).strip().lstrip("/"))
    return host, "" if path == "." else path


def _stem(path: str) -> str:
    """Return the last part of a path, without a suffix of a photograph such as .jpg. Any other suffix is kept."""
    name = posixpath.basename(path)
    stem, dot, suffix = name.rpartition(".")
    return stem if dot and suffix.lower() in SUFFIXES else name


def _unique(files: Sequence[str], form: Callable[[str], str]) -> dict[str, int]:
    """Return `form(path)` -> index of the file. A form that several files have is left out, unless exactly one of them is at the top level
    of the folder."""
    names = [form(file) for file in files]
    count, top = Counter(names), Counter(name for name, file in zip(names, files, strict=True) if "/" not in file)
    return {name: i for i, name in enumerate(names) if count[name] == 1 or (top[name] == 1 and "/" not in files[i])}


def _one_to_one(names: Iterable[str], files: Mapping[str, int]) -> np.ndarray:
    """Return the index of the file for each of K distinct `names`, int64 [K]; `_NONE` without a file, or if several names match the file.

    `files`: name -> index. A name also matches after decoding of %20 and other escapes of URLs."""
    found = np.fromiter((files.get(name, files.get(unquote(name), _NONE)) for name in names), dtype=np.int64)
    _, inverse, count = np.unique(found, return_inverse=True, return_counts=True)
    found[(count > 1)[inverse] & (found != _NONE)] = _NONE
    return found


def _by_id(ids: Column, identifiers: Column, files: Mapping[str, int]) -> np.ndarray:
    """Return the index of the file ID or ID_NUMBER for each of N photographs, int64 [N]; `_NONE` without a file.

    `files`: file name without suffix -> index. The photographs of a record are numbered in their order; the file ID also stands for the
    first number. The first number is 0 for all records if any record has a file ID_0, or both ID and ID_1; otherwise it is 1."""
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
    """Return, for each distinct id, the index of the file named ID (`_NONE` without this file), and a dict from NUMBER to the index of the
    file named ID_NUMBER."""
    numbered: dict[str, dict[int, int]] = {}
    for stem, i in files.items():
        if match := _NUMBERED.fullmatch(stem):
            numbered.setdefault(match[1], {})[int(match[2])] = i
    own = [files.get(value, _NONE) if value else _NONE for value in ids.values]
    return own, [numbered.get(value, {}) if value else {} for value in ids.values]


def _given(identifiers: Column) -> np.ndarray:
    """Return bool [N]: True where a photograph has an identifier."""
    return np.array([bool(value) for value in identifiers.values], dtype=bool)[identifiers.codes]
