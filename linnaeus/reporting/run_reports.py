"""Make the progress reports of a run: write reports.jsonl, show reports on the console, and estimate the time that is left.

Reports due by steps are rows of reports.jsonl: the first at 0 %, the others as `schedule.report` sets. They contain only values that the
configuration determines. Resuming cuts the file back to the checkpoint, so each row is written once. Times are rows of timings.jsonl.
Reports due by wall time are only shown. The metric `time/reporting_seconds` is the time spent on all reports.

The report of a step is made before the validation passes of that step, except the last report of the run, which includes their results.
Until these exist, the last report is pending. The checkpoint saved before the passes contains its training metrics, which cannot be
measured again.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from linnaeus.config.schema import Config
from linnaeus.files import from_finite
from linnaeus.reporting.display import ProgressDisplay
from linnaeus.reporting.progress_report import ReportData, describe_report
from linnaeus.reporting.rows import RowWriter
from linnaeus.reporting.throughput import Throughput, expected_seconds

log = logging.getLogger("linnaeus")


class RunReports:
    """Progress reports of a run, shown and written on rank 0; other ranks only count validation passes and checkpoints.

    `pending`: the training metrics of the last report until its validation passes are done. `passes`, `saves`: numbers of validation passes
    and checkpoints made in this launch. `planned`: the steps of all passes and of all checkpoints of the run, sorted, one entry each.
    `seconds`: time spent inside `timed()`, which callers put around all work for a report."""

    def __init__(self, config: Config, path: Path | None, display: ProgressDisplay) -> None:
        """`path`: reports.jsonl; None on ranks other than 0."""
        self.display = display
        self.file = RowWriter(path) if path is not None else None
        self.sections = config.logger.report_sections
        self.pending: dict[str, Any] | None = None
        self.throughput = Throughput()
        self.passes = self.saves = 0
        self.seconds = 0.0
        self.planned: tuple[Sequence[int], Sequence[int]] = ((), ())

    @property
    def rows(self) -> int:
        return self.file.rows if self.file is not None else 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - start

    def counters(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the number of rows, the number of rows of the newest step, and the pending report."""
        of_step = self.file.of_step if self.file is not None else 0
        return {"reports": self.rows, "reports_of_step": of_step, "pending_report": self.pending}

    def resume(self, global_step: int, saved: Mapping[str, Any]) -> None:
        """Cut reports.jsonl back to the rows that it had at a checkpoint of `global_step`. `saved`: result of `counters` in that
        checkpoint."""
        pending = saved.get("pending_report")
        self.pending = from_finite(pending) if pending is not None else None
        if self.file is not None:
            missing = -self.file.truncate(global_step, saved.get("reports", 0), saved.get("reports_of_step"))
            if missing > 0:
                log.warning("reports.jsonl lacks %d rows that the checkpoint counted", missing)

    def defer(self, row: Mapping[str, Any]) -> None:
        """Make the report of this step pending until its validation passes are done. `row` contains the newest training metrics."""
        self.pending = {name: value for name, value in row.items() if name.startswith("train/")}

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
        """Return `time/eta_seconds`, the estimated seconds until the end of the run, and the parts of it for validation and saving:
        `time/eta_validation_seconds` once a pass has been timed, `time/eta_saving_seconds` once a checkpoint has been timed.

        `validating` and `saving` are the seconds spent on these so far in this launch, `save_intervals` the seconds between checkpoints due
        by wall time. `validated` is True if the passes of this step are done."""
        seconds_per_step = clocks.get("recent/ms_per_step", clocks["time/ms_per_step"]) / 1000
        left = {"time/eta_seconds": max(0, last_step - step) * seconds_per_step}
        first, (pass_steps, save_steps) = step + 1 if validated else step, self.planned
        validation = expected_seconds(pass_steps, first, validating, self.passes)
        checkpoints = expected_seconds(save_steps, first, saving, self.saves)
        by_clock = sum(left["time/eta_seconds"] / seconds for seconds in save_intervals)
        if by_clock and self.saves:
            checkpoints = (checkpoints or 0.0) + by_clock * saving / self.saves
        for name, seconds in (("validation", validation), ("saving", checkpoints)):
            if seconds is not None:
                left[f"time/eta_{name}_seconds"] = seconds
                left["time/eta_seconds"] += seconds
        return left

    def report(self, data: ReportData, keep: bool) -> None:
        """Show a report on rank 0, log it in full, and write its row to reports.jsonl if `keep` is True.

        Rows of reports due by wall time are not kept, because they differ between runs."""
        text, row = describe_report(self.sections, data)
        log.debug(text)
        self.display.report(data)
        if keep and self.file is not None:
            self.file.log(data.step, row)

    def sync(self) -> None:
        if self.file is not None:
            self.file.sync()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
