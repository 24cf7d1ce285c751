"""What a remote logger has been sent, kept over any number of starts in `sent.json`: how many rows of each stream.

The note is on the disk before its row is sent: a resumed run replays rows since its checkpoint, and none goes out twice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from linnaeus.reporting.rows import count_rows

SENT = "sent.json"


class SentRows:
    """The note of one remote logger of the run in `run`. Used by one thread."""

    def __init__(self, run: Path, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            text = path.read_bytes()
            self._rows: dict[str, int] = _counts(text) if text else {}
        except ValueError:  # half-written: the files of rows hold at least what was sent, for a row reaches them first
            self._rows = {name: rows for name in ("metrics", "timings") if (rows := count_rows(run / f"{name}.jsonl"))}
            os.ftruncate(self._file, 0)  # so that no old tail stays behind what is written over it

    def take(self, stream: str, position: int) -> int | None:
        """Note that row number `position` of its stream is sent now; returns how many rows that makes, None if it was sent before."""
        if position <= self._rows.get(stream, 0):
            return None
        self._rows[stream] = position
        os.pwrite(self._file, json.dumps(self._rows).encode(), 0)  # it only grows, so writing over it leaves no old tail
        os.fsync(self._file)
        return sum(self._rows.values())

    def close(self) -> None:
        os.close(self._file)


def _counts(text: bytes) -> dict[str, int]:
    """ValueError for anything but numbers of rows by stream."""
    found: Any = json.loads(text)
    if not isinstance(found, dict) or not all(type(rows) is int and rows >= 0 for rows in found.values()):
        raise ValueError(f"no numbers of rows: {found!r}")
    return found
