"""Find the best earlier run of an experiment on equal data, whose results are shown beside the results of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.rundir.finished_run import ENDED
from linnaeus.rundir.run_record import created_at

MOST = 500  # sibling directories that are read


class Previous(NamedTuple):
    """Best earlier run. `name`, `path`: name and path of its directory. `final`: key -> value of its final validation metrics."""

    name: str
    path: Path
    final: Mapping[str, Any]


def previous_best(run: RunFiles) -> Previous | None:
    """Return the best earlier run of the experiment of `run`, by the final value of the metric that `run` monitors; None if there is none.

    A candidate is a run in the folder of `run` that was created before `run`, has an equal data fingerprint and an equal
    `trainer.limit_validation_samples`, and has the status `finished` or `stopped_early`. Only the first `MOST` directories by name are
    read."""
    monitor = run.monitor
    lower = (run.config.get("schedule") or {}).get("best_mode", "min") == "min"
    data, started = run.record.get("data_fingerprint"), created_at(run.record)
    found = []
    siblings = sorted(run.path.resolve().parent.glob("*/summary.json"))[:MOST]
    for path in siblings:
        if path.parent == run.path.resolve():
            continue
        other = RunFiles(path.parent)
        same = data is not None and other.record.get("data_fingerprint") == data and created_at(other.record) < started
        if not same or other.status not in ENDED or _limit(other) != _limit(run):
            continue
        value = other.final.get(monitor)
        if value is not None:
            found.append((value if lower else -value, other.path.name, other.path, other.final))
    if not found:
        return None
    _, name, folder, final = min(found, key=lambda entry: entry[:2])
    return Previous(name, folder, final)


def _limit(run: RunFiles) -> Any:
    trainer = run.config.get("trainer")
    return trainer.get("limit_validation_samples") if isinstance(trainer, dict) else None
