"""Find the text files of `data=text`: one file, the matching files of a folder, or modules of Python's standard library.

With `data.sources`, a file belongs to the first source with a matching pattern. A file that matches no source is not read. Its name is
reported if it looks like text: if it has the same suffix as a file that is read, or the default suffix (.txt; in the standard library .py).
Patterns that match no file are reported too."""

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
LIBRARY = Path(sysconfig.get_path("stdlib"))  # folder of Python's standard library
MODULES = ["*.py"]  # modules of the library that are a single file
MODULE_BYTES = 24_000  # larger modules are skipped; about 100 files with 1 million characters remain, minutes of training on a laptop
INSTALLED = ("site-packages", "dist-packages")  # folders of installed packages, on some machines inside the library's folder


@dataclass(frozen=True)
class FoundFiles:
    """Text files to read, in reading order: sorted by source, then by name relative to `folder`."""

    folder: Path
    paths: list[Path]
    sources: list[int]  # source number of each path; 0 without named sources
    left_out: list[str] = field(default_factory=list)  # names of text files that match no source
    notes: list[str] = field(default_factory=list)  # a line per key with patterns that match nothing

    def name(self, path: Path) -> str:
        """Return the path relative to `folder`, as text that any file can store (`printable`)."""
        return _name(path, self.folder)


def find_files(config: TextConfig) -> FoundFiles:
    """Return the files that `config` selects. Raise `ConfigError` if no file matches (with named sources: if no file matches one of them),
    if `data.path` does not exist, if the name of a source is invalid, and if `data.files` or `data.sources` have no effect."""
    path = LIBRARY if config.path is None else Path(config.path).expanduser()
    _check_settings(config, path)
    if path.is_file():
        return FoundFiles(path.parent, [path], [0])
    if config.sources is not None:
        patterns = {f"data.sources.{name}": of_source for name, of_source in config.sources.items()}
    else:
        patterns = {"data.files": MODULES if config.path is None else TEXT_FILES if config.files is None else config.files}
    source_of, notes = _find_by_source(path, patterns)
    if config.sources is None and config.path is None:
        source_of = {module: 0 for module in source_of if module.stat().st_size <= MODULE_BYTES}
    paths = sorted(source_of, key=lambda found: (source_of[found], _name(found, path)))
    left_out = [] if config.sources is None else _without_source(path, source_of)
    return FoundFiles(path, paths, [source_of[found] for found in paths], left_out, notes)


def _check_settings(config: TextConfig, path: Path) -> None:
    if config.files is not None:
        if config.sources is not None:
            raise ConfigError("data.files has no effect with data.sources, whose patterns select the files; remove one of them")
        if config.path is None:
            raise ConfigError("data.files has no effect without data.path, the folder of the files; remove it or set data.path")
    for key, given in (("data.files", config.files), ("data.sources", config.sources)):
        if path.is_file() and given is not None:
            raise ConfigError(f"{key} has no effect if data.path={config.path} is a file; remove it or set data.path to the folder")
    if not path.is_file() and not path.is_dir():
        raise ConfigError(
            f"data.path: {config.path} does not exist; use a text file, a folder of them, or null for Python's standard library"
        )
    if config.sources == {}:
        raise ConfigError("data.sources is {}; name a source and its patterns, as in {notes: ['**/*.md']}, or use null for one text")
    for name in config.sources or {}:
        if not re.fullmatch(r"[\w-]+", name):
            raise ConfigError(f"data.sources: {name!r} cannot be part of a metric's name; use letters, digits, _ and -")


def _find_by_source(folder: Path, sources: Mapping[str, Sequence[str]]) -> tuple[dict[Path, int], list[str]]:
    """Return a dict from each file to the number of its source, and messages about patterns that match nothing. `sources`: configuration
    key of each source -> its patterns, in order.

    Raise `ConfigError` for a source without files."""
    source_of: dict[Path, int] = {}
    notes: list[str] = []
    for number, (key, patterns) in enumerate(sources.items()):
        matching, unmatched = _matching(folder, patterns, key)
        own = [path for path in matching if path not in source_of]
        if not matching:
            raise ConfigError(f"{key}: {_no_match(folder, patterns)}")
        if not own:
            earlier = ", ".join(name.removeprefix("data.sources.") for name in list(sources)[:number])
            raise ConfigError(f"{key}: all files that match {list(patterns)} belong to earlier sources ({earlier}); move it before them")
        source_of |= dict.fromkeys(own, number)
        notes += [f"{key}: nothing matches {', '.join(unmatched)}"] if unmatched else []
    return source_of, notes


def _without_source(folder: Path, source_of: Mapping[Path, int]) -> list[str]:
    """Return the names of text files that match no source. A file is taken for text if it has the same suffix as a file that is read, or
    the default suffix."""
    suffixes = {path.suffix for path in source_of} | {Path(pattern).suffix for pattern in (MODULES if folder == LIBRARY else TEXT_FILES)}
    files, _ = _matching(folder, [f"**/*{suffix}" for suffix in suffixes], "data.sources")
    return [_name(path, folder) for path in files if path.suffix in suffixes and path not in source_of]


def _matching(folder: Path, patterns: Sequence[str], key: str) -> tuple[list[Path], list[str]]:
    """Return (files that match one of the patterns, sorted by name, without hidden files; patterns that match nothing).

    Raise `ConfigError` for an invalid pattern."""
    installed = INSTALLED if folder == LIBRARY else ()

    def visible(path: Path) -> bool:
        return not any(part.startswith(".") or part in installed for part in path.relative_to(folder).parts) and path.is_file()

    try:
        found = {pattern: [path for path in folder.glob(pattern) if visible(path)] for pattern in patterns}
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"{key}={list(patterns)}: {error}; use patterns such as **/*.txt") from None
    files = sorted({path for paths in found.values() for path in paths}, key=lambda path: _name(path, folder))
    return files, [pattern for pattern, paths in found.items() if not paths]


def _name(path: Path, folder: Path) -> str:
    return printable(path.relative_to(folder))


def printable(path: Path) -> str:
    """Return a path as text that any file can store: bytes of a name that are not UTF-8 are escaped, as in caf\\xe9.txt."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def _no_match(folder: Path, patterns: Sequence[str]) -> str:
    suffixes = Counter(path.suffix for path in folder.rglob("*") if path.is_file())
    found = ", ".join(f"{n} {suffix or 'without suffix'}" for suffix, n in suffixes.most_common(3)) or "no files"
    suffix = next((suffix for suffix, _ in suffixes.most_common() if suffix), ".txt")
    return f"nothing in {folder} matches {list(patterns)}; the folder has {found}; use for example ['**/*{suffix}']"
