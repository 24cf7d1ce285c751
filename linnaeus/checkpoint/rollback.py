"""The rollback note: `run.resume=PATH` with an older checkpoint of the run itself resumes from it once, not at every start.

When the same command is repeated after a kill, the run must not be rolled back again, and the named checkpoint may be gone: retention
deletes it when the run is past it. The note `went-back.json` therefore records the named checkpoint and hashes of the newer ones, which
the rollback abandons. Newer checkpoints that are not in the note were written since then. The note is written before the abandoned
checkpoints are renamed, so that a kill in between loses nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from linnaeus.checkpoint.format import MANIFEST
from linnaeus.files import file_digest, is_absent, read_json, to_json, write_atomic

NOTE = "went-back.json"
Found = list[tuple[int, Path]]  # the result of `list_checkpoints`


@dataclass(frozen=True)
class Rollback:
    """`to`: name of the checkpoint of the rollback; `step`: its step; `left`: manifest hashes of the checkpoints it abandons."""

    to: str
    step: int
    left: list[str]

    def written_since(self, found: Found) -> Found:
        """Return the checkpoints of `found` that were written after the rollback."""
        return [(step, path) for step, path in found if step > self.step and _manifest_hash(path) not in self.left]


def read_note(directory: Path, to: Path) -> Rollback | None:
    """Return the note of `directory` if it is of a rollback to `to`, else None.

    Raise `OSError` if it cannot be read at present: without it the run would be rolled back again.
    """
    content = read_json(directory / NOTE)
    try:
        note = Rollback(**content) if content is not None else None
    except TypeError:
        return None
    return note if note is not None and note.to == to.name else None


def write_note(directory: Path, to: Path, step: int, found: Found) -> None:
    """Record a rollback to `to`, which abandons the checkpoints of `found` that are newer than `step`."""
    left = [_manifest_hash(path) for other, path in found if other > step]
    write_atomic(directory / NOTE, to_json(asdict(Rollback(to.name, step, left))))


def delete_note(directory: Path) -> None:
    """Delete the note. After a start without a named checkpoint, naming it again is a new rollback."""
    (directory / NOTE).unlink(missing_ok=True)


def _manifest_hash(path: Path) -> str:
    try:
        return file_digest(path / MANIFEST)
    except OSError as error:
        if is_absent(error):
            return "unreadable"
        raise
