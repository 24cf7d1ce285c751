"""Texts: files cut into documents and surveyed before anything is tokenized, each document of a source where sources are told apart.

A survey reads every file once: its hash, and of each document its length and a hash. Nothing of a text is lost: what is not in the
encoding is named by file and offset, and files that are left out (empty, of no source, or unreadable up to `data.max_bad_fraction`) are
counted, and listed in dataset.json.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linnaeus import randomness
from linnaeus.errors import ConfigError
from linnaeus.workloads.language.config import TextConfig
from linnaeus.workloads.language.files import MODULE_BYTES, FoundFiles, find_files, shown

NAMED = 5  # files of no source that a note names; it counts them all


@dataclass(frozen=True)
class TextFile:
    """A file of documents; `name` is its path below the folder that was given, `source` the number of its source, 0 where none are told
    apart."""

    name: str
    path: Path
    bytes: int
    sha256: str
    source: int = 0


@dataclass(frozen=True)
class Corpus:
    """What was surveyed. Documents are numbered through all files, in the order of sources and within them of the files' names."""

    files: tuple[TextFile, ...]
    digests: np.ndarray  # uint64 [D]: of each document's text
    characters: np.ndarray  # int64 [D]
    owners: np.ndarray  # int64 [D]: number of the source of each document
    sources: tuple[str, ...]  # their names; () where none are told apart, and all documents are of number 0
    encoding: str
    separator: str | None
    notes: tuple[str, ...]
    left_out: dict[str, list[str]]  # why -> names of the files, all of them

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
    found = find_files(config)
    files, digests, characters, owners, bad = [], [], [], [], []
    left_out: dict[str, list[str]] = {"of no source": found.left_out, "empty": [], "not in the encoding": []}
    for path, source in zip(found.paths, found.sources, strict=True):
        content = _read(path)
        try:
            texts = cut(content.decode(config.encoding), config.separator)
            drawn = [_digest(text) for text in texts]  # some encodings can make characters that UTF-8 has not
        except UnicodeError as error:
            left_out["not in the encoding"].append(found.name(path))
            where = f"at byte {error.start} ({error.reason})" if isinstance(error, UnicodeDecodeError) else f"({error})"
            bad.append(f"{shown(path)} is not {config.encoding} {where}")
            continue
        if not texts:
            left_out["empty"].append(found.name(path))
            continue
        files.append(TextFile(found.name(path), path, len(content), hashlib.sha256(content).hexdigest(), source))
        digests += drawn
        characters += [len(text) for text in texts]
        owners += [source] * len(texts)
    _check_bad(bad, len(found.paths), config)
    sources = tuple(config.sources or ())
    _check_sound(found, {file.source for file in files}, sources, len(bad))
    arrays = np.array(digests, dtype=np.uint64), np.array(characters, dtype=np.int64), np.array(owners, dtype=np.int64)
    _check_split(arrays[0], arrays[2], sources, config.split_seed)
    notes = [f"text: {_where(config)}: {counted(len(files), 'file')}, {counted(len(digests), 'document')}, {sum(characters):,} characters"]
    notes += found.notes + [f"left out: {line}" for line in bad] + _left_out(left_out)
    kept = {why: names for why, names in left_out.items() if names}
    return Corpus(tuple(files), *arrays, sources, config.encoding, config.separator, tuple(notes), kept)


def held_out(corpus: Corpus, fraction: float, seed: int) -> np.ndarray:
    """bool [D]: the documents that validate, each by a hash of its own text: another document does not move it, and one that is there
    twice stays on one side. Where chance gives one side nothing of a source it gets the document nearest to it."""
    draws = randomness.uniforms(randomness.key(seed, randomness.SPLIT), corpus.digests)
    chosen = draws < fraction
    for source in range(max(1, len(corpus.sources))):
        mine = corpus.owners == source
        if not chosen[mine].any():
            chosen |= mine & (draws == draws[mine].min())
        elif chosen[mine].all():
            chosen &= ~(mine & (draws == draws[mine].max()))
    return chosen


def cut(text: str, separator: str | None) -> list[str]:
    """The documents of a file's text; what is nothing but white space is none."""
    texts = [text] if separator is None else text.split(separator)
    return [text for text in texts if text.strip()]


def counted(number: int, what: str) -> str:
    """As in 1 file, 2,000 files."""
    return f"{number:,} {what}{'s' * (number != 1)}"


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


def _check_sound(found: FoundFiles, there: set[int], sources: Sequence[str], bad: int) -> None:
    """Raises ConfigError where no text, or none of a source, is left; `bad` files are not in the encoding."""
    if not there:
        why = f"are empty but {bad} that are not in data.encoding" if bad else "are empty"
        raise ConfigError(f"data.path: there is no text in {shown(found.folder)}: all {len(found.paths)} files {why}")
    for number, name in enumerate(sources):
        if number not in there:
            files = counted(found.sources.count(number), "file")
            raise ConfigError(f"data.sources.{name}: there is no text in its {files} in {found.folder}; give it others, or leave it out")


def _check_split(digests: np.ndarray, owners: np.ndarray, sources: Sequence[str], seed: int) -> None:
    """Raises ConfigError for documents of which all would be on one side of the split, and for a seed where nothing is drawn."""
    several = False
    for number, key in enumerate([f"data.sources.{name}" for name in sources] or ["data.path"]):
        mine = digests[owners == number]
        if len(mine) > 1 and (mine == mine[0]).all():
            alike = f"all {len(mine)} documents are alike, and what is alike stays on one side of the split"
            raise ConfigError(f"{key}: {alike}; give it others too, or one of them alone")
        several = several or len(mine) > 1
    if seed and not several:
        lone = "each of its sources is a single text, which" if sources else "a single text"
        raise ConfigError(f"data.split_seed={seed} has no effect: {lone} is split by position, its end validating; leave it out")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read ({error.strerror})") from None


def _where(config: TextConfig) -> str:
    if config.path is not None:
        return config.path
    what = f"the modules of up to {MODULE_BYTES:,} bytes" if config.sources is None else "files"
    return f"{what} of Python {sys.version.split()[0]}'s standard library"


def _left_out(left_out: dict[str, list[str]]) -> list[str]:
    """Files of no source by name, as far as five; empty ones by number. Each that is not in the encoding has a line of its own."""
    strays, empty = left_out["of no source"], left_out["empty"]
    names = strays[:NAMED] + ["..."] * (len(strays) > NAMED)
    lines = [f"left out: {counted(len(empty), 'empty file')}"] if empty else []
    return lines + ([f"left out: {counted(len(strays), 'file')} of no source: {', '.join(names)}"] if strays else [])


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
