"""Where a run goes on: the newest checkpoint that verifies, found by one process rank and agreed on by all.

Damaged checkpoints are walked past, newest to oldest, and each is named with its reason. "Verifies" means that it was loaded:
hashes match and the loader accepted every file, so that a bad one is found before training starts, not after.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnaeus.checkpoint.files import REPLACED
from linnaeus.checkpoint.format import MANIFEST, CheckpointDamaged, LoadedCheckpoint, load_checkpoint
from linnaeus.config.errors import ConfigError

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
    """(step, path) of every committed checkpoint, oldest first; one stepping aside (`.replaced`) comes before its successor."""
    directory = Path(directory)
    entries = directory.iterdir() if directory.is_dir() else ()
    found = [(int(match[1]), not match[2], path) for path in entries if (match := _STEP.fullmatch(path.name)) and path.is_dir()]
    return [(step, path) for step, _, path in sorted(found)]


def auto_resume_helper(directory: Path | str, *, is_master: bool = True, broadcast_object: Broadcast | None = None) -> ResumePoint:
    """The newest checkpoint of `directory` that verifies.

    With several process ranks every one calls this: `broadcast_object(value)` returns rank 0's value on all. Rank 0 walks back;
    the others load what it chose. ConfigError when a checkpoint is of a newer format: older ones are not taken in its place.
    """
    return _agree(lambda: _walk_back(Path(directory)), is_master, broadcast_object)


def find_resume_point(
    choice: str, directory: Path | str, *, is_master: bool = True, broadcast_object: Broadcast | None = None
) -> ResumePoint:
    """`run.resume`: `auto` walks `directory`; `never` starts anew (the run directory refuses earlier when there is a run);
    anything else is the path of a checkpoint, of a run directory, or of its `checkpoints/`. A path outside `directory` is where
    the run begins: once it has checkpoints of its own, the same command goes on from those."""
    if choice == "never":
        return ResumePoint(None)
    if choice == "auto":
        return auto_resume_helper(directory, is_master=is_master, broadcast_object=broadcast_object)
    return _agree(lambda: _begun_from(Path(choice), Path(directory)), is_master, broadcast_object)


def holds_checkpoint(path: Path) -> bool:
    """Whether a `run.resume` path may be resumed from: nothing is loaded yet."""
    if (path / MANIFEST).exists() or (path.is_dir() and _STEP.fullmatch(path.name)):
        return True
    return bool(list_checkpoints(path / "checkpoints") or list_checkpoints(path))


def _walk_back(directory: Path) -> ResumePoint:
    skipped: list[tuple[str, str]] = []
    for _, path in reversed(list_checkpoints(directory)):
        try:
            return ResumePoint(load_checkpoint(path), skipped)
        except CheckpointDamaged as damage:
            skipped.append((str(path), damage.reason))
    return ResumePoint(None, skipped)


def _begun_from(path: Path, directory: Path) -> ResumePoint:
    if path.resolve().is_relative_to(directory.resolve()):
        return _named(path)
    own = _walk_back(directory)
    return own if own.checkpoint else _named(path)


def _named(path: Path) -> ResumePoint:
    if (path / MANIFEST).exists() or _STEP.fullmatch(path.name):
        try:
            return ResumePoint(load_checkpoint(path))
        except CheckpointDamaged as damage:
            raise ConfigError(f"run.resume: {path} is damaged ({damage.reason}); name another checkpoint") from None
    for directory in (path / "checkpoints", path):
        if list_checkpoints(directory):
            point = _walk_back(directory)
            if point.checkpoint is None:
                raise ConfigError(f"run.resume: no checkpoint under {directory} verifies; the newest: {point.skipped[0][1]}")
            return point
    raise ConfigError(f"run.resume: {path} is no checkpoint and holds none; give auto, never, or the path of a step-... directory")


def _agree(find: Callable[[], ResumePoint], is_master: bool, broadcast_object: Broadcast | None) -> ResumePoint:
    """Run `find` on rank 0 alone; its choice, or its error, becomes everybody's."""
    if broadcast_object is None:
        return find()
    point, verdict = ResumePoint(None), {}
    if is_master:
        try:
            point = find()
            verdict = {"path": str(point.checkpoint.path) if point.checkpoint else None, "skipped": point.skipped}
        except ConfigError as error:
            verdict = {"error": str(error)}
    verdict = broadcast_object(verdict)
    if "error" in verdict:
        raise ConfigError(verdict["error"])
    if not is_master:
        chosen = load_checkpoint(verdict["path"]) if verdict["path"] else None
        point = ResumePoint(chosen, [tuple(item) for item in verdict["skipped"]])
    return point
