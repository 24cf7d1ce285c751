"""`TextLines`: millions of texts without a Python object for each, as lines of a memory-mapped file or of bytes in memory.

A text takes its length in UTF-8, and 5 bytes, or more if it is long or the texts have more than 4 GB. A selection of the texts uses the
same bytes without a copy. The bytes of many texts are in a temporary file (`Spool`) if they are not in a file of the caller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np

from linnaeus.files import to_utf8
from linnaeus.workloads.taxonomy.arrays.spool import Spool, spooled

LINE_BREAK, ESCAPE = ord("\n"), "\\"
BLOCK = 1 << 16  # lines that are read together
SEARCHED = 1 << 24  # bytes that are searched together


def escape(text: str) -> str:
    """Return a text as one line, with line breaks and backslashes escaped as in C."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def encoded_lines(texts: Iterable[str]) -> Iterator[bytes]:
    """Yield the lines of texts as bytes in blocks. Each line ends with a line break."""
    texts = iter(texts)
    while block := list(islice(texts, BLOCK)):
        yield lines_of(block)


def lines_of(texts: Sequence[str]) -> bytes:
    """Return the lines of texts as bytes. Each line ends with a line break."""
    lines = "\n".join(texts) + "\n" if texts else ""
    if ESCAPE in lines or "\r" in lines or lines.count("\n") != len(texts):
        lines = "".join(f"{escape(text)}\n" for text in texts)
    try:
        return lines.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can contain
        return b"".join(to_utf8(f"{escape(to_utf8(text).decode())}\n") for text in texts)


def _unescape(line: str) -> str:
    parts = line.split("\\\\")
    return "\\".join(part.replace("\\n", "\n").replace("\\r", "\r") for part in parts)


class TextLines(Sequence[str]):
    """Sequence of N texts, stored as lines in the format of `escape`. Indexing with an array or slice returns a `TextLines` of the chosen
    texts."""

    def __init__(self, content: np.ndarray, start: np.ndarray, size: np.ndarray) -> None:
        """Take the bytes of the lines, `content` (uint8), and the offset `start` and length `size` of each line, integers [N].

        The length does not include the line break."""
        self.content, self.start, self.size = content, start, size

    @classmethod
    def read(cls, path: Path) -> TextLines:
        """Return the texts in a file, whose lines must all end with a line break. Raise `OSError` if the file cannot be read."""
        return cls.of_bytes(np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8))

    @classmethod
    def of(cls, texts: Iterable[str]) -> TextLines:
        """Return `texts` as a `TextLines` in memory."""
        content = Spool()
        for block in encoded_lines(texts):
            content.write(block)
        return cls.of_bytes(content.array())

    @classmethod
    def of_bytes(cls, content: np.ndarray) -> TextLines:
        """Return the texts in the bytes of a file, uint8, whose lines must all end with a line break."""
        blocks = range(0, len(content), SEARCHED)
        count = sum(np.count_nonzero(content[i : i + SEARCHED] == LINE_BREAK) for i in blocks)
        start = np.zeros(count + 1, np.uint32 if len(content) < 1 << 32 else np.int64)
        done = 1
        for i in blocks:
            found = np.flatnonzero(content[i : i + SEARCHED] == LINE_BREAK)
            start[done : done + len(found)] = found + (i + 1)
            done += len(found)
        size = np.diff(start)
        size -= 1
        return cls(content, spooled(start[:-1]), spooled(size.astype(np.min_scalar_type(size.max(initial=0)))))

    def __len__(self) -> int:
        return len(self.start)

    @overload
    def __getitem__(self, number: int) -> str: ...

    @overload
    def __getitem__(self, number: np.ndarray | slice) -> TextLines: ...

    def __getitem__(self, number: int | np.ndarray | slice) -> str | TextLines:
        if isinstance(number, (slice, np.ndarray)):
            return TextLines(self.content, self.start[number], self.size[number])
        start = int(self.start[number])
        line = self.content[start : start + int(self.size[number])].tobytes().decode("utf-8", "surrogateescape")
        return _unescape(line) if ESCAPE in line else line

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), BLOCK):
            text = self._bytes(first).decode("utf-8", "surrogateescape")
            yield from map(_unescape, text.split("\n")[:-1]) if ESCAPE in text else text.split("\n")[:-1]

    def tolist(self) -> list[str]:
        """Return the texts as a list of Python strings."""
        return list(self)

    def has(self, character: str) -> bool:
        """Return True if `content` contains the ASCII character `character`. If this object is a selection, `content` also has the lines
        that were not selected, so True does not mean that one of the texts contains the character."""
        blocks = range(0, len(self.content), SEARCHED)
        return any((self.content[i : i + SEARCHED] == ord(character)).any() for i in blocks)

    def __reduce__(self) -> tuple[Any, ...]:
        content = b"".join(self._bytes(first) for first in range(0, len(self), BLOCK))  # of these lines alone
        return _from_bytes, (content,)

    def first_bytes(self) -> np.ndarray:
        """Return the first byte of each line, uint8 [N]; for an empty line the byte of the line break."""
        return np.asarray(self.content[self.start])

    def joined(self) -> Iterator[bytes]:
        """Yield `to_utf8("\\0".join(texts))` in blocks."""
        for first in range(0, len(self), BLOCK):
            data = self._bytes(first)
            if _is_plain(data):
                data = data.replace(b"\n", b"\0")
            else:
                data = to_utf8("".join(f"{text}\0" for text in self[first : first + BLOCK]))
            yield data if first + BLOCK < len(self) else data[:-1]

    def _bytes(self, first: int) -> bytes:
        """Return the bytes of the block of up to `BLOCK` lines that begins with line `first`, each with its line break."""
        start, size = self.start[first : first + BLOCK], self.size[first : first + BLOCK].astype(np.int64) + 1
        end = np.cumsum(size)
        if (start[1:] == start[:-1] + size[:-1]).all():
            return self.content[start[0] : start[0] + end[-1]].tobytes()
        return self.content[np.repeat(start - (end - size), size) + np.arange(end[-1])].tobytes()


def _from_bytes(content: bytes) -> TextLines:
    return TextLines.of_bytes(np.frombuffer(content, np.uint8))


def _is_plain(data: bytes) -> bool:
    """Return True if the bytes are UTF-8 without escapes."""
    try:
        return ESCAPE not in data.decode()
    except UnicodeDecodeError:
        return False
