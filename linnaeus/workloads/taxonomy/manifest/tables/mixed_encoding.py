"""`Utf8Lines`: read a text file of which some lines are not UTF-8, such as a table whose rows come from several programs."""

import io
from typing import IO

from linnaeus.errors import counted

CHUNK = 1 << 20  # bytes that are read at once; in a longer line, each block of this size is decoded on its own


class Utf8Lines(io.RawIOBase):
    """Binary file with the content of `file`, in which each line that is not UTF-8 is converted to UTF-8 from windows-1252.

    A read raises `UnicodeDecodeError` if a line is in neither encoding. Other lines are not changed."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.rest, self.begun = file, memoryview(b""), b""
        self.converted = 0  # number of lines

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        block = b"begin"
        while block and not self.rest:
            block = self.file.read(CHUNK)
            lines = (self.begun + block).splitlines(keepends=True)
            self.begun = lines.pop() if block and len(lines[-1]) < CHUNK else b""  # a line that may continue in the next block
            self.rest = memoryview(b"".join(map(self._utf8, lines)))
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size

    def _utf8(self, line: bytes) -> bytes:
        try:
            line.decode()
        except UnicodeDecodeError:
            self.converted += 1
            return line.decode("windows-1252").encode()
        return line

    def notes(self, name: str) -> list[str]:
        """Return a line about the lines that were converted, so far, of the file called `name`; [] if there are none."""
        if not self.converted:
            return []
        return [f"{name}: {counted(self.converted, 'line')} not in UTF-8, read as windows-1252; the others are in UTF-8"]
