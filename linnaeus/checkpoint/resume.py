"""Where a run goes on: the newest checkpoint that verifies, found by one process rank and agreed on by all.

Damaged checkpoints, and those of a newer format, are walked past, newest to oldest, and each is named with its reason. "Verifies"
means that it was loaded: hashes match and the loader accepted every file, so that a bad one is found before training starts. One that
cannot be read now is not damaged: it is tried again, and then the launch is refused (`disk.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnaeus.checkpoint.damage import CheckpointDamaged, CheckpointNewer
from linnaeus.checkpoint.format import MANIFEST, LoadedCheckpoint, load_checkpoint
from linnaeus.checkpoint.rollback import forget, read_note, write_note
from linnaeus.errors import ConfigError
from linnaeus.files import REPLACED, is_directory, is_there, read_or_refuse

log = logging.getLogger("linnaeus")

_STEP = re.compile(rf"step-(\d{{8,}})({re.escape(REPLACED)})?")
Broadcast = Callable[[Any], Any]


@dataclass(frozen=True)
class ResumePoint:
    """`checkpoint` is None when there is nothing to continue from; `skipped` is (path, reason) of each one walked past."""

    checkpoint: LoadedCheckpoint | None
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Where training goes on; 0 without a checkpoint."""
        return self.checkpoint.step if self.checkpoint else 0


def list_checkpoints(directory: Path | str) -> list[tuple[int, Path]]:
    """(step, path) of every committed checkpoint, oldest first; one stepping aside (`.replaced`) comes before its successor.
    OSError when the disk does not say what is there."""
    directory = Path(directory)
    entries = directory.iterdir() if is_directory(directory) else ()
    found = [(int(match[1]), not match[2], path) for path in entries if (match := _STEP.fullmatch(path.name)) and is_directory(path)]
    return [(step, path) for step, _, path in sorted(found)]


def auto_resume_helper(directory: Path | str, *, is_master: bool = True, broadcast_object: Broadcast | None = None) -> ResumePoint:
    """The newest checkpoint of `directory` that verifies.

    With several process ranks every one calls this: `broadcast_object(value)` returns rank 0's value on all. Rank 0 walks back;
    the others load what it chose. ConfigError when none verifies and one is of a newer format: that is no run to begin anew. ConfigError
    as well when the disk cannot be read now; on another process than rank 0 it is `Unreadable`, which the others have to be told.
    """
    return _agree(lambda: _walk_back(list_checkpoints(directory)), is_master, broadcast_object)


def find_resume_point(
    choice: str,
    directory: Path | str,
    *,
    is_master: bool = True,
    broadcast_object: Broadcast | None = None,
    look_only: bool = False,
) -> ResumePoint:
    """`run.resume`: `auto` walks `directory`, the checkpoints of this run; `never` starts anew (the run directory refuses earlier when
    there is a run); anything else is the path of a checkpoint, of a run directory, or of its `checkpoints/`: where the run begins, or
    goes back to. Once it has written checkpoints since, the same command goes on from those, and the named one may be gone.

    `look_only`, or a `directory` of "" (not known yet): nothing is written."""
    if choice == "never":
        return ResumePoint(None)
    own = Path(directory) if str(directory) else None
    if own is None or (choice != "auto" and Path(choice).resolve() not in (own.resolve(), own.resolve().parent)):
        return _agree(lambda: _from_path(Path(choice), own, look_only or own is None), is_master, broadcast_object)
    point = auto_resume_helper(own, is_master=is_master, broadcast_object=broadcast_object)
    if is_master and not look_only:
        forget(own)
    return point


def holds_checkpoint(path: Path, own: Path | None = None) -> bool:
    """Whether a `run.resume` path may be resumed from; nothing is loaded yet. `own`: the checkpoints of this run, if it is known.
    OSError when the disk does not say."""
    if is_there(path / MANIFEST) or (is_directory(path) and _STEP.fullmatch(path.name)):
        return True
    if list_checkpoints(path / "checkpoints") or list_checkpoints(path):
        return True
    if own is not None and path.resolve().parent != own.resolve():
        return bool(list_checkpoints(own))
    note = read_note(path.parent, path)
    return note is not None and bool(note.written_since(list_checkpoints(path.parent)))


def _from_path(path: Path, own: Path | None, look_only: bool) -> ResumePoint:
    if own is None or path.resolve().parent == own.resolve():
        return _go_back(path, look_only)
    mine = _walk_back(list_checkpoints(own))
    if mine.checkpoint is not None:
        log.info("run.resume: %s is where this run began; it goes on from its own step %d", path, mine.step)
        return mine
    named = _named(path)
    return ResumePoint(named.checkpoint, mine.skipped + named.skipped)


def _go_back(path: Path, look_only: bool) -> ResumePoint:
    """A checkpoint of the run itself, or what it has written since it went back there."""
    found, note = list_checkpoints(path.parent), read_note(path.parent, path)
    since = _walk_back(note.written_since(found)) if note is not None else ResumePoint(None)
    if since.checkpoint is not None:
        log.info("run.resume: the run went back to %s before; it goes on from step %d, written since", path, since.step)
        return since
    named = _named(path)
    if not look_only:
        write_note(path.parent, path, named.step, found)
    return ResumePoint(named.checkpoint, since.skipped + named.skipped)


def _walk_back(found: list[tuple[int, Path]]) -> ResumePoint:
    skipped: list[tuple[str, str]] = []
    newer: CheckpointDamaged | None = None
    for _, path in reversed(found):
        try:
            return ResumePoint(load_checkpoint(path), skipped)
        except CheckpointDamaged as damage:
            skipped.append((str(path), damage.reason))
            newer = newer or (damage if isinstance(damage, CheckpointNewer) else None)
    if newer is not None:
        raise ConfigError(f"{newer}; no older checkpoint verifies")
    return ResumePoint(None, skipped)


def _named(path: Path) -> ResumePoint:
    if is_there(path / MANIFEST) or _STEP.fullmatch(path.name):
        try:
            return ResumePoint(load_checkpoint(path))
        except CheckpointNewer as newer:
            raise ConfigError(f"run.resume: {newer}") from None
        except CheckpointDamaged as damage:
            raise ConfigError(f"run.resume: {path} is damaged ({damage.reason}); name another checkpoint") from None
    for directory in (path / "checkpoints", path):
        if list_checkpoints(directory):
            point = _walk_back(list_checkpoints(directory))
            if point.checkpoint is None:
                raise ConfigError(f"run.resume: no checkpoint under {directory} verifies; the newest: {point.skipped[0][1]}")
            return point
    raise ConfigError(f"run.resume: {path} is no checkpoint and holds none; give auto, never, or the path of a step-... directory")


def _agree(find: Callable[[], ResumePoint], is_master: bool, broadcast_object: Broadcast | None) -> ResumePoint:
    """Run `find` on rank 0 alone, with patience for the disk; its choice, or its error, becomes everybody's."""
    if broadcast_object is None:
        return read_or_refuse(find)
    point, verdict = ResumePoint(None), {}
    if is_master:
        try:
            point = read_or_refuse(find)
            verdict = {"path": str(point.checkpoint.path) if point.checkpoint else None, "skipped": point.skipped}
        except ConfigError as error:
            verdict = {"error": str(error)}
    verdict = broadcast_object(verdict)
    if "error" in verdict:
        raise ConfigError(verdict["error"])
    if not is_master:
        path = verdict["path"]
        chosen = read_or_refuse(lambda: load_checkpoint(path, verified=True)) if path else None  # rank 0 has hashed it
        point = ResumePoint(chosen, [tuple(item) for item in verdict["skipped"]])
    return point
