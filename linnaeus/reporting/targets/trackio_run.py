"""trackio as a target: a run of a local project in trackio's database. `trackio show` is the dashboard; `trackio sync` uploads the project.

The rows of the run are read from the database, and missing rows are added. If the database has a row that the run no longer has, the
trackio run is deleted, and all rows are added to a new trackio run. trackio's public functions do not accept many rows with their steps and
times in one call, so its class `SQLiteStorage` is called, as trackio's own CSV import does; pyproject.toml pins the release.
"""

import math
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from linnaeus.files import to_json
from linnaeus.reporting.sinks.saved_rows import SavedRows

OWN = ("step", "timestamp", "global_step")  # what trackio adds to a row that it gives back, and the step, which it keeps beside the row


class TrackioRun:
    """trackio run for `run`, with the id `run.run_id`, in the local trackio project `project`."""

    def __init__(self, run: SavedRows, project: str) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        self._storage, self._project, self.place = SQLiteStorage, project, f"trackio project {project}"
        self._held: Counter[str] | None = None  # rows in the database; None: not read yet

    def send(self, run: SavedRows) -> int:
        ours = [(number, row, seconds, _identity(row)) for number, ((_, _, row), seconds) in enumerate(run.timed())]
        after = Counter(entry[-1] for entry in ours)
        held = Counter(map(_identity, self._read(run))) if self._held is None else self._held
        if held - after:
            self._storage.delete_run(self._project, run.title, run_id=run.run_id)
            held = Counter()
        missing = []
        for entry in ours:
            if held[entry[-1]]:
                held[entry[-1]] -= 1
            else:
                missing.append(entry)
        if missing:
            self._storage.bulk_log(
                self._project,
                run.title,
                [{name: math.nan if value is None else value for name, value in row.items() if name not in OWN} for _, row, *_ in missing],
                steps=[row["global_step"] for _, row, *_ in missing],
                timestamps=[datetime.fromtimestamp(seconds, UTC).isoformat() for *_, seconds, _ in missing],
                config=run.config,
                run_id=run.run_id,
            )
        self._held = after
        return len(missing)

    def close(self, status: str) -> None:
        """Do nothing: every row is in the database."""

    def _read(self, run: SavedRows) -> list[dict[str, Any]]:
        return self._storage.get_logs(self._project, run.title, run_id=run.run_id)


def _identity(row: dict[str, Any]) -> str:
    """Return a text that identifies a row by its step and values. A row of the run and its copy in trackio's database have equal texts."""
    step = row.get("global_step", row.get("step"))
    return f"{step} " + to_json({name: row[name] for name in sorted(row) if name not in OWN}, None)
