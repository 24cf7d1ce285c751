"""Write finished results to a temporary file, the journal, from which a killed `linnaeus predict` or `linnaeus embed` continues.

The first line of the journal identifies the command and has the time of its first start. A line per photograph (or sequence) follows, in
the order of the inputs. The journal grows batch by batch. A killed command continues after the last complete batch. At the end the file of
results is made from the journal. The bytes of the file of results do not depend on interruptions."""

from __future__ import annotations

import datetime
import fcntl
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from linnaeus.errors import ConfigError
from linnaeus.files import no_follow

Row = dict[str, Any]  # {"photograph": path} with the result, such as `Prediction.plain`, or with {"error": reason}


class Journal:
    """File of finished results, used by one command at a time. `done`: number of results in the file when it was opened.

    `identity`: everything on which results depend, except the size of a batch (`batch`); the file of a command with another identity is
    refused. `ends`: numbers of rows after which a batch is complete; None: the multiples of `batch`. `started`: time of the first start of
    the command, such as 2026-05-01T16:10:00Z."""

    def __init__(self, out: Path, identity: Mapping[str, Any], batch: int, ends: Container[int] | None = None) -> None:
        """Open `OUT.journal`, or make the file if it does not exist.

        Raise `ConfigError` if the file is from another command, in use by another command, or cannot be written."""
        path = _path_of(out)
        identity = json.loads(to_json({**identity, "batch": batch}))  # as the first line is read: a tuple becomes a list
        self.path, self.batch, self.ends, self.started = path, batch, ends, now()
        try:
            self.file: IO[bytes] = open(path, "r+b" if path.exists() else "w+b", opener=no_follow)  # noqa: SIM115 (open until `__exit__`)
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first = self.file.readline()
            if first.endswith(b"\n"):
                self.started = self._started(first, identity)
            else:
                self.file.seek(0)
                self.file.truncate()
                self.file.write(to_json({"results of": identity, "started": self.started}).encode("utf-8", "backslashreplace"))
            self.done = self._complete_batches()
        except BlockingIOError:
            raise ConfigError(f"--out: another command writes {path} at present; wait for its end, or choose another file") from None
        except OSError as error:
            raise ConfigError(f"--out: {path} cannot be written ({error.strerror}); choose another file") from None

    def _started(self, line: bytes, identity: Mapping[str, Any]) -> str:
        """Return the time of the first start, which the first line of a journal states. Raise `ConfigError` if the line is damaged or has
        another identity."""
        try:
            head = json.loads(line)
            found, started = head["results of"], str(head["started"])
        except (ValueError, KeyError, TypeError):
            found, started = {}, ""
        if found == identity:
            return started
        reason = "is of another model or other photographs, or was begun with other options; finish that command"
        if isinstance(found, dict) and {**found, "batch": identity["batch"]} == identity:
            reason = f"was begun with --batch-size {found['batch']}; give that number"
        raise ConfigError(f"--out: {self.path} {reason}, or remove the file")

    def _complete_batches(self) -> int:
        """Return the number of rows in complete batches. Delete the rows of an incomplete last batch from the file."""
        done, end = 0, self.file.tell()
        position = end
        for lines, line in enumerate(self.file, 1):
            if not line.endswith(b"\n"):
                break
            position += len(line)
            if lines % self.batch == 0 if self.ends is None else lines in self.ends:
                end, done = position, lines
        self.file.seek(end)
        self.file.truncate()
        return done

    def append(self, rows: Sequence[Row]) -> None:
        """Append the rows of a batch to the file. Raise `ConfigError` if it cannot be written."""
        try:
            self.file.write("".join(map(to_json, rows)).encode("utf-8", "backslashreplace"))
            self.file.flush()
        except OSError as error:
            raise ConfigError(f"--out: {self.path} cannot be written ({error.strerror}); then give the same command again") from None

    def rows(self) -> Iterator[Row]:
        """Yield all rows of the journal from the first on."""
        self.file.flush()
        with open(self.path, "rb") as file:
            file.readline()
            yield from map(json.loads, file)

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # closing tries again to write rows that `append` could not write, which was reported then
            self.file.close()


def batch_of_journal(out: Path) -> int | None:
    """Return the batch size of the interrupted command that wrote the journal of `out`; None if there is no journal or it is damaged."""
    try:
        with open(_path_of(out), "rb", opener=no_follow) as file:
            size = json.loads(file.readline())["results of"]["batch"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return size if type(size) is int and size > 0 else None


def _path_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.journal")


def now() -> str:
    """Return the current time in UTC, such as 2026-05-01T16:10:00Z."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_json(content: Mapping[str, Any]) -> str:
    """Return a dict as one line of JSON. The caller must encode the line with "backslashreplace": file names may contain lone
    surrogates."""
    return json.dumps(content, ensure_ascii=False) + "\n"
