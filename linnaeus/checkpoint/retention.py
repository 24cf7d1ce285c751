"""Which checkpoints stay: the last N and the best N that are intact.

Nothing is deleted before its successor is committed. When a run goes on from an older checkpoint, the newer ones (damaged, or
of a timeline that was left) step aside to `step-N.aside`, where no resume finds them, and are deleted once the run has
committed a checkpoint at least as far.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from linnaeus.checkpoint.damage import CheckpointDamaged
from linnaeus.checkpoint.format import check_sizes, step_name
from linnaeus.checkpoint.resume import list_checkpoints
from linnaeus.files import remove_directory, remove_stale, restore_replaced, try_to_remove

ASIDE = ".aside"


class Candidate(NamedTuple):
    """A checkpoint as retention sees it; `score` is None where there is none to rank by."""

    step: int
    score: float | None


def choose_kept(candidates: Sequence[Candidate], keep_last: int, keep_best: int, best_mode: str = "max") -> set[int]:
    """The steps that stay. Equal scores: the newer is better; NaN ranks nowhere."""
    steps = sorted(c.step for c in candidates)
    ranked = [c for c in candidates if c.score is not None and not math.isnan(c.score)]
    ranked.sort(key=lambda c: (c.score if best_mode == "max" else -c.score, c.step), reverse=True)  # type: ignore[operator]
    return set(steps[-keep_last:]) | {c.step for c in ranked[:keep_best]}


def tidy(directory: Path) -> None:
    """Remove what a crash left uncommitted and settle cut-off replacements. Call it only while holding the run's lock."""
    remove_stale(directory)
    restore_replaced(directory)


def set_aside_beyond(directory: Path, step: int) -> list[str]:
    """Rename the checkpoints newer than `step`, where a run goes on; returns their new names."""
    moved = []
    for found, path in list_checkpoints(directory):
        if found > step:
            aside = path.with_name(path.name + ASIDE)
            if aside.exists():
                remove_directory(aside)
            os.rename(path, aside)
            moved.append(aside.name)
    return moved


def prune(directory: Path, committed: int, keep_last: int, keep_best: int, best_mode: str = "max") -> list[str]:
    """Delete what is not kept, now that step `committed` is on the disk; returns the names deleted.

    A checkpoint that is not intact (sizes do not match) takes no place among the kept ones; OSError, and nothing is deleted, when the
    disk does not say whether one is. One that cannot be deleted is named in the log and tried again next time; the others go.
    """
    assert keep_last >= 1, "the newest checkpoint always stays"
    found = [(step, path) for step, path in list_checkpoints(directory) if step <= committed]
    candidates = [Candidate(step, score) for step, path in found for score in _score_if_intact(path)]
    if committed not in {c.step for c in candidates}:
        raise CheckpointDamaged(directory / step_name(committed), "it is not there as it was written; nothing was deleted")
    kept = choose_kept(candidates, keep_last, keep_best, best_mode)
    doomed = [path for step, path in found if step not in kept]
    doomed += [path for path in directory.glob(f"step-*{ASIDE}") if _step_of(path) <= committed]
    return [path.name for path in doomed if try_to_remove(path)]


def _step_of(aside: Path) -> float:
    """The step of what was set aside; infinite where the name is none of ours."""
    number = aside.name.removeprefix("step-").removesuffix(ASIDE)
    return int(number) if number.isdecimal() else math.inf


def _score_if_intact(path: Path) -> list[float | None]:
    try:
        return [check_sizes(path)["score"]]
    except CheckpointDamaged:
        return []
