"""Write the journal of `linnaeus predict`: the finished predictions, beside the file that is made from it at the end.

The journal has a line for the command that it belongs to, with the time of its first start, then a line per photograph in the order of the
inputs. It is written batch by batch, so that a killed command goes on after the last complete batch, and the file has the same bytes in the
end.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from linnaeus.errors import ConfigError
from linnaeus.files import no_follow

Row = dict[str, Any]  # `Prediction.plain`, or photograph and error


class Journal:
    """The predictions that are done. `identity`: everything that determines them; a journal of another identity is not continued.

    `started`: the time of the first start, such as 2026-05-01T16:10:00Z."""

    def __init__(self, path: Path, identity: Mapping[str, Any], batch: int) -> None:
        """Raise `ConfigError` if the journal belongs to another command, or cannot be written."""
        self.path, self.batch, self.started = path, batch, now()
        try:
            self.file: IO[bytes] = open(path, "r+b" if path.exists() else "w+b", opener=no_follow)  # noqa: SIM115 (open until `remove`)
            first = self.file.readline()
            if first.endswith(b"\n"):
                self.started = _started(first, dict(identity)) or self._refuse()
            else:
                self.file.seek(0)
                self.file.truncate()
                self.file.write(to_json({"predictions of": dict(identity), "started": self.started}).encode("utf-8", "backslashreplace"))
            self.done = self._complete_batches()
        except OSError as error:
            raise ConfigError(f"--out: {path} cannot be written ({error.strerror}); choose another file") from None

    def _refuse(self) -> str:
        raise ConfigError(f"--out: {self.path} is of another model or other photographs; finish that command, or remove the file")

    def _complete_batches(self) -> int:
        """Return the number of photographs in complete batches, and cut off what follows them."""
        done, end = 0, self.file.tell()
        position = end
        for lines, line in enumerate(self.file, 1):
            if not line.endswith(b"\n"):
                break
            position += len(line)
            if lines % self.batch == 0:
                end, done = position, lines
        self.file.seek(end)
        self.file.truncate()
        return done

    def append(self, rows: Sequence[Row]) -> None:
        """Write the rows of a batch."""
        self.file.write("".join(map(to_json, rows)).encode("utf-8", "backslashreplace"))
        self.file.flush()

    def rows(self) -> Iterator[Row]:
        """Yield the rows from the first on."""
        self.file.flush()
        with open(self.path, "rb") as file:
            file.readline()
            yield from map(json.loads, file)

    def remove(self) -> None:
        """Close and remove the journal."""
        self.file.close()
        self.path.unlink()


def now() -> str:
    """Return the current time in UTC, such as 2026-05-01T16:10:00Z."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_json(content: Mapping[str, Any]) -> str:
    """Return a line of JSON. A byte of a file name that is not UTF-8 is a lone surrogate, which `backslashreplace` writes as JSON does."""
    return json.dumps(content, ensure_ascii=False) + "\n"


def _started(line: bytes, identity: Mapping[str, Any]) -> str | None:
    """Return the time of the first start from the first line of a journal; None if it belongs to another command."""
    try:
        head = json.loads(line)
        return str(head["started"]) if head["predictions of"] == identity else None
    except (ValueError, KeyError, TypeError):
        return None
