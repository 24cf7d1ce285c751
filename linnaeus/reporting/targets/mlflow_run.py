"""MLflow as a target: a run in the MLflow experiment `run.experiment`, identified by the tag `linnaeus.run_id`.

All values (name, step, value) are read from the server, and missing values are sent, so a replay completes an interrupted replay. If the
run continued from an older checkpoint, the server may have values that metrics.jsonl no longer has. Then the MLflow run is deleted, and all
rows are sent to a new MLflow run. Values that are not numbers are left out, because an MLflow metric is a number.
"""

import logging
import math
import re
from collections.abc import Iterator
from typing import Any

from linnaeus.reporting.sinks.saved_rows import SavedRows
from linnaeus.rundir.identity import flatten

TAG = "linnaeus.run_id"
BATCH = 1_000  # values of a request, the most that MLflow takes
LARGEST = 1.7976931348623157e308  # stands for an infinity in its databases
STATUS = {"finished": "FINISHED", "stopped_early": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}

Value = tuple[str, int, float | str]


class MlflowRun:
    """MLflow run for `run`, at a server or in a local database. It is created if no MLflow run has the tag `linnaeus.run_id`.

    uri: address of the server or database; None: the address in MLFLOW_TRACKING_URI, otherwise MLflow's default."""

    def __init__(self, run: SavedRows, uri: str | None) -> None:
        logging.getLogger("alembic").setLevel(logging.WARNING)  # 60 lines when it makes a database
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        self.place = f"mlflow experiment {run.experiment}"
        found = self._client.get_experiment_by_name(run.experiment)
        self._experiment = found.experiment_id if found is not None else self._client.create_experiment(run.experiment)
        self._id = self._find(run) or self._create(run)
        self._held: set[Value] | None = None  # None: not read yet
        if run.status == "running":
            self._client.update_run(self._id, status="RUNNING")  # a launch that was interrupted has left KILLED

    def send(self, run: SavedRows) -> int:
        metrics = {_name(name) for stream, _, row in run.rows if stream == "metrics" for name in row}
        ours = {value: seconds for value, seconds in _values(run)}
        held = self._read() if self._held is None else self._held
        if any(value not in ours for value in held if value[0] in metrics):
            self._client.delete_run(self._id)
            self._id, held = self._create(run), set()
        missing = [(value, seconds) for value, seconds in ours.items() if value not in held]
        self._log(missing)
        self._held = held | {value for value, _ in missing}
        return len(missing)

    def close(self, status: str) -> None:
        if status in STATUS:
            self._client.set_terminated(self._id, STATUS[status])

    def _find(self, run: SavedRows) -> str | None:
        found = self._client.search_runs([self._experiment], f"tags.`{TAG}` = '{run.run_id}'", max_results=1)
        return found[0].info.run_id if found else None

    def _create(self, run: SavedRows) -> str:
        from mlflow.entities import Param

        made = self._client.create_run(
            self._experiment, start_time=int(run.created * 1000), tags={TAG: run.run_id}, run_name=run.title.partition("/")[2]
        )
        params = [Param(key, str(value)[:6000]) for key, value in flatten(run.config).items()]
        for some in _batches(params, 100):
            self._client.log_batch(made.info.run_id, params=some)
        return made.info.run_id

    def _read(self) -> set[Value]:
        names = self._client.get_run(self._id).data.metrics
        return {(name, found.step, _comparable(found.value)) for name in names for found in self._client.get_metric_history(self._id, name)}

    def _log(self, values: list[tuple[Value, float]]) -> None:
        from mlflow.entities import Metric

        for some in _batches(values, BATCH):
            metrics = [Metric(name, float(value), int(seconds * 1000), step) for (name, step, value), seconds in some]
            self._client.log_batch(self._id, metrics=metrics)


def _values(run: SavedRows) -> Iterator[tuple[Value, float]]:
    """Yield ((name, step, value), seconds since 1970) for each number in the rows of `run`, with the name as `_name` and the value as
    `_comparable` return it."""
    for (_, _, row), seconds in run.timed():
        for name, value in row.items():
            if name != "global_step" and (value is None or isinstance(value, (int, float))):
                yield (_name(name), row["global_step"], _comparable(math.nan if value is None else value)), seconds


def _name(key: str) -> str:
    """Return the key of a row with an underscore in place of each character that MLflow refuses in the name of a metric."""
    return re.sub(r"[^/\w.\- ]", "_", key)


def _comparable(value: float) -> float | str:
    """Return `value` in a form in which a value of the run equals its copy on the server.

    The server stores an infinity as the largest float64, so an infinity becomes that number. NaN becomes the text "nan", because NaN is not
    equal to NaN."""
    number = float(value)
    return "nan" if math.isnan(number) else min(max(number, -LARGEST), LARGEST)


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
