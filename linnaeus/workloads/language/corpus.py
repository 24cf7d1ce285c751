"""Read text files, cut them into documents and select the validation documents, before anything is tokenized.

`scan_texts` reads every file once. It keeps a hash of the file and of each of its documents, not the text. It leaves out empty files, files
that match no source, and files in another encoding (at most `data.max_bad_fraction` of all files). Messages to the user ("notes") give the
numbers of these files, and dataset.json gives their names. For a file in another encoding a note also gives its name and the offset of the
error."""

import hashlib
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linnaeus import randomness
from linnaeus.errors import ConfigError, counted
from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.language.config import TextConfig
from linnaeus.workloads.language.text_files import MODULE_BYTES, FoundFiles, find_files, printable
from linnaeus.workloads.language.text_pieces import check_encoding, read_pieces, reading_progress, split_documents


@dataclass(frozen=True)
class TextFile:
    """One file of documents. `name`: path of the file relative to the data folder. `source`: number of the file's source, a named group of
    files (0 without named sources)."""

    name: str
    path: Path
    bytes: int
    sha256: str
    source: int


@dataclass(frozen=True)
class Corpus:
    """Scanned files and their D documents. Documents are numbered over all files, ordered by source and then by file name."""

    files: tuple[TextFile, ...]
    digests: np.ndarray  # uint64 [D]: hash of each document's text
    lengths: np.ndarray  # int64 [D]: characters of each document
    document_sources: np.ndarray  # int64 [D]: source number of each document; 0 without named sources
    config: TextConfig
    notes: tuple[str, ...]
    left_out: dict[str, list[str]]  # reason -> names of all files left out for it

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of the text sources (groups of files with a name, `data.sources`); () without named sources."""
        return tuple(self.config.sources or ())

    def documents(self, activity: str) -> Iterator[tuple[str, Iterator[str]]]:
        """Yield (file name, pieces of the text) of each document; the caller must read the pieces before the next document. Show the
        progress of reading under the name `activity`. Raise `ConfigError` if a file has changed since the scan."""
        with reading_progress(activity, sum(file.bytes for file in self.files)) as progress:
            for file in self.files:
                for pieces in split_documents(self._pieces(file, progress), self.config.separator):
                    yield file.name, pieces

    def _pieces(self, file: TextFile, progress: PreparationProgress) -> Iterator[str]:
        digest = hashlib.sha256()
        changed = ConfigError(f"data.path: {file.path} changed while it was being read; start again when nothing writes to it")
        try:
            yield from read_pieces(file.path, self.config.encoding, digest, progress)
        except UnicodeError:
            raise changed from None
        if digest.hexdigest() != file.sha256:
            raise changed


def scan_texts(config: TextConfig) -> Corpus:
    """Read the files that `config` selects and return the corpus. Raise `ConfigError` if the files do not contain text, or if more than
    `data.max_bad_fraction` of the files cannot be decoded."""
    check_encoding("data.encoding", config.encoding)
    if config.separator == "":
        raise ConfigError("data.separator is empty; set the text between two documents, or null if each file is one document")
    found = find_files(config)
    files, bad = [], []
    left_out: dict[str, list[str]] = {"no source": found.left_out, "empty": [], "encoding": []}
    with reading_progress("reading the text", sum(map(_size, found.paths))) as progress:
        scan = Scan(config, found, progress)
        for path, source in zip(found.paths, found.sources, strict=True):
            try:
                file = scan.read(path, source)
            except UnicodeError as error:
                left_out["encoding"].append(found.name(path))
                where = f"at byte {error.start} ({error.reason})" if isinstance(error, UnicodeDecodeError) else f"({error})"
                bad.append(f"{printable(path)} is not {config.encoding} {where}")
                continue
            if file is None:
                left_out["empty"].append(found.name(path))
                continue
            files.append(file)
    _check_bad(bad, len(found.paths), config)
    _check_not_empty(found, {file.source for file in files}, config, len(bad))
    digests, lengths, sources = scan.documents()
    _check_split(digests, sources, config)
    numbers = f"{counted(len(files), 'file')}, {counted(len(digests), 'document')}, {counted(int(lengths.sum()), 'character')}"
    notes = [f"text: {_origin(config)}: {numbers}", *found.notes]
    notes += [f"left out: {line}" for line in bad] + _left_out_notes(left_out)
    reasons = {reason: names for reason, names in left_out.items() if names}
    return Corpus(tuple(files), digests, lengths, sources, config, tuple(notes), reasons)


class Scan:
    """Record of the documents of all files read so far: 24 bytes for each document, because there may be millions."""

    def __init__(self, config: TextConfig, found: FoundFiles, progress: PreparationProgress) -> None:
        self.config, self.found, self._progress = config, found, progress
        self._arrays = self._digests, self._lengths, self._sources = array("Q"), array("q"), array("q")

    def read(self, path: Path, source: int) -> TextFile | None:
        """Add the documents of the file `path` of source number `source`. Return the file, or None if the file is empty. Raise
        `UnicodeError` if the file is not in the configured encoding; then no document of the file is added."""
        digest, before, read = hashlib.sha256(), len(self._digests), self._progress.done
        try:
            for pieces in split_documents(read_pieces(path, self.config.encoding, digest, self._progress), self.config.separator):
                text_hash, length = hashlib.blake2b(digest_size=8), 0
                for piece in pieces:
                    text_hash.update(piece.encode())  # it can fail: some codecs decode to characters that UTF-8 cannot encode
                    length += len(piece)
                for values, value in zip(self._arrays, (int.from_bytes(text_hash.digest(), "little"), length, source), strict=True):
                    values.append(value)
        except UnicodeError:
            for values in self._arrays:
                del values[before:]
            raise
        if len(self._digests) == before:
            return None
        return TextFile(self.found.name(path), path, self._progress.done - read, digest.hexdigest(), source)

    def documents(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the hashes (uint64 [D]), numbers of characters (int64 [D]) and source numbers (int64 [D]) of all documents."""
        return np.array(self._digests, np.uint64), np.array(self._lengths, np.int64), np.array(self._sources, np.int64)


def held_out(corpus: Corpus) -> np.ndarray:
    """Return bool [D], True for the documents that are for validation.

    A hash of each document's own text decides, so other documents do not change the choice, and equal documents are in the same split. If
    by chance all documents of a source are in one split, the document whose hash is nearest to the threshold is moved to the other split,
    with its copies in this source; copies in another source stay."""
    draws = randomness.uniforms(randomness.key(corpus.config.split_seed, randomness.SPLIT), corpus.digests)
    chosen = draws < corpus.config.validation_fraction
    for source in range(max(1, len(corpus.sources))):
        own = corpus.document_sources == source
        if not chosen[own].any():
            chosen |= own & (draws == draws[own].min())
        elif chosen[own].all():
            chosen &= ~(own & (draws == draws[own].max()))
    return chosen


def _check_bad(bad: list[str], files: int, config: TextConfig) -> None:
    if len(bad) > config.max_bad_fraction * files:
        more = f", and {counted(len(bad) - 1, 'more file')}" if len(bad) > 1 else ""
        raise ConfigError(
            f"data.encoding: {bad[0]}{more}; correct the file, set its encoding, or "
            f"leave out up to data.max_bad_fraction={max(0.01, -(-100 * len(bad) // files) / 100)} of the files"
        )


def _check_not_empty(found: FoundFiles, remaining: set[int], config: TextConfig, bad: int) -> None:
    """Raise `ConfigError` if no file contains text, or if no file of one source contains text.

    remaining: the numbers of the sources with text. bad: the number of files that could not be decoded."""
    if not remaining:
        reason = f"are empty, except {bad} that are not in data.encoding" if bad else "are empty"
        raise ConfigError(f"data.path: {printable(found.folder)} does not contain text: all {len(found.paths)} files {reason}")
    for number, name in enumerate(config.sources or ()):
        if number not in remaining:
            files = counted(found.sources.count(number), "file")
            raise ConfigError(f"data.sources.{name}: its {files} in {found.folder} do not contain text; use other patterns or remove it")


def _check_split(digests: np.ndarray, document_sources: np.ndarray, config: TextConfig) -> None:
    """Raise `ConfigError` if a source has several documents and all are equal, since they would all be in the same split. Also raise
    `ConfigError` if `data.split_seed` is set but no source is split at random."""
    several = False
    for number, key in enumerate([f"data.sources.{name}" for name in config.sources or ()] or ["data.path"]):
        own = digests[document_sources == number]
        if len(own) > 1 and (own == own[0]).all():
            equal = f"all {len(own)} documents are equal, and equal documents stay on one side of the split"
            raise ConfigError(f"{key}: {equal}; add others, or keep only one of them")
        several = several or len(own) > 1
    if config.split_seed and not several:
        single = "each source is a single text, which" if config.sources else "a single text"
        raise ConfigError(f"data.split_seed={config.split_seed} has no effect: {single} is split by position, its end validates; remove it")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read ({error.strerror})") from None


def _origin(config: TextConfig) -> str:
    if config.path is not None:
        return config.path
    files = f"the modules of up to {MODULE_BYTES:,} bytes" if config.sources is None else "files"
    return f"{files} of Python {sys.version.split()[0]}'s standard library"


def _left_out_notes(left_out: dict[str, list[str]]) -> list[str]:
    """Return two lines for the user: one about the empty files and one about the files that match no source, each with the first five
    names. Files in another encoding are not included; `scan_texts` adds a line for each of them."""
    unmatched, empty = left_out["no source"], left_out["empty"]
    names = unmatched[:5] + ["..."] * (len(unmatched) > 5)
    lines = [f"left out: {counted(len(empty), 'empty file')}"] if empty else []
    return lines + ([f"left out: {counted(len(unmatched), 'file')} without a source: {', '.join(names)}"] if unmatched else [])
