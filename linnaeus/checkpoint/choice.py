"""Choose a checkpoint of a run to load: the newest, the best by the monitored validation metric, or the checkpoint of a given step."""

import math
from pathlib import Path

from linnaeus.checkpoint.loading import intact_scores
from linnaeus.checkpoint.resume import checkpoints_under
from linnaeus.errors import ConfigError

NEWEST, BEST = "newest", "best"
ANOTHER = 'use --checkpoint newest (run.init_checkpoint=newest; in Python checkpoint="newest"), or a step'


def run_checkpoints(run: Path, choice: str | int | None) -> list[tuple[Path, str]]:
    """Return the checkpoints of a run directory in the order in which they should be tried: (path, a phrase such as "the newest of 3").

    `choice`: "newest" (also None), "best", or a step. Return [] if the directory contains no checkpoint. Raise `ConfigError` for any other
    `choice`, for a step without a checkpoint, and for "best" if no checkpoint was validated."""
    found = dict(checkpoints_under(run))
    if not found:
        return []
    if choice in (None, NEWEST):
        return [(path, f"the newest of {len(found)}") for _, path in sorted(found.items(), reverse=True)]
    if choice == BEST:
        return _best_first(run, found)
    choice = str(choice)  # an integer in Python
    if not choice.isdecimal():
        raise ConfigError(f"{choice!r} is not a choice among checkpoints; use newest, best or a step")
    if int(choice) not in found:
        raise ConfigError(f"{run} has no checkpoint of step {choice}; it has {', '.join(map(str, sorted(found)[-8:]))}")
    return [(found[int(choice)], "the chosen step")]


def is_validated(run: Path) -> bool:
    """Return True if the run directory has at least one intact checkpoint with a score of the monitored metric. Without one there is no
    best checkpoint. Raise `ConfigError` if config.yaml of the run is missing or damaged."""
    return bool(_scores(dict(checkpoints_under(run)), _monitored(run)[0]))


def _scores(found: dict[int, Path], monitor: str) -> dict[int, float]:
    """Return {step: score} for each intact checkpoint in `found` (step -> path). Checkpoints without a score of the metric `monitor`, or
    with score NaN, are left out."""
    scores = intact_scores(found.items(), monitor)
    return {step: float(score) for step, score in scores.items() if score is not None and not math.isnan(score)}


def _best_first(run: Path, found: dict[int, Path]) -> list[tuple[Path, str]]:
    """Return the validated checkpoints in `found` (step -> path), the best first: (path, a phrase such as "the best of 3 by val/loss
    (0.41)").

    Of two checkpoints with equal scores the newer one is first, as in `retention`. Raise `ConfigError` if no checkpoint has a score."""
    monitor, mode = _monitored(run)
    scores, sign = _scores(found, monitor), 1 if mode == "max" else -1
    ranked = sorted(((sign * score, step) for step, score in scores.items()), reverse=True)
    if not ranked:
        raise ConfigError(f"no checkpoint of {run} has a value of {monitor}, so none is the best; {ANOTHER}")
    return [
        (found[step], f"{'the best' if i == 1 else f'number {i}'} of {len(ranked)} by {monitor} ({scores[step]:.4g})")
        for i, (_, step) in enumerate(ranked, 1)
    ]


def _monitored(run: Path) -> tuple[str, str]:
    """Return the metric by which the best checkpoint of a run is chosen, and its direction, "max" or "min".

    Raise `ConfigError` if config.yaml of the run is missing or damaged."""
    import yaml

    for folder in (run, run.parent):  # `run` may be the directory `checkpoints` of a run
        try:
            schedule = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["schedule"]
            return str(schedule["best_monitor"]), str(schedule["best_mode"])
        except FileNotFoundError:
            continue
        except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError):
            break
    raise ConfigError(f"{run / 'config.yaml'} does not exist or is damaged, so the best checkpoint is unknown; {ANOTHER}")
