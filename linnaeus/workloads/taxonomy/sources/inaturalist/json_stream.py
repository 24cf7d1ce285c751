"""Read the objects of a large JSON file one by one, so that memory does not grow with the file.

The file is an array of objects, or an object whose members are arrays of objects. It is read in blocks; each object is decoded by Python's
json module, which also accepts NaN. Numbers are returned as texts, so that no digit of a coordinate or id is lost.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from linnaeus.errors import ConfigError, one_line, quoted

BLOCK = 1 << 20  # characters that are read at once
LONGEST_OBJECT = 1 << 24  # characters; usual objects have less than a thousand
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)


def objects(path: Path, key: str = "data.path") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name of the array, object) for each object in an array of a JSON file. The name is "" if the file itself is an array.

    Members of the file that are not arrays are skipped. Raise `ConfigError` if the file is not JSON, or if an array contains other values.
    `key`: configuration key of the path, for messages."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            yield from _Stream(file).members()
    except (OSError, ValueError, RecursionError) as error:
        reason = one_line(error) if not isinstance(error, RecursionError) else "the brackets are nested too deeply"
        raise ConfigError(
            f"{key}: {quoted(str(path), 120)} cannot be read: {reason}; unpack it again, or use a JSON file of the competition"
        ) from error


class _Text(Protocol):
    """Interface of a file that is open for reading text."""

    def read(self, size: int, /) -> str: ...


class _Stream:
    """JSON text of which only a part is in memory. Methods raise `ValueError` if the text is not an array of objects or an object with such
    arrays."""

    def __init__(self, file: _Text) -> None:
        self.file = file
        self.text = ""
        self.place = 0  # current position in `text`
        self.before = 0  # number of characters in the file before `text`

    def members(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (name of the array, object) for each object in an array of the text. Raise `ValueError` for text after the end."""
        if self.next() == "[":
            for item in self.array():
                yield "", item
        else:
            self.expect("{")
            while not self.closes("}"):
                name = self.value()
                self.expect(":")
                if self.next() != "[":
                    self.value()
                    continue
                for item in self.array():
                    yield name, item
        if self.next():
            raise ValueError(f"text after the end, at character {self.before + self.place}")

    def array(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of the array that starts at the current position. Raise `ValueError` if an element is not an object."""
        self.expect("[")
        while not self.closes("]"):
            if self.next() != "{":
                raise ValueError(f"an array contains something else than objects, at character {self.before + self.place}")
            yield self.value()

    def value(self) -> Any:
        """Return the value that starts at the current position. Read more of the file until the value is complete.

        Raise `ValueError` for invalid JSON."""
        self.next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.place)
                if end + 2 < len(self.text) or not self.read():  # at the end of the text, 1e+ would be decoded as the number 1
                    self.place = end
                    return value
            except json.JSONDecodeError as error:
                if not self.read():
                    raise ValueError(f"{error.msg}, at character {self.before + error.pos}") from error

    def next(self) -> str:
        """Move to the next character that is not a space. Return this character, or "" at the end of the file."""
        while True:
            self.place = _SPACE.match(self.text, self.place).end()  # type: ignore[union-attr]  # it also matches no space
            if self.place < len(self.text):
                return self.text[self.place]
            if not self.read():
                return ""

    def expect(self, character: str) -> None:
        """Move past the next character that is not a space. Raise `ValueError` if this character is not `character`."""
        if (found := self.next()) != character:
            place = self.before + self.place
            raise ValueError(f"{character!r} expected and {found!r} found, at character {place}" if found else "it ends early")
        self.place += 1

    def closes(self, bracket: str) -> bool:
        """Move past the comma before the next item and return False, or past the closing bracket `bracket` and return True."""
        opened = self.text[self.place - 1 : self.place] in ("{", "[")
        if closed := self.next() == bracket:
            self.place += 1
        elif not opened:
            self.expect(",")
        return closed

    def read(self) -> bool:
        """Read more text, and drop the text before the current position. Return False at the end of the file.

        The blocks grow with an incomplete value, so that only a few attempts are made to decode a long value. Raise `ValueError` for a
        value of more than `LONGEST_OBJECT` characters."""
        if (unread := len(self.text) - self.place) > LONGEST_OBJECT:
            raise ValueError(f"an object of more than {LONGEST_OBJECT} characters, at character {self.before + self.place}")
        more = self.file.read(max(BLOCK, unread))
        if more:
            self.text, self.before, self.place = self.text[self.place :] + more, self.before + self.place, 0
        return bool(more)
