"""Which files a text is made of: one, those of a folder that match, or modules of Python's standard library; and of which source each is.

Where `data.sources` names sources, a file is of the first one that has a pattern for it. Other files of the same kinds, and of those that
are read without sources, are left out by name. A pattern that no file matches is named too.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from linnaeus.errors import ConfigError
from linnaeus.workloads.language.config import TextConfig

TEXT_FILES = ["**/*.txt"]
LIBRARY = Path(sysconfig.get_path("stdlib"))  # of Python
MODULES = ["*.py"]  # of the library: those that are one file
MODULE_BYTES = 24_000  # and no larger than this: about a hundred, a million characters, of which a laptop's CPU learns in minutes
INSTALLED = ("site-packages", "dist-packages")  # below the library on some machines, and no part of it


@dataclass(frozen=True)
class FoundFiles:
    """In the order they are read in: by source, and within it by name below `folder`."""

    folder: Path
    paths: list[Path]
    sources: list[int]  # of each path the number of its source; 0 where there are none
    left_out: list[str] = field(default_factory=list)  # names of files of no source
    notes: list[str] = field(default_factory=list)  # a line for each key with patterns that no file matches

    def name(self, path: Path) -> str:
        return _name(path, self.folder)


def find_files(config: TextConfig) -> FoundFiles:
    """Raises ConfigError where there is nothing, for `data.sources` too, and for settings that do not go together."""
    path = LIBRARY if config.path is None else Path(config.path).expanduser()
    _check_settings(config, path)
    if path.is_file():
        return FoundFiles(path.parent, [path], [0])
    if config.sources is None:
        return _plain(config, path)
    return _of_sources(path, config.sources)


def _check_settings(config: TextConfig, path: Path) -> None:
    if config.files is not None:
        if config.sources is not None:
            raise ConfigError("data.files has no effect with data.sources, whose patterns say which files; leave one of them out")
        if config.path is None:
            raise ConfigError("data.files has no effect without data.path, which says in which folder; leave it out or give data.path")
    for key, given in (("data.files", config.files), ("data.sources", config.sources)):
        if path.is_file() and given is not None:
            raise ConfigError(f"{key} has no effect where data.path={config.path} is a file; leave it out or give the folder")
    if not path.is_file() and not path.is_dir():
        raise ConfigError(f"data.path: {config.path} is not there; give a text file, a folder of them, or null for Python's own library")
    if config.sources == {}:
        raise ConfigError("data.sources is {}; name a source with its patterns, as in {notes: ['**/*.md']}, or give null for one text")
    for name in config.sources or {}:
        if not re.fullmatch(r"[\w-]+", name):
            raise ConfigError(f"data.sources: {name!r} is to be part of a metric's name; use letters, digits, _ and -")


def _plain(config: TextConfig, folder: Path) -> FoundFiles:
    """What is read where there are no sources."""
    if config.path is None:
        modules, _ = _matching(folder, MODULES, "data.files")
        small = [path for path in modules if path.stat().st_size <= MODULE_BYTES]
        return FoundFiles(folder, small, [0] * len(small))
    patterns = TEXT_FILES if config.files is None else config.files
    paths, idle = _matching(folder, patterns, "data.files")
    if not paths:
        raise ConfigError(f"data.files: {_nothing(folder, patterns)}")
    return FoundFiles(folder, paths, [0] * len(paths), notes=_unmatched("data.files", idle))


def _of_sources(folder: Path, sources: Mapping[str, Sequence[str]]) -> FoundFiles:
    taken: dict[Path, int] = {}  # number of the source of each file
    notes: list[str] = []
    for number, (name, patterns) in enumerate(sources.items()):
        key = f"data.sources.{name}"
        matching, idle = _matching(folder, patterns, key)
        mine = [path for path in matching if path not in taken]
        if not matching:
            raise ConfigError(f"{key}: {_nothing(folder, patterns)}")
        if not mine:
            before = ", ".join(list(sources)[:number])
            raise ConfigError(f"{key}: what {list(patterns)} match is all of sources before it ({before}); put it first")
        taken |= dict.fromkeys(mine, number)
        notes += _unmatched(key, idle)
    paths = sorted(taken, key=lambda one: (taken[one], _name(one, folder)))
    return FoundFiles(folder, paths, [taken[one] for one in paths], _others(folder, taken), notes)


def _others(folder: Path, taken: Mapping[Path, int]) -> list[str]:
    """Names of the files that are of no source and of a kind, by their suffix, that some source has or that is read without sources."""
    kinds = {path.suffix for path in taken} | {Path(pattern).suffix for pattern in (MODULES if folder == LIBRARY else TEXT_FILES)}
    files, _ = _matching(folder, [f"**/*{kind}" for kind in kinds], "data.sources")
    return [_name(path, folder) for path in files if path.suffix in kinds and path not in taken]


def _matching(folder: Path, patterns: Sequence[str], key: str) -> tuple[list[Path], list[str]]:
    """(files that match in the order of their names, without hidden ones; the patterns that none matches)."""
    installed = INSTALLED if folder == LIBRARY else ()

    def visible(path: Path) -> bool:
        return not any(part.startswith(".") or part in installed for part in path.relative_to(folder).parts) and path.is_file()

    try:
        found = {pattern: [path for path in folder.glob(pattern) if visible(path)] for pattern in patterns}
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"{key}={list(patterns)}: {error}; give patterns such as **/*.txt") from None
    files = sorted({path for paths in found.values() for path in paths}, key=lambda path: _name(path, folder))
    return files, [pattern for pattern, paths in found.items() if not paths]


def _name(path: Path, folder: Path) -> str:
    return shown(path.relative_to(folder))


def shown(path: Path) -> str:
    """A path as it can be written into any file: bytes of a name that are no UTF-8 read as in caf\\xe9.txt."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def _unmatched(key: str, patterns: Sequence[str]) -> list[str]:
    return [f"{key}: nothing matches {', '.join(patterns)}"] if patterns else []


def _nothing(folder: Path, patterns: Sequence[str]) -> str:
    suffixes = Counter(path.suffix for path in folder.rglob("*") if path.is_file())
    there = ", ".join(f"{n} of {suffix or 'no suffix'}" for suffix, n in suffixes.most_common(3)) or "no files at all"
    return f"nothing in {folder} matches {list(patterns)}; it has {there}: ['**/*.py'] takes those of Python"
