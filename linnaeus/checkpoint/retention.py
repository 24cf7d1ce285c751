"""Retention: keep the last N and the best N intact checkpoints, delete the others.

Nothing is deleted before a newer checkpoint is committed. When a run resumes from an older checkpoint, the newer ones (damaged, or
abandoned by a rollback) are renamed to `step-N.aside`, so that no resume finds them. They are deleted once the run has committed a
checkpoint of the same or a later step.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path

from linnaeus.checkpoint.format import step_name
from linnaeus.checkpoint.loading import CheckpointDamaged, intact_manifest
from linnaeus.checkpoint.resume import list_checkpoints
from linnaeus.files import remove_directory, remove_or_warn, remove_stale, restore_replaced

ASIDE = ".aside"


def choose_kept(scores: Mapping[int, float | None], keep_last: int, keep_best: int, best_mode: str = "max") -> set[int]:
    """Return the steps to keep. `scores`: the score of each intact checkpoint by step, None if it was not validated.

    Of equal scores the newer one is better. A score of NaN is not ranked."""
    sign = 1 if best_mode == "max" else -1
    ranked = [(sign * score, step) for step, score in scores.items() if score is not None and not math.isnan(score)]
    return set(sorted(scores)[-keep_last:]) | {step for _, step in sorted(ranked, reverse=True)[:keep_best]}


def clean_directory(directory: Path) -> None:
    """Delete temporary files and complete interrupted replacements of a crash. The caller must have the run's lock."""
    remove_stale(directory)
    restore_replaced(directory)


def rename_newer(directory: Path, step: int) -> list[str]:
    """Rename the checkpoints newer than `step`, where the run resumes (0: from the start), to `step-N.aside`. Return the new names."""
    renamed = []
    for found, path in list_checkpoints(directory):
        if found > step:
            aside = path.with_name(path.name + ASIDE)
            if aside.exists():
                remove_directory(aside)
            os.rename(path, aside)
            renamed.append(aside.name)
    return renamed


def prune(directory: Path, committed: int, keep_last: int, keep_best: int, best_mode: str = "max") -> list[str]:
    """Delete the checkpoints that are not kept, after step `committed` is on the disk. Return the names of the deleted ones.

    Checkpoints that are not intact (sizes differ) do not count as kept ones. One that cannot be deleted is logged and retried the next
    time. Raise `OSError` and delete nothing if the disk cannot be read, `CheckpointDamaged` if step `committed` is not intact."""
    assert keep_last >= 1, "the newest checkpoint is always kept"
    found = [(step, path) for step, path in list_checkpoints(directory) if step <= committed]
    scores = {step: manifest["score"] for step, path in found if (manifest := intact_manifest(path)) is not None}
    if committed not in scores:
        raise CheckpointDamaged(directory / step_name(committed), "it is missing or damaged after it was written; nothing was deleted")
    kept = choose_kept(scores, keep_last, keep_best, best_mode)
    superfluous = [path for step, path in found if step not in kept]
    superfluous += [path for path in directory.glob(f"step-*{ASIDE}") if _step_of(path) <= committed]
    return [path.name for path in superfluous if remove_or_warn(path)]


def _step_of(aside: Path) -> float:
    """Return the step of a renamed checkpoint, infinity if the name was not written by this program."""
    number = aside.name.removeprefix("step-").removesuffix(ASIDE)
    return int(number) if number.isdecimal() else math.inf
