"""Texts: a file, a folder of files or Python's own standard library, cut into documents and surveyed before anything is tokenized.

A survey reads every file once: its hash, and of each document its length and a hash. Nothing of a text is lost: what is not in the
encoding is named by file and offset, and files that are left out (empty, or unreadable up to `data.max_bad_fraction`) are counted.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linnaeus import randomness
from linnaeus.config.errors import ConfigError
from linnaeus.workloads.language.config import TextConfig

TEXT_FILES = ["**/*.txt"]
MODULES = ["*.py"]  # of the standard library: those that are one file
MODULE_BYTES = 24_000  # and no larger than this: about a hundred, a million characters, of which a laptop's CPU learns in minutes


@dataclass(frozen=True)
class TextFile:
    """A file of documents; `name` is its path below the folder that was given."""

    name: str
    path: Path
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Corpus:
    """What was surveyed. Documents are numbered through all files, in the order of the files' names."""

    files: tuple[TextFile, ...]
    digests: np.ndarray  # uint64 [D]: of each document's text
    characters: np.ndarray  # int64 [D]
    encoding: str
    separator: str | None
    notes: tuple[str, ...]

    def documents(self) -> Iterator[tuple[str, str]]:
        """(name of the file, text) of each document. Raises ConfigError where a file is no longer what was surveyed."""
        for file in self.files:
            content = _read(file.path)
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise ConfigError(f"data.path: {file.path} has changed while it was being read; start again when nothing writes to it")
            for text in cut(content.decode(self.encoding), self.separator):
                yield file.name, text


def survey(config: TextConfig) -> Corpus:
    """Read what `data` asks for. Raises ConfigError where there is nothing, or more that cannot be read than allowed."""
    _check_encoding(config.encoding)
    if config.separator == "":
        raise ConfigError("data.separator is empty; give the text between two documents, or null where a file is one")
    folder, paths = find_files(config)
    files, digests, characters, bad = [], [], [], []
    empty = 0
    for path in paths:
        content = _read(path)
        try:
            texts = cut(content.decode(config.encoding), config.separator)
        except UnicodeDecodeError as error:
            bad.append(f"{path} is not {config.encoding} at byte {error.start} ({error.reason})")
            continue
        if not texts:
            empty += 1
            continue
        files.append(TextFile(path.relative_to(folder).as_posix(), path, len(content), hashlib.sha256(content).hexdigest()))
        digests += [_digest(text) for text in texts]
        characters += [len(text) for text in texts]
    _check_bad(bad, len(paths), config)
    if not files:
        raise ConfigError(f"data.path: there is no text in {folder}: all {len(paths)} files are empty")
    notes = [f"text: {_where(config)}: {_count(len(files), 'file')}, {_count(len(digests), 'document')}, {sum(characters):,} characters"]
    notes += [f"left out: {line}" for line in bad] + [f"left out: {_count(empty, 'empty file')}"] * bool(empty)
    arrays = np.array(digests, dtype=np.uint64), np.array(characters, dtype=np.int64)
    return Corpus(tuple(files), *arrays, config.encoding, config.separator, tuple(notes))


def held_out(corpus: Corpus, fraction: float, seed: int) -> np.ndarray:
    """bool [D]: the documents that validate, each by a hash of its own text: another document does not move it, and one that is there
    twice stays on one side. Where chance gives one side nothing it gets the document nearest to it."""
    draws = randomness.uniforms(randomness.key(seed, randomness.SPLIT), corpus.digests)
    chosen = draws < fraction
    if not chosen.any():
        return draws == draws.min()
    return chosen if not chosen.all() else draws != draws.max()


def find_files(config: TextConfig) -> tuple[Path, list[Path]]:
    """The folder that names are relative to, and the files in the order of their names."""
    if config.path is None:
        if config.files is not None:
            raise ConfigError("data.files has no effect without data.path, which says in which folder; leave it out or give data.path")
        folder, modules = _matching(Path(sysconfig.get_path("stdlib")), MODULES)
        return folder, [path for path in modules if path.stat().st_size <= MODULE_BYTES]
    path = Path(config.path).expanduser()
    if path.is_file():
        if config.files is not None:
            raise ConfigError(f"data.files has no effect where data.path={config.path} is a file; leave it out or give the folder")
        return path.parent, [path]
    if not path.is_dir():
        raise ConfigError(f"data.path: {config.path} is not there; give a text file, a folder of them, or null for Python's own library")
    return _matching(path, TEXT_FILES if config.files is None else config.files)


def _matching(folder: Path, patterns: list[str]) -> tuple[Path, list[Path]]:
    try:
        found = {path for pattern in patterns for path in folder.glob(pattern)}
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"data.files={patterns}: {error}; give patterns such as **/*.txt") from None
    visible = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts) and path.is_file()]
    if not visible:
        suffixes = Counter(path.suffix for path in folder.rglob("*") if path.is_file())
        there = ", ".join(f"{n} of {suffix or 'no suffix'}" for suffix, n in suffixes.most_common(3)) or "no files at all"
        raise ConfigError(
            f"data.files: nothing in {folder} matches {patterns}; it has {there}: data.files=['**/*.py'] takes those of Python"
        )
    return folder, sorted(visible, key=lambda path: path.relative_to(folder).as_posix())


def cut(text: str, separator: str | None) -> list[str]:
    """The documents of a file's text; what is nothing but white space is none."""
    texts = [text] if separator is None else text.split(separator)
    return [text for text in texts if text.strip()]


def _check_encoding(encoding: str) -> None:
    try:
        b" ".decode(encoding)
    except LookupError:
        raise ConfigError(f"data.encoding={encoding} is none that Python knows; try utf-8, utf-16 or latin-1") from None
    except UnicodeError:
        pass  # it is known, and wants more than a byte


def _check_bad(bad: list[str], files: int, config: TextConfig) -> None:
    if len(bad) > config.max_bad_fraction * files:
        raise ConfigError(
            f"data.encoding: {bad[0]}{f', and {len(bad) - 1} more files' if len(bad) > 1 else ''}; correct the file, give its encoding, or "
            f"leave out up to data.max_bad_fraction={max(0.01, -(-100 * len(bad) // files) / 100)} of the files"
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read ({error.strerror})") from None


def _where(config: TextConfig) -> str:
    return config.path or f"the modules of up to {MODULE_BYTES:,} bytes of Python {sys.version.split()[0]}'s standard library"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
