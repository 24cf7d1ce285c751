"""Which files a text is made of: one, those of a folder that match, or modules of Python's standard library; and of which source each is.

Where `data.sources` names sources, a file is of the first one that has a pattern for it, and what would otherwise have been read but is of
no source is left out, by name.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from linnaeus.config.errors import ConfigError
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
    left_out: list[str]  # names of files of no source

    def name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def find_files(config: TextConfig) -> FoundFiles:
    """Raises ConfigError where there is nothing, for `data.sources` too, and for settings that do not go together."""
    path = LIBRARY if config.path is None else Path(config.path).expanduser()
    _check_settings(config, path)
    if path.is_file():
        return FoundFiles(path.parent, [path], [0], [])
    usual = _usual(config, path)
    if config.sources is None:
        if not usual:
            raise ConfigError(f"data.files: {_nothing(path, TEXT_FILES if config.files is None else config.files)}")
        return FoundFiles(path, usual, [0] * len(usual), [])
    taken = _of_sources(path, config.sources)
    paths = sorted(taken, key=lambda one: (taken[one], one.relative_to(path).as_posix()))
    return FoundFiles(path, paths, [taken[one] for one in paths], [one.relative_to(path).as_posix() for one in usual if one not in taken])


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


def _usual(config: TextConfig, folder: Path) -> list[Path]:
    """What is read where there are no sources."""
    if config.path is None:
        return [path for path in _matching(folder, MODULES, "data.files") if path.stat().st_size <= MODULE_BYTES]
    return _matching(folder, TEXT_FILES if config.files is None else config.files, "data.files")


def _of_sources(folder: Path, sources: Mapping[str, Sequence[str]]) -> dict[Path, int]:
    """Number of the source of each file that is of one."""
    taken: dict[Path, int] = {}
    for number, (name, patterns) in enumerate(sources.items()):
        matching = _matching(folder, patterns, f"data.sources.{name}")
        mine = [path for path in matching if path not in taken]
        if not matching:
            raise ConfigError(f"data.sources.{name}: {_nothing(folder, patterns)}")
        if not mine:
            before = ", ".join(list(sources)[:number])
            raise ConfigError(f"data.sources.{name}: what {list(patterns)} match is all of sources before it ({before}); put it first")
        taken |= dict.fromkeys(mine, number)
    return taken


def _matching(folder: Path, patterns: Sequence[str], key: str) -> list[Path]:
    """In the order of their names, without hidden ones."""
    try:
        found = {path for pattern in patterns for path in folder.glob(pattern)}
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"{key}={list(patterns)}: {error}; give patterns such as **/*.txt") from None

    installed = INSTALLED if folder == LIBRARY else ()

    def visible(path: Path) -> bool:
        return not any(part.startswith(".") or part in installed for part in path.relative_to(folder).parts) and path.is_file()

    return sorted(filter(visible, found), key=lambda path: path.relative_to(folder).as_posix())


def _nothing(folder: Path, patterns: Sequence[str]) -> str:
    suffixes = Counter(path.suffix for path in folder.rglob("*") if path.is_file())
    there = ", ".join(f"{n} of {suffix or 'no suffix'}" for suffix, n in suffixes.most_common(3)) or "no files at all"
    return f"nothing in {folder} matches {list(patterns)}; it has {there}: ['**/*.py'] takes those of Python"
