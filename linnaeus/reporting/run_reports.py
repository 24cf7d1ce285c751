"""The progress reports of a run: reports.jsonl, the console, and the estimates of the time that is left.

Reports due by steps go to reports.jsonl, one row each, at 0 % and from then on as `schedule.report` says. Like the rows of metrics
they hold what the configuration determines and are cut back to the checkpoint a run continues from, so each is written once. Clocks
go to timings.jsonl. Reports due by the clock are only shown. The cost of all reports is `time/reporting_seconds`.

The report of a step comes before its validation passes, except the last one of the run, which shows their results. Until these exist
the report is pending, as the passes are. The checkpoint made before them holds its training metrics, because they cannot be measured
again by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linnaeus.config.schema import Config
from linnaeus.reporting.report_data import ReportData
from linnaeus.reporting.reporter import Reporter
from linnaeus.reporting.rows import RowWriter
from linnaeus.reporting.throughput import Reading, Throughput, expected_seconds

log = logging.getLogger("linnaeus")


class RunReports:
    """On rank 0 it shows and writes reports; on other ranks it only counts passes and checkpoints."""

    def __init__(self, config: Config, path: Path | None, show: Callable[[str], None]) -> None:
        """`path` of reports.jsonl; None on ranks other than 0. `show` prints lines for a person."""
        self.file = RowWriter(path) if path is not None else None
        self.reporter = Reporter(config.logger.report_sections, show, self.file.log if self.file is not None else lambda step, row: None)
        self.pending: dict[str, Any] | None = None  # training metrics of the last report while it waits for validation passes
        self.throughput = Throughput()
        self.passes = self.saves = 0  # validation passes and checkpoints made in this launch
        self._pass_steps: Sequence[int] = ()
        self._save_steps: Sequence[int] = ()

    @property
    def is_writer(self) -> bool:
        return self.file is not None

    @property
    def rows(self) -> int:
        return self.file.rows if self.file is not None else 0

    def resume(self, rows: int, pending: dict[str, Any] | None) -> None:
        """Cut the file back to the `rows` that the checkpoint counted; `pending` is the report it was waiting with."""
        self.pending = pending
        if self.file is not None:
            missing = -self.file.truncate(rows)
            if missing > 0:
                log.warning("reports.jsonl lacks %d rows that the checkpoint counted", missing)

    def set_planned_steps(self, passes: Sequence[int], saves: Sequence[int]) -> None:
        """Set the steps of all validation passes and checkpoints of the run, sorted, one entry each."""
        self._pass_steps, self._save_steps = passes, saves

    def defer(self, row: Mapping[str, Any]) -> None:
        """Keep the report of this step until its validation passes are made; `row` holds the newest training metrics."""
        self.pending = {name: value for name, value in row.items() if name.startswith("train/")}

    def rates(self, units: str | None) -> dict[str, float]:
        """Return `recent/...`: the rates over the last reports."""
        return {f"recent/{name}": value for name, value in self.throughput.rates(units).items()}

    def time_left(
        self,
        clocks: Mapping[str, float],
        step: int,
        last_step: int,
        validating: float,
        saving: float,
        save_intervals: Sequence[float] = (),
        validated: bool = False,
    ) -> dict[str, float]:
        """Return `time/eta_seconds` and, within it, the seconds for validation and saving where they are known.

        `validating` and `saving`: seconds spent so far in this launch. `save_intervals`: seconds between checkpoints by the clock.
        `validated`: the passes of this step are already made."""
        seconds_per_step = clocks.get("recent/ms_per_step", clocks["time/ms_per_step"]) / 1000
        left = {"time/eta_seconds": max(0, last_step - step) * seconds_per_step}
        first = step + 1 if validated else step
        validation = expected_seconds(self._pass_steps, first, validating, self.passes)
        checkpoints = expected_seconds(self._save_steps, first, saving, self.saves)
        by_clock = sum(left["time/eta_seconds"] / seconds for seconds in save_intervals)
        if by_clock and self.saves:
            checkpoints = (checkpoints or 0.0) + by_clock * saving / self.saves
        for name, seconds in (("validation", validation), ("saving", checkpoints)):
            if seconds is not None:
                left[f"time/eta_{name}_seconds"] = seconds
                left["time/eta_seconds"] += seconds
        return left

    def report(self, data: ReportData, keep: bool) -> None:
        """Show a report; write its row if `keep`."""
        self.reporter.report(data, keep)

    def restart(self, now: Reading) -> None:
        """Measure the throughput from here on."""
        self.throughput.restart(now)

    def sync(self) -> None:
        if self.file is not None:
            self.file.sync()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
