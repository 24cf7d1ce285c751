"""Destinations of `linnaeus replay` (`replay_rows.py`): one module each, imported only when its rows are sent.

A target reads the rows that its destination contains, and sends the missing rows. After that the destination has each row of the run once,
even if the target is called several times. Destinations that are files in the run directory are replaced by complete files instead.
"""

import importlib.util
from typing import Any, Protocol

from linnaeus.reporting.sinks.log_sinks import Row
from linnaeus.reporting.sinks.saved_rows import SavedRows

PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow", "trackio": "trackio", "csv": None}  # None: no package
FOLLOWED = ("mlflow", "trackio")  # targets that a process beside the run feeds while it trains


def missing_package(target: str) -> str:
    """Return a line that says which package `target` needs and how to install it; "" if the package is installed, or none is needed."""
    package = PACKAGES[target]
    if package is None or importlib.util.find_spec(package) is not None:
        return ""
    return f"needs the package {package}: pip install 'linnaeus[{package}]'"


class Target(Protocol):
    """Destination of the rows of one run.

    place: name of the destination, for a line of output. `send` sends the rows of `run.rows` that the destination does not have yet, and
    returns their number (MLflow: the number of values). `close` ends the connection with `status`, the status in summary.json, which a
    destination shows if it can. Exceptions of the network, of a disk or of the package may be raised."""

    place: str

    def send(self, run: SavedRows) -> int: ...

    def close(self, status: str) -> None: ...


def open_target(name: str, run: SavedRows, **options: Any) -> Target:
    """Return the target `name` for a run. options: `uri` (mlflow), `project` (wandb, trackio), `offline` (wandb).

    Raise `ImportError` if the package of the target is not installed."""
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


__all__ = ["FOLLOWED", "PACKAGES", "Row", "SavedRows", "Target", "missing_package", "open_target"]
