"""Read the metric rows of a run directory for another destination: `SavedRows`, with the identity of the run and the time of each row."""

import bisect
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.files import read_json
from linnaeus.reporting.jsonl.rows import numbered_rows
from linnaeus.reporting.sinks.log_sinks import Row
from linnaeus.rundir.run_record import created_at
from linnaeus.rundir.saved_run import read_configuration, read_record

STREAMS = ("metrics", "timings")


@dataclass
class SavedRows:
    """Metric rows of the run directory `path`. Constructed by `open_run`; `read` reads the rows again.

    run_id: from run.json, equal for all launches.
    title: `<experiment>/<name of the run directory>`.
    config: content of config.yaml; a value from an environment variable is the text `${oc.env:...}`.
    created: time of the first launch, in seconds since 1970; 0 if unknown.
    rows: (stream, position, row) for the rows of metrics.jsonl and timings.jsonl, sorted by step. A damaged line has a position too."""

    path: Path
    run_id: str
    title: str
    config: dict[str, Any]
    created: float
    rows: list[Row] = field(default_factory=list)

    def read(self) -> None:
        """Set `rows` to the rows that metrics.jsonl and timings.jsonl contain now."""
        found = {name: numbered_rows(self.path / f"{name}.jsonl") for name in STREAMS}
        streams = [[(name, number, row) for number, row in rows] for name, rows in found.items()]
        self.rows = list(heapq.merge(*streams, key=lambda entry: entry[2]["global_step"]))

    def timed(self) -> Iterator[tuple[Row, float]]:
        """Yield (element of `rows`, its time in seconds since 1970) for each row: `created` plus the newest `time/wall_seconds`.

        Rows of metrics.jsonl do not contain a time. They get the time of the last row of timings.jsonl up to their step, which is a little
        early; before the first row of timings.jsonl, they get `created`."""
        clock = [(row["global_step"], row["time/wall_seconds"]) for _, _, row in self.rows if row.get("time/wall_seconds") is not None]
        for found in self.rows:
            index = bisect.bisect_right(clock, found[2]["global_step"], key=lambda entry: entry[0])
            yield found, self.created + (clock[index - 1][1] if index else 0.0)

    @property
    def status(self) -> str:
        """Return the status in summary.json; `running` if the file is missing or has no status."""
        return str((read_json(self.path / "summary.json") or {}).get("status", "running"))

    @property
    def experiment(self) -> str:
        """Return the name of the experiment, the part of `title` before the slash."""
        return self.title.partition("/")[0]


def open_run(path: Path) -> SavedRows:
    """Return the rows of a run directory. Raise `ConfigError` if `path` is not a run directory, or if its config.yaml or run.json cannot be
    read."""
    if not path.is_dir() or not any((path / name).exists() for name in ("run.json", "metrics.jsonl")):
        raise ConfigError(f"{path} is not a run directory: it has no run.json; give a folder such as outputs/biota/1a2b3c4d5e")
    (config, _), (record, _) = read_configuration(path), read_record(path)
    title = f"{config['run'].get('experiment')}/{path.resolve().name}"
    found = SavedRows(path, str(record["run_id"]), title, config, created_at(record))
    found.read()
    return found
