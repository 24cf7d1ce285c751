"""Write and read alarms.jsonl: one row per alarm of a run (`health.alarm`).

On a resume, alarms.jsonl is cut back to the checkpoint like metrics.jsonl. The resumed run then raises the same alarms again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.errors import counted
from linnaeus.health import Alarm
from linnaeus.reporting.jsonl.row_writer import RowWriter
from linnaeus.reporting.jsonl.rows import read_rows

log = logging.getLogger("linnaeus")

FILE = "alarms.jsonl"
IN_SUMMARY = 20  # newest alarms in summary.json; alarms.jsonl has all


def read_alarms(run: Path | str) -> list[Alarm]:
    """Return the alarms of the run directory `run`, in the order in which they were raised; [] without an alarms.jsonl."""
    return [Alarm.from_row(row) for row in read_rows(Path(run) / FILE)]


class AlarmLog:
    """Writer of alarms.jsonl in the run directory `directory`. With `directory` None (on ranks other than 0) nothing is read or written,
    `counters` returns {}, and `summary` counts no alarms."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.file = None if directory is None else RowWriter(directory / FILE)

    def log(self, global_step: int, alarm: Alarm) -> None:
        """Append an alarm. global_step: step at which it was raised, which may be later than `alarm.step`, the step of the update with the
        problem."""
        if self.file is not None:
            self.file.log(global_step, alarm.row())

    def counters(self) -> dict[str, int]:
        """Return the row counts to save in a checkpoint; {} on ranks other than 0."""
        return {} if self.file is None else self.file.counters()

    def resume(self, global_step: int, saved: Mapping[str, int]) -> None:
        """Cut the file back to the rows that it had when the checkpoint of `global_step` was saved. Log a
        warning if rows are missing.

        saved: result of `counters` in this checkpoint; {} removes all rows."""
        if self.file is not None:
            missing = -self.file.truncate(global_step, **(saved or {"rows": 0}))
            if missing > 0:
                log.warning("%s lacks %s that the checkpoint counted", FILE, counted(missing, "row"))

    def summary(self) -> dict[str, Any]:
        """Return the entry for summary.json: `count`, the number of alarms; `kinds`, {kind: number of alarms}; `newest`, a list of the last
        `IN_SUMMARY` alarms with `step`, `kind` and `text` (the logged line)."""
        alarms = [] if self.directory is None else read_alarms(self.directory)
        newest = [{"step": alarm.step, "kind": alarm.kind, "text": alarm.describe()} for alarm in alarms[-IN_SUMMARY:]]
        return {"count": len(alarms), "kinds": dict(Counter(alarm.kind for alarm in alarms)), "newest": newest}

    def sync(self) -> None:
        if self.file is not None:
            self.file.sync()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
