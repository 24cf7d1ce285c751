"""Find the checkpoint that a run resumes from: the newest one that verifies, which means that its hashes match and every file can be
loaded.

Rank 0 searches, then all ranks load the checkpoint that rank 0 found. Damaged checkpoints are skipped, each with its reason. A checkpoint
of a newer format is an error: after a resume from an older one, the updates of the newer version of the program would be deleted. A
checkpoint that cannot be read at present is not damaged: the read is retried, and if it still fails the run ends with an error
(`files.read_or_refuse`)."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnaeus.checkpoint.format import MANIFEST
from linnaeus.checkpoint.loading import CheckpointDamaged, CheckpointNewer, LoadedCheckpoint, load_checkpoint
from linnaeus.errors import ConfigError
from linnaeus.files import REPLACED, exists, file_digest, is_absent, is_directory, read_json, read_or_refuse, to_json, write_atomic

log = logging.getLogger("linnaeus")

_STEP = re.compile(rf"step-(\d{{8,}})({re.escape(REPLACED)})?")
Broadcast = Callable[[Any], Any]


@dataclass(frozen=True)
class ResumePoint:
    """The `checkpoint` to resume from; None: start at step 0. `skipped`: (path, reason) of each newer checkpoint that did not verify."""

    checkpoint: LoadedCheckpoint | None
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Step of the checkpoint; 0 without a checkpoint."""
        return self.checkpoint.step if self.checkpoint else 0


def list_checkpoints(directory: Path | str) -> list[tuple[int, Path]]:
    """Return (step, path) of every complete checkpoint in `directory`, oldest first; `step-N.replaced` comes before `step-N`.

    Raise `OSError` if the disk cannot be read at present."""
    directory = Path(directory)
    entries = directory.iterdir() if is_directory(directory) else ()
    found = [(int(match[1]), not match[2], path) for path in entries if (match := _STEP.fullmatch(path.name)) and is_directory(path)]
    return [(step, path) for step, _, path in sorted(found)]


def checkpoints_under(path: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of the checkpoints in `path`, which is a run directory or its subdirectory `checkpoints`."""
    return list_checkpoints(path / "checkpoints") or list_checkpoints(path)


def auto_resume_helper(directory: Path | str, *, is_master: bool = True, broadcast_object: Broadcast | None = None) -> ResumePoint:
    """Return the newest checkpoint in `directory` that verifies, loaded.

    Every process rank calls this; `broadcast_object(value)` returns the value of rank 0 on all ranks. Raise `ConfigError` for a checkpoint
    of a newer format that is newer than every valid one. Raise `Unreadable` if the disk cannot be read at present; a rank other than 0 may
    be the only one that raises it."""
    return _on_all_ranks(lambda: _newest_valid(list_checkpoints(directory)), is_master, broadcast_object)


def find_resume_point(
    choice: str,
    directory: Path | str,
    *,
    is_master: bool = True,
    broadcast_object: Broadcast | None = None,
    read_only: bool = False,
) -> ResumePoint:
    """Return the checkpoint to resume from, for the value `choice` of `run.resume`.

    `auto`: the newest valid checkpoint of this run in `directory`. `never`: none. A path (of a checkpoint, a run directory, or its
    `checkpoints`): at the first start, the checkpoint at this path. Once this run has written checkpoints itself, the same command resumes
    from the newest of them, even if the checkpoint at the path was deleted meanwhile.

    If the path is a checkpoint of this run itself, the run is rolled back to that checkpoint once. A note in `directory` records the
    rollback, so that the same command later resumes from checkpoints written since the rollback.

    Nothing is written with `read_only=True`, or if `directory` is "" (not known yet)."""
    if choice == "never":
        return ResumePoint(None)
    own = Path(directory) if str(directory) else None
    if own is None or (choice != "auto" and Path(choice).resolve() not in (own.resolve(), own.resolve().parent)):
        return _on_all_ranks(lambda: _from_path(Path(choice), own, read_only or own is None), is_master, broadcast_object)
    point = auto_resume_helper(own, is_master=is_master, broadcast_object=broadcast_object)
    if is_master and not read_only:
        (own / NOTE).unlink(missing_ok=True)  # naming the checkpoint again later is a new rollback
    return point


def contains_checkpoint(path: Path, own: Path | None = None) -> bool:
    """Return True if `run.resume=path` leads to a checkpoint to resume from: `path` is a checkpoint or contains one. Nothing is loaded.

    `own`: the directory with the checkpoints of this run, if known; also return True if it has a checkpoint from which the same command
    would resume. Raise `OSError` if the disk cannot be read at present."""
    if exists(path / MANIFEST) or (is_directory(path) and _STEP.fullmatch(path.name)):
        return True
    if checkpoints_under(path):
        return True
    if own is not None and path.resolve().parent != own.resolve():
        return bool(list_checkpoints(own))
    return bool(_written_since_rollback(path, list_checkpoints(path.parent)))


def _from_path(path: Path, own: Path | None, read_only: bool) -> ResumePoint:
    """Return the checkpoint to resume from for `run.resume=path`. `path` is a checkpoint or a directory with checkpoints.

    `own`: the directory with the checkpoints of this run, None if not known. If `path` is a checkpoint in `own`, or `own` is None, return
    `_roll_back(path, read_only)`. Otherwise return the newest valid checkpoint in `own`; if there is none yet, the checkpoint at `path`."""
    if own is None or path.resolve().parent == own.resolve():
        return _roll_back(path, read_only)
    newest = _newest_valid(list_checkpoints(own))
    if newest.checkpoint is not None:
        log.info("run.resume: this run started from %s before; it resumes from its own step %d", path, newest.step)
        return newest
    named = _load_named(path)
    return ResumePoint(named.checkpoint, newest.skipped + named.skipped)


def _roll_back(path: Path, read_only: bool) -> ResumePoint:
    """Roll the run back to its own checkpoint at `path`, and return this checkpoint. Record the rollback in the file `NOTE`, unless
    `read_only`.

    If the run was already rolled back to `path`, and has written a valid checkpoint since then, return the newest such checkpoint
    instead."""
    found = list_checkpoints(path.parent)
    since = _newest_valid(_written_since_rollback(path, found))
    if since.checkpoint is not None:
        log.info("run.resume: the run was rolled back to %s before; it resumes from step %d, written since then", path, since.step)
        return since
    named = _load_named(path)
    if not read_only:
        left = [_manifest_hash(other) for step, other in found if step > named.step]
        write_atomic(path.parent / NOTE, to_json({"to": path.name, "step": named.step, "left": left}))
    return ResumePoint(named.checkpoint, since.skipped + named.skipped)


def _newest_valid(found: list[tuple[int, Path]]) -> ResumePoint:
    """Return the newest of the checkpoints `found` ((step, path) of checkpoints) that verifies, loaded. Raise `ConfigError` if a checkpoint
    of a newer format comes before it."""
    skipped: list[tuple[str, str]] = []
    for _, path in reversed(found):
        try:
            return ResumePoint(load_checkpoint(path), skipped)
        except CheckpointNewer as newer:
            raise ConfigError(f"{newer}, or name an older checkpoint: run.resume=PATH") from None
        except CheckpointDamaged as damage:
            skipped.append((str(path), damage.reason))
    return ResumePoint(None, skipped)


def _load_named(path: Path) -> ResumePoint:
    """Return the checkpoint at `path`. If `path` is a run directory, return its newest valid checkpoint. Raise `ConfigError` if there is
    none."""
    if exists(path / MANIFEST) or _STEP.fullmatch(path.name):
        try:
            return ResumePoint(load_checkpoint(path))
        except CheckpointNewer as newer:
            raise ConfigError(f"run.resume: {newer}") from None
        except CheckpointDamaged as damage:
            raise ConfigError(f"run.resume: {path} is damaged ({damage.reason}); use another checkpoint") from None
    point = _newest_valid(checkpoints_under(path))
    if point.checkpoint is not None:
        return point
    if point.skipped:
        raise ConfigError(f"run.resume: no checkpoint under {path} verifies; the newest: {point.skipped[0][1]}")
    raise ConfigError(f"run.resume: {path} is not a checkpoint and contains no checkpoint; use auto, never, or a step-... directory")


def _on_all_ranks(find: Callable[[], ResumePoint], is_master: bool, broadcast_object: Broadcast | None) -> ResumePoint:
    """Call `find` on rank 0, with retries. Then load the checkpoint that rank 0 found, on every rank.

    If `find` raises an error, the error is raised on every rank."""
    if broadcast_object is None:
        return read_or_refuse(find)
    point, outcome = ResumePoint(None), {}
    if is_master:
        try:
            point = read_or_refuse(find)
            outcome = {"path": str(point.checkpoint.path) if point.checkpoint else None, "skipped": point.skipped}
        except ConfigError as error:
            outcome = {"error": str(error)}
    outcome = broadcast_object(outcome)
    if "error" in outcome:
        raise ConfigError(outcome["error"])
    if not is_master:
        path = outcome["path"]
        chosen = read_or_refuse(lambda: load_checkpoint(path, verified=True)) if path else None  # rank 0 has checked the hashes
        point = ResumePoint(chosen, [tuple(item) for item in outcome["skipped"]])
    return point


# -- the rollback note ---------------------------------------------------------------------------------------------------------
#
# `run.resume=PATH` with an older checkpoint of the run itself resumes from it once, not at every start: when the same command is repeated
# after a kill, the run must not be rolled back again, and the named checkpoint may be gone, because retention deletes it when the run has
# newer ones. The note records the named checkpoint and hashes of the newer ones, which the rollback abandons. Newer checkpoints that are
# not in the note were written since then. It is written before the abandoned ones are renamed, so that a kill in between loses nothing.

NOTE = "went-back.json"


def _written_since_rollback(to: Path, found: list[tuple[int, Path]]) -> list[tuple[int, Path]]:
    """Return the checkpoints in `found` ((step, path) of checkpoints) that this run wrote after it was rolled back to the checkpoint `to`.

    Return [] if the run was not rolled back to `to`. Raise `OSError` if the rollback note cannot be read at present: if the note were taken
    as missing, the run would be rolled back again."""
    note: dict[str, Any] = read_json(to.parent / NOTE) or {}
    if note.get("to") != to.name or not {"step", "left"} <= note.keys():
        return []
    return [(step, path) for step, path in found if step > note["step"] and _manifest_hash(path) not in note["left"]]


def _manifest_hash(path: Path) -> str:
    try:
        return file_digest(path / MANIFEST)
    except OSError as error:
        if is_absent(error):
            return "unreadable"
        raise
