"""Destinations of `linnaeus replay`: one module each, imported only when its rows are sent.

A target makes a place outside metrics.jsonl hold the rows of a run, each once, however often it is called. It reads what the place holds
and sends what is missing. Places that are files of ours are written anew.
"""

from typing import Any, Protocol

from linnaeus.reporting.rows import Row
from linnaeus.reporting.saved_rows import SavedRows

PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow", "trackio": "trackio", "csv": None}  # None: no package
FOLLOWED = ("mlflow", "trackio")  # targets that a process beside the run feeds while it trains


class Target(Protocol):
    """A place for the rows of one run.

    `send` makes it hold exactly `run.rows` and returns the number of rows or values that it did not hold. `place` names it for a line of
    output. Errors of the network, of a disk or of the package are raised as they come."""

    place: str

    def send(self, run: SavedRows) -> int: ...

    def close(self, status: str) -> None: ...


def open_target(name: str, run: SavedRows, **options: Any) -> Target:
    """Return the target `name` for a run. Options: `uri` (mlflow), `project` (wandb, trackio), `offline` (wandb).

    Raise `ImportError` if its package is not installed."""
    if name == "mlflow":
        from linnaeus.reporting.targets.mlflow_run import MlflowRun

        return MlflowRun(run, options["uri"])
    if name == "trackio":
        from linnaeus.reporting.targets.trackio_run import TrackioRun

        return TrackioRun(run, options["project"])
    if name == "wandb":
        from linnaeus.reporting.targets.wandb_run import WandbRun

        return WandbRun(run, options["project"], "offline" if options["offline"] else "online")
    from linnaeus.reporting.targets.row_files import CsvFiles, EventFiles

    return EventFiles(run) if name == "tensorboard" else CsvFiles(run)


__all__ = ["FOLLOWED", "PACKAGES", "Row", "SavedRows", "Target", "open_target"]
