"""Write finished predictions to a temporary file, the journal, from which a killed `linnaeus predict` command continues.

The first line of the journal identifies the command and has the time of its first start. A line per photograph follows, in the order of
the inputs. The journal grows batch by batch. A killed command continues after the last complete batch. At the end the file of
predictions is made from the journal; its bytes do not depend on interruptions.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from linnaeus.errors import ConfigError
from linnaeus.files import no_follow

Row = dict[str, Any]  # result of `Prediction.plain`, or {"photograph": path, "error": reason}


class Journal:
    """File of the predictions that are finished. `done`: their number when the file was opened.

    `identity`: everything on which predictions depend; a journal with another identity is refused. `batch`: photographs in a batch.
    `started`: time of the first start of the command, such as 2026-05-01T16:10:00Z."""

    def __init__(self, path: Path, identity: Mapping[str, Any], batch: int) -> None:
        """Open the journal, or make it if it does not exist. Raise `ConfigError` if it is of another command or cannot be written."""
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
        """Return the number of photographs in complete batches. Truncate the file after the last complete batch."""
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
        """Append the rows of a batch to the file."""
        self.file.write("".join(map(to_json, rows)).encode("utf-8", "backslashreplace"))
        self.file.flush()

    def rows(self) -> Iterator[Row]:
        """Yield all rows of the journal from the first on."""
        self.file.flush()
        with open(self.path, "rb") as file:
            file.readline()
            yield from map(json.loads, file)

    def remove(self) -> None:
        """Close and delete the file."""
        self.file.close()
        self.path.unlink()


def now() -> str:
    """Return the current time in UTC, such as 2026-05-01T16:10:00Z."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_json(content: Mapping[str, Any]) -> str:
    """Return a dict as one line of JSON. Encode it with "backslashreplace": file names may contain lone surrogates."""
    return json.dumps(content, ensure_ascii=False) + "\n"


def _started(line: bytes, identity: Mapping[str, Any]) -> str | None:
    """Return the time of the first start from the first line of a journal; None if its command had another `identity`."""
    try:
        head = json.loads(line)
        return str(head["started"]) if head["predictions of"] == identity else None
    except (ValueError, KeyError, TypeError):
        return None
