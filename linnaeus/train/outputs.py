"""`Outputs`: the files and loggers of one run. It receives values and knows nothing of the parts of the training.

Ranks other than 0 take part in what must be broadcast and write nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from linnaeus.checkpoint import CheckpointWriter
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext
from linnaeus.errors import RunFailed
from linnaeus.files import write_atomic
from linnaeus.reporting import LogSinks, ProgressDisplay, write_report, write_summary
from linnaeus.reporting.batch_record import BatchRecord
from linnaeus.reporting.run_reports import RunReports
from linnaeus.rundir import RunDirectory
from linnaeus.rundir.finished_run import read_summary
from linnaeus.rundir.validation_results import ValidationResults

log = logging.getLogger("linnaeus")


class CheckpointNotWritten(RunFailed):
    """The end of the run could not be saved."""


class Outputs:
    """Rows, reports, checkpoints and validation results of one run."""

    def __init__(
        self, config: Config, context: DistributedContext, directory: RunDirectory, sinks: LogSinks, display: ProgressDisplay
    ) -> None:
        self.config, self.context, self.directory = config, context, directory
        self.sinks, self.display = sinks, display
        keep = config.schedule
        self.writer: CheckpointWriter | None = None
        if context.is_master:
            self.writer = CheckpointWriter(directory.checkpoints, keep.keep_last, keep.keep_best, keep.best_mode)
        self.seconds_before = 0.0  # wall time of earlier launches
        self.last_row: dict[str, Any] = {}
        self.saved_step = -1
        self.resumed = False  # True once rows, results and checkpoints are cut back to where the run continues
        self.results = ValidationResults(directory.validation)
        self.batches: BatchRecord | None = None  # with debug.batch_hashes
        self.reports = RunReports(config, directory.path / "reports.jsonl" if context.is_master else None, display.line)

    def resume(self, step: int, saved: Mapping[str, Any] | None) -> None:
        """Cut rows, results and later checkpoints back to `step`. `saved` is `counters()` as the checkpoint holds it; None in a new run
        and when the checkpoint is of another run."""
        saved = saved if saved is not None else {"rows": {}, "seconds": 0.0}
        self.seconds_before, self.resumed = saved["seconds"], True
        if self.writer is not None:  # before the rows are cut: a kill in between must not leave a checkpoint that counts more
            for name in self.writer.resume(step):
                log.warning("checkpoint %s is newer than step %d and was renamed", name, step)
        for line in self.sinks.resume(saved["rows"], step):
            log.warning(line)
        self.reports.resume(saved.get("reports", 0), saved.get("pending_report"))
        if self.batches is not None:
            self.batches.truncate_after(step)

    def counters(self, wall_seconds: float) -> dict[str, Any]:
        """Return the number of rows written, the report that waits for a validation, and the wall time of all launches; `wall_seconds` is
        that of this one."""
        return {
            "rows": self.sinks.state_dict(),
            "reports": self.reports.rows,
            "pending_report": self.reports.pending,
            "seconds": self.seconds_before + wall_seconds,
        }

    def row(self, step: int, row: Mapping[str, Any]) -> None:
        """Write a row of metrics to every sink."""
        self.last_row |= row
        self.sinks.log(step, row)

    # -- validation results ----------------------------------------------------------------------------------------------

    def validation_result(self, step: int, key: str, weights: str) -> dict[str, float] | None:
        """Return the result of a pass that was finished before with these weights, the same on every rank; None if it has to run."""
        return self.context.broadcast_object(self.results.read(step, key, weights) if self.context.is_master else None)

    def write_validation(self, step: int, key: str, metrics: Mapping[str, float], weights: str) -> None:
        """Write the result of a pass at once. If the disk refuses, it stays in memory, and no checkpoint that depends on it is committed
        before it is written."""
        if self.context.is_master:
            self.reports.passes += 1
            with log_write_errors(self.results.path(step, key)):
                self.results.write(step, key, metrics, weights)

    def show_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a line for a finished pass: its losses and first accuracies. A loss that is not finite is a warning."""
        if not self.context.is_master:
            return
        shown = [name for name in metrics if name.endswith(("/loss", "/top1")) and (name.count("/") == 1 or name.endswith("/top1"))]
        text = "  ".join(f"{name} {metrics[name]:.4f}" for name in shown or list(metrics)[:4])
        log.info("step %d  %s", step, text)
        lost = [name for name in shown if name.endswith("/loss") and not math.isfinite(metrics[name])]
        if lost:
            log.warning("%s at step %d is not finite: the weights are not finite, or no sample has a label", lost[0], step)

    def dump_metrics(self, step: int, state: Mapping[str, Any]) -> None:
        """Print and write `MetricsTracker.dump_metrics_state()`."""
        if self.context.is_master:
            text = json.dumps(state, indent=1)
            path = self.directory.path / "debug" / f"metrics-step-{step:08d}.json"
            with log_write_errors(path):
                path.parent.mkdir(exist_ok=True)
                write_atomic(path, text + "\n")
            log.info("metrics state at step %d: %s", step, text)

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def before_write(self) -> None:
        """Flush everything a checkpoint counts. Called in the writer's thread."""
        self.results.flush()
        self.sinks.sync()
        self.reports.sync()

    def wait_for_writer(self) -> str | None:
        """Wait until the last checkpoint is written. Return why it failed, None if it did not."""
        if self.writer is None:
            return None
        self.writer.wait()
        return self.writer.failure

    # -- the end ---------------------------------------------------------------------------------------------------------

    def write_report(self, sections: list[tuple[str, str]]) -> None:
        """Write report.html from the files of the run and the workload's `sections` (title, HTML)."""
        if self.context.is_master and self.config.logger.report:
            title = f"{self.config.run.experiment} / {self.directory.path.name}"
            with log_write_errors(self.directory.path / "report.html"):
                log.info("report: %s", write_report(self.directory.path, title, sections))

    def summary(self, status: str, global_step: int, **values: Any) -> None:
        """Write summary.json on rank 0."""
        if self.context.is_master:
            write_summary(self.directory.path / "summary.json", status, global_step, **values)

    def fail(self, reason: str, global_step: int) -> None:
        """Record a failure from another thread, which is about to end the process and runs no collective."""
        if self.context.is_master:
            with log_write_errors(self.directory.path / "summary.json"):  # first: the console may be a pipe that nobody reads
                self.mark("failed", max(global_step, self.saved_step, 0), error=reason)
            log.error(reason)

    def mark(self, status: str, global_step: int | None = None, **values: Any) -> None:
        """Change the status in summary.json and keep its other values: for an end before anything was restored."""
        known = read_summary(self.directory.path)
        kept = {name: value for name, value in known.items() if name not in ("status", "global_step", "error", "interrupted_by")}
        step = known.get("global_step", 0) if global_step is None else global_step
        write_summary(self.directory.path / "summary.json", status, step, **(kept | values))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.sinks.close()
        self.reports.close()
        if self.batches is not None:
            self.batches.close()


@contextlib.contextmanager
def log_write_errors(path: Path) -> Iterator[None]:
    """Log an error for a file that a full or missing disk refuses; it does not end the run. (Checkpoints and rows are retried.)"""
    try:
        yield
    except OSError as error:
        log.error("%s could not be written (%s)", path, error.strerror or error)
