"""Read, split and cut a text of any length in constant memory. Every function reads and yields the text as pieces: strings that, joined,
are the text.

It does not matter where a text is cut into pieces: documents, halves and tokens are the same."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from linnaeus.errors import ConfigError
from linnaeus.reporting.terminal.preparation_progress import PreparationProgress

if TYPE_CHECKING:
    from hashlib import _Hash

CHUNK = 1 << 20  # bytes read at once


def reading_progress(activity: str, total: int) -> PreparationProgress:
    """Return a progress display, labelled `activity`, for reading `total` bytes."""
    return PreparationProgress(activity, total, f"{total / 1e6:.0f} MB")


def check_encoding(key: str, encoding: str) -> None:
    """Raise `ConfigError` if `encoding` is not a codec of Python that decodes bytes to text. `key`: setting or option that has the name."""
    try:
        b" ".decode(encoding)
        codecs.getincrementaldecoder(encoding)
    except LookupError:
        raise ConfigError(f"{key}={encoding} is not a codec of Python; use for example utf-8, utf-16 or latin-1") from None
    except UnicodeError:
        pass  # a codec whose characters are longer than one byte


def read_pieces(path: Path, encoding: str, digest: _Hash, progress: PreparationProgress) -> Iterator[str]:
    """Yield the text of a file in pieces, and update `digest` with the bytes of the file. Raise `UnicodeError` if the file is not in
    `encoding` (for a `UnicodeDecodeError`, `start` is the offset in the file), and `ConfigError` if the file cannot be read."""
    decoder, position = codecs.getincrementaldecoder(encoding)(), 0
    for chunk in _chunks(path):
        digest.update(chunk)
        try:
            waiting = len(decoder.getstate()[0])  # bytes of a character whose end is in this chunk
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            error.start += position - waiting
            raise
        yield text
        position += len(chunk)
        progress.add(len(chunk))


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks; the last chunk is empty. Raise `ConfigError` if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            while True:
                chunk = file.read(CHUNK)
                yield chunk
                if not chunk:
                    return
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read ({error.strerror})") from None


def split_documents(pieces: Iterable[str], separator: str | None) -> Iterator[Iterator[str]]:
    """Yield an iterator over the pieces of each document, leaving out documents that are only white space. The caller must read the pieces
    of a document before the next document. `separator`: the text between two documents; None: the text is one document."""
    numbered = ((0, piece) for piece in pieces) if separator is None else _split(pieces, separator)
    for _, document in groupby(numbered, itemgetter(0)):
        texts, held = map(itemgetter(1), document), []
        for text in texts:
            held.append(text)
            if text.strip():
                yield chain(held, texts)
                break


def _split(pieces: Iterable[str], separator: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the document, piece of its text) for the documents that `"".join(pieces).split(separator)` returns. The end of a
    piece may be the beginning of a separator, so this end is yielded together with the next piece."""
    number, rest = 0, ""
    for piece in pieces:
        *ended, rest = (rest + piece).split(separator)
        for text in ended:
            yield number, text
            number += 1
        end = max(0, len(rest) - len(separator) + 1)
        yield number, rest[:end]
        rest = rest[end:]
    yield number, rest


def halves(pieces: Iterable[str], length: int) -> Iterator[tuple[bool, Iterator[str]]]:
    """Yield (False, pieces of the first `length` characters) and (True, pieces of the rest). Leave out a part that is empty."""

    def sides() -> Iterator[tuple[bool, str]]:
        left = length
        for piece in pieces:
            for side, text in ((False, piece[:left]), (True, piece[left:])):
                if text:
                    yield side, text
            left = max(0, left - len(piece))

    for side, texts in groupby(sides(), itemgetter(0)):
        yield side, map(itemgetter(1), texts)


def recut(pieces: Iterable[str], boundary: re.Pattern[str], size: int) -> Iterator[str]:
    """Yield the text in pieces of `size` characters or a little more. Each piece ends where `boundary` matches. To decide about a match,
    `boundary` may need at most one character after the first character of the match."""
    text, searched = "", 0
    for piece in pieces:
        text, start = text + piece, 0
        while len(text) - start > size and (match := boundary.search(text, max(start + size, searched))) is not None:
            yield text[start : match.end()]
            start = searched = match.end()
        text, searched = text[start:], max(0, len(text) - start - 1)
    if text:
        yield text
