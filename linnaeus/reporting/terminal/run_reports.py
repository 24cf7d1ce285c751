"""Make the progress reports of a run: write reports.jsonl, show reports on the console, and estimate the time that is left.

A report due by steps is a row of reports.jsonl: the first at 0 %, the others as set by `schedule.report`. A row contains only values that
the configuration determines; times are rows of timings.jsonl. On a resume, reports.jsonl is cut back to the checkpoint, so each row is
written once. A report due by wall time or because of an alarm is shown but not written. `time/reporting_seconds` is the time spent on all
reports.

The report of a step is made before the validation passes of this step. The last report of the run is an exception: it includes the results
of the passes, and is pending until they are done. The checkpoint saved before the passes contains the training metrics of the pending
report, because a resumed run could not measure them again.
"""

import itertools
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from linnaeus.config.schema import Config
from linnaeus.errors import counted
from linnaeus.files import from_finite
from linnaeus.reporting.jsonl.row_writer import RowWriter
from linnaeus.reporting.performance.throughput import REPORTS, Costs, Throughput, expected_seconds
from linnaeus.reporting.terminal.display import ProgressDisplay
from linnaeus.reporting.terminal.progress_report import ReportData, describe_report

log = logging.getLogger("linnaeus")


class RunReports:
    """Maker of the progress reports of a run, which are shown and written on rank 0. Other ranks only count validation passes and
    checkpoints.

    pending: training metrics of a report that is made after the validation passes of its step; None without such a report.
    passes, saves: number of validation passes, and of checkpoints, made in this launch.
    planned: (steps of all validation passes, steps of all checkpoints) of the run, sorted; a step with several is repeated.
    earlier: costs measured in the launch before, converted to this number of processes.
    pass_samples: number of samples in a validation pass.
    newest_trouble: step of the newest report with an alarm about times or memory; None before the first. Reports are denser after it,
    but rows of metrics are not, because they must not depend on the time.
    seconds: seconds spent within `timed()`, which encloses all work for a report."""

    def __init__(self, config: Config, path: Path | None, display: ProgressDisplay) -> None:
        """`path`: path of reports.jsonl; None on ranks other than 0."""
        self.display = display
        self.file = RowWriter(path) if path is not None else None
        self.sections = config.logger.report_sections
        self.pending: dict[str, Any] | None = None
        self.throughput = Throughput()
        self.passes = self.saves = 0
        self.newest_trouble: int | None = None
        self.seconds = 0.0
        self.planned: tuple[Sequence[int], Sequence[int]] = ((), ())
        self.earlier = Costs()
        self.pass_samples = 0
        self._times = deque[list[float]](maxlen=REPORTS)  # of the updates between reports

    @property
    def rows(self) -> int:
        """Return the number of rows of reports.jsonl; 0 on ranks other than 0."""
        return self.file.rows if self.file is not None else 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Return a context manager that adds the time of its block to `seconds`."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - start

    def counters(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint: `reports`, the number of rows of reports.jsonl; `reports_of_step`, the number of these
        rows with the newest step; `pending_report`, the value of `pending`."""
        of_step = self.file.of_step if self.file is not None else 0
        return {"reports": self.rows, "reports_of_step": of_step, "pending_report": self.pending}

    def resume(self, global_step: int, saved: Mapping[str, Any]) -> None:
        """Restore the pending report, and cut reports.jsonl back to the rows at the checkpoint of `global_step`. Log a warning if rows are
        missing.

        saved: result of `counters` in this checkpoint."""
        pending = saved.get("pending_report")
        self.pending = from_finite(pending) if pending is not None else None
        if self.file is not None:
            missing = -self.file.truncate(global_step, saved.get("reports", 0), saved.get("reports_of_step"))
            if missing > 0:
                log.warning("reports.jsonl lacks %s that had been written when the checkpoint was saved", counted(missing, "row"))

    def defer(self, row: Mapping[str, Any]) -> None:
        """Set `pending`: the report of this step will be made after its validation passes.

        row: newest row of metrics.jsonl; only its training metrics (`train/...`) are kept."""
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
        """Return {"time/eta_seconds": estimated seconds until the end of the run}, and the parts of these seconds for validation and for
        checkpoints: `time/eta_validation_seconds` and `time/eta_saving_seconds`. A part without an estimate is left out; it is 0 if no
        event remains. Updates count as 0 s until the time of an update is known.

        Before the first validation pass, a validation sample is estimated to take a third of the time of a training sample, because
        backward takes about twice as long as forward. After a resume, the mean seconds of a pass (or checkpoint) in the launch before count
        like one more pass (or checkpoint) of this launch.

        clocks: result of `train.timings.timings`, and recent rates if there are any. step: current step. validating, saving: seconds spent
        on validation and on checkpoints so far in this launch. save_intervals: seconds between checkpoints due by wall time, one for each
        such schedule. validated: True if the passes of this step are done."""
        earlier, samples_per_second = self.earlier, clocks.get("recent/samples_per_second")
        seconds_per_step = self.seconds_per_update(clocks)
        if seconds_per_step is None:
            seconds_per_step = clocks.get("time/ms_per_step", 0.0) / 1000
        left = {"time/eta_seconds": max(0, last_step - step) * seconds_per_step}
        first, (pass_steps, save_steps) = step + 1 if validated else step, self.planned
        validation = expected_seconds(pass_steps, first, validating, self.passes, earlier.validation)
        if validation is None and samples_per_second:
            validation = expected_seconds(pass_steps, first, self.pass_samples / samples_per_second / 3, 1)
        checkpoints = expected_seconds(save_steps, first, saving, self.saves, earlier.checkpoint)
        by_clock = sum(left["time/eta_seconds"] / seconds for seconds in save_intervals)
        if by_clock and self.saves:
            checkpoints = (checkpoints or 0.0) + by_clock * saving / self.saves
        for name, seconds in (("validation", validation), ("saving", checkpoints)):
            if seconds is not None:
                left[f"time/eta_{name}_seconds"] = seconds
                left["time/eta_seconds"] += seconds
        return left

    def seconds_per_update(self, rates: Mapping[str, float]) -> float | None:
        """Return the expected seconds of an update, from this launch and the launch before; None if neither has a time. `rates`: result of
        `Throughput.rates` in this launch.

        If only one of the launches has a time, return that time. If both have one, return w x (time of this launch) + (1 - w) x (time of
        the launch before), where w = min(1, n / `REPORTS`) and n is the number of intervals between reports in this launch."""
        recent, earlier = rates.get("recent/ms_per_step"), self.earlier.update
        if recent is None or earlier is None:
            return earlier if recent is None else recent / 1000
        share = min(1.0, self.throughput.intervals / REPORTS)
        return share * recent / 1000 + (1 - share) * earlier

    def costs(self, update: float | None, validating: float, saving: float, processes: int) -> Costs:
        """Return the costs to save for the next launch. A cost that this launch has not measured is taken from the launch before.

        `update`: seconds of an update; None if unknown. `validating`, `saving`: seconds spent on validation and on checkpoints in this
        launch. `processes`: world size."""
        earlier = self.earlier
        validation = validating / self.passes if self.passes else earlier.validation
        checkpoint = saving / self.saves if self.saves else earlier.checkpoint
        return Costs(earlier.update if update is None else update, validation, checkpoint, processes)

    def update_times(self, times: list[float]) -> dict[str, float]:
        """Return `recent/median_ms_per_step` and `recent/p95_ms_per_step`: median and 95th percentile of the time of an update, in ms, over
        the last `REPORTS` calls; {} if there were no updates.

        times: seconds of each update since the last report."""
        self._times.append(sorted(times))
        recent = sorted(itertools.chain(*self._times))  # sorting sorted parts is several times faster
        shares = {"median": 0.5, "p95": 0.95} if recent else {}
        return {f"recent/{name}_ms_per_step": 1000 * recent[math.ceil(share * len(recent)) - 1] for name, share in shares.items()}

    def report(self, data: ReportData, keep: bool) -> None:
        """Show the report `data` on the console, and log it in full to train.log.

        keep: True: also append its row to reports.jsonl. False for reports due by wall time, because their steps differ between equal
        runs."""
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
