"""`run.resume=PATH` with a checkpoint of the run itself: back to it once, and from there on again.

The same command, given again after a kill, must not go back a second time, and may not need the named checkpoint any more:
retention deletes it once the run is past it. So going back leaves a note beside the checkpoints: what was asked for, and which
newer ones belonged to the timeline that was left. What is newer and not of those was written since. The note is written before the
others are set aside; a kill in between finds them in it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from linnaeus.checkpoint.format import MANIFEST
from linnaeus.files import file_digest, is_absent, write_atomic

NOTE = "went-back.json"
Found = list[tuple[int, Path]]  # as `list_checkpoints` gives it


@dataclass(frozen=True)
class Rollback:
    """`to`: name of the checkpoint asked for; `step`: its step; `left`: hashes of the manifests of the timeline that was left."""

    to: str
    step: int
    left: list[str]

    def written_since(self, found: Found) -> Found:
        return [(step, path) for step, path in found if step > self.step and _mark(path) not in self.left]


def read_note(directory: Path, to: Path) -> Rollback | None:
    """The note of `directory`, if it is of going back to `to`. OSError when it cannot be read now: without it the run would go back a
    second time."""
    try:
        note = Rollback(**json.loads((directory / NOTE).read_bytes()))
    except (ValueError, TypeError):
        return None
    except OSError as error:
        if is_absent(error):
            return None
        raise
    return note if note.to == to.name else None


def write_note(directory: Path, to: Path, step: int, found: Found) -> None:
    """Remember that the run goes back to `to`, and what of `found` is newer."""
    left = [_mark(path) for other, path in found if other > step]
    write_atomic(directory / NOTE, json.dumps(asdict(Rollback(to.name, step, left)), indent=2) + "\n")


def forget(directory: Path) -> None:
    """Whoever continues without naming a checkpoint takes the run as it is now; naming one again is a new wish."""
    (directory / NOTE).unlink(missing_ok=True)


def _mark(path: Path) -> str:
    try:
        return file_digest(path / MANIFEST)
    except OSError as error:
        if is_absent(error):
            return "unreadable"
        raise
