"""The rollback note: `run.resume=PATH` with an older checkpoint of the run itself resumes from it once, not at every start.

When the same command is repeated after a kill, the run must not be rolled back again, and the named checkpoint may be gone: retention
deletes it when the run is past it. The note `went-back.json` therefore records the named checkpoint and hashes of the newer ones, which
the rollback abandons. Newer checkpoints that are not in the note were written since then. The note is written before the abandoned
checkpoints are renamed, so that a kill in between loses nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linnaeus.checkpoint.format import MANIFEST
from linnaeus.files import file_digest, is_absent, read_json, to_json, write_atomic

NOTE = "went-back.json"
Found = list[tuple[int, Path]]  # the result of `list_checkpoints`


def written_since_rollback(to: Path, found: Found) -> Found:
    """Return the checkpoints of `found` that were written after a rollback to the checkpoint `to`. Return [] if there is no such note.

    Raise `OSError` if the note cannot be read at present: without it the run would be rolled back again.
    """
    note: dict[str, Any] = read_json(to.parent / NOTE) or {}
    if note.get("to") != to.name or not {"step", "left"} <= note.keys():
        return []
    return [(step, path) for step, path in found if step > note["step"] and _manifest_hash(path) not in note["left"]]


def write_note(to: Path, step: int, found: Found) -> None:
    """Record a rollback to the checkpoint `to` of a step. It abandons the checkpoints of `found` that are newer."""
    left = [_manifest_hash(path) for other, path in found if other > step]
    write_atomic(to.parent / NOTE, to_json({"to": to.name, "step": step, "left": left}))


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
