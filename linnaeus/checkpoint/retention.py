"""Delete old checkpoints: keep the last `keep_last` and the best `keep_best` intact ones.

Nothing is deleted before a newer checkpoint is committed. When a run resumes from an older checkpoint, the newer checkpoints (damaged, or
abandoned by a rollback) are renamed to `step-N.aside`, so that no resume finds them. The renamed checkpoints are deleted once the run has
committed a checkpoint of the same or a later step."""

import math
import os
from collections.abc import Mapping
from pathlib import Path

from linnaeus.checkpoint.format import step_name
from linnaeus.checkpoint.loading import CheckpointDamaged, intact_scores
from linnaeus.checkpoint.resume import list_checkpoints
from linnaeus.files import remove_directory, remove_or_warn, remove_stale, restore_replaced

ASIDE = ".aside"


def choose_kept(scores: Mapping[int, float | None], keep_last: int, keep_best: int, best_mode: str = "max") -> set[int]:
    """Return the steps of the checkpoints to keep: the newest `keep_last` and the best `keep_best`. `best_mode`: "max" or "min".

    `scores`: {step: score} of the intact checkpoints; the score is None for a checkpoint that was not validated. Of two equal scores the
    score of the newer checkpoint is better. A checkpoint with score NaN is not among the best."""
    sign = 1 if best_mode == "max" else -1
    ranked = [(sign * score, step) for step, score in scores.items() if score is not None and not math.isnan(score)]
    return set(sorted(scores)[-keep_last:]) | {step for _, step in sorted(ranked, reverse=True)[:keep_best]}


def clean_directory(directory: Path) -> None:
    """Delete temporary files that a killed process left in `directory`, and complete replacements of checkpoints that were interrupted.

    The caller must have locked the run."""
    remove_stale(directory)
    restore_replaced(directory)


def rename_newer(directory: Path, step: int) -> list[str]:
    """Rename each checkpoint of a later step than `step` to `step-N.aside`. Return the new names.

    `step`: the step at which the run resumes; 0 if the run starts from the beginning."""
    renamed = []
    for found, path in list_checkpoints(directory):
        if found > step:
            aside = path.with_name(path.name + ASIDE)
            if aside.exists():
                remove_directory(aside)
            os.rename(path, aside)
            renamed.append(aside.name)
    return renamed


def prune(
    directory: Path, committed: int, keep_last: int, keep_best: int, best_mode: str = "max", best_monitor: str | None = None
) -> list[str]:
    """Delete the checkpoints of steps up to `committed` that `choose_kept` does not keep, and checkpoints renamed to `step-N.aside`. Return
    the names of the deleted checkpoints. Call this after the checkpoint of step `committed` is on the disk.

    Damaged checkpoints (with wrong sizes) do not count towards `keep_last` and `keep_best`. A score of another metric than `best_monitor`
    does not count towards `keep_best`; `best_monitor=None` compares all scores. A checkpoint that cannot be deleted is logged
    and retried the next time. Raise `OSError` and delete nothing if the disk cannot be read, `CheckpointDamaged` if step `committed` is
    damaged."""
    assert keep_last >= 1, "the newest checkpoint is always kept"
    found = [(step, path) for step, path in list_checkpoints(directory) if step <= committed]
    scores = intact_scores(found, best_monitor)
    if committed not in scores:
        raise CheckpointDamaged(directory / step_name(committed), "it is missing or damaged after it was written; nothing was deleted")
    kept = choose_kept(scores, keep_last, keep_best, best_mode)
    superfluous = [path for step, path in found if step not in kept]
    superfluous += [path for path in directory.glob(f"step-*{ASIDE}") if _step_of(path) <= committed]
    return [path.name for path in superfluous if remove_or_warn(path)]


def _step_of(aside: Path) -> float:
    """Return the step of a checkpoint renamed to `step-N.aside`; infinity if the name was not written by this program."""
    number = aside.name.removeprefix("step-").removesuffix(ASIDE)
    return int(number) if number.isdecimal() else math.inf
