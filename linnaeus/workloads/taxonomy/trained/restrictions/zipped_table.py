"""Unpack the table in a zip archive, such as the species list of a GBIF download. The archive must have exactly one table."""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from linnaeus.errors import ConfigError, list_some, quoted

SUFFIXES = (".csv", ".tsv", ".txt")
LARGEST = 1 << 30  # bytes of the table
BLOCK = 1 << 20  # bytes that are copied at once


@contextlib.contextmanager
def unpacked_table(path: Path, key: str) -> Iterator[Path]:
    """Yield the path of a table. Unpack a zip archive to a temporary file; yield the path of any other file unchanged.

    `key`: option that gave the path, for messages, which name the archive. Raise `ConfigError` for an archive that cannot be read or that
    does not have exactly one table."""
    if not zipfile.is_zipfile(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / f"{path.stem}.csv"
        _unpack(path, table, f"{key}: {quoted(str(path), 200)}")
        try:
            yield table
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(table), str(path))) from None


def _unpack(path: Path, table: Path, name: str) -> None:
    """Copy the table in the zip archive `path` to the file `table`. `name`: option and path of the archive, for messages."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if _is_table(info)]
            if len(members) != 1:
                listed = list_some([info.filename for info in members], 3) if members else ", ".join(SUFFIXES)
                raise ConfigError(f"{name} has {len(members)} tables ({listed}); give an archive with one, or the table itself")
            with archive.open(members[0]) as packed, table.open("wb") as file:
                while block := packed.read(BLOCK):
                    if file.tell() + len(block) > LARGEST:
                        raise ConfigError(f"{name}: its table is larger than {LARGEST >> 30} GB; unpack it and give the table itself")
                    file.write(block)
    except (OSError, EOFError, RuntimeError, NotImplementedError, zlib.error, zipfile.BadZipFile) as error:
        raise ConfigError(f"{name} cannot be read ({error})") from None


def _is_table(info: zipfile.ZipInfo) -> bool:
    place = PurePosixPath(info.filename)
    return place.suffix.lower() in SUFFIXES and not any(part.startswith((".", "__")) for part in place.parts)
