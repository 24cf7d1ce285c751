"""`Outputs`: the files and loggers of one run. The methods of `Outputs` take values, not parts of a `Training`.

Rank 0 writes all files, except that each rank writes its own records of batches. Other ranks construct the same object to take part in its
broadcasts."""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from linnaeus.checkpoint import CheckpointWriter
from linnaeus.checkpoint.retention import rename_newer
from linnaeus.config.environment import hide
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError, RunFailed
from linnaeus.files import to_csv, to_json, write_atomic
from linnaeus.health import Alarm
from linnaeus.metrics.streaming import SAMPLES
from linnaeus.reporting import LogSinks, ProgressDisplay, attach_log_file
from linnaeus.reporting.jsonl.alarm_log import AlarmLog
from linnaeus.reporting.jsonl.batch_record import BatchRecord
from linnaeus.reporting.loggers import build_loggers
from linnaeus.reporting.notifications import Notifier
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.reporting.report.run_report import write_report
from linnaeus.reporting.results import write_summary
from linnaeus.reporting.terminal.brief_report import brief_validation
from linnaeus.reporting.terminal.console import CONSOLE_ONLY
from linnaeus.reporting.terminal.run_reports import RunReports
from linnaeus.rundir import RunDirectory
from linnaeus.rundir.finished_run import read_summary
from linnaeus.rundir.validation_results import ValidationResults
from linnaeus.train.logged_errors import log_page_errors, log_write_errors
from linnaeus.workloads import report_sections
from linnaeus.workloads.base import Workload

log = logging.getLogger("linnaeus")

SHARED_DISK_DELAY = 30.0  # seconds in which a shared disk must show a file that another host has written


class CheckpointNotWritten(RunFailed):
    """Failure of a run whose last checkpoint could not be written."""


class Outputs:
    """Writer of the files of one run: rows of metrics, reports, alarms, checkpoints, validation results, summary.json; also sends
    notifications.

    seconds_before: wall time of earlier launches, in seconds. last_row: newest value of every metric. saved_step: step of the newest
    checkpoint written in this launch; -1 if there is none. resumed: True once `resume` was called."""

    def __init__(
        self, config: Config, context: DistributedContext, directory: RunDirectory, sinks: LogSinks, display: ProgressDisplay
    ) -> None:
        self.config, self.context, self.directory = config, context, directory
        self.sinks, self.display = sinks, display
        keep, own = config.schedule, directory.path if context.is_master else None
        self.writer: CheckpointWriter | None = None
        if context.is_master:
            self.writer = CheckpointWriter(directory.checkpoints, keep.keep_last, keep.keep_best, keep.best_mode, keep.best_monitor)
        self.seconds_before = 0.0
        self.last_row: dict[str, Any] = {}
        self.saved_step = -1
        self.resumed = False
        self.results = ValidationResults(directory.validation)
        self.alarms = AlarmLog(own)
        self.batches: BatchRecord | None = None  # with debug.batch_hashes
        title = f"{config.run.experiment} / {directory.path.name}"
        self.notifier = Notifier(own, title, config.logger.notify, config.logger.notify_on)
        self._end = ("", "running")  # (last message, status)
        self.reports = RunReports(config, None if own is None else own / "reports.jsonl", display)

    def resume(self, step: int, saved: Mapping[str, Any] | None) -> None:
        """Continue the files at `step`: remove rows, reports and alarms of later steps, and rename checkpoints of later steps.

        saved: result of `counters` in the checkpoint; None for a new run and for a checkpoint of another run."""
        saved = saved if saved is not None else {"rows": {}, "seconds": 0.0}
        self.seconds_before, self.resumed = saved["seconds"], True
        if self.writer is not None:  # first: a kill before the rows are cut must not leave a checkpoint that counts more rows
            for name in rename_newer(self.writer.directory, step):
                log.warning("checkpoint %s is newer than step %d and was renamed", name, step)
        for line in self.sinks.resume(saved["rows"], step):
            log.warning(line)
        self.reports.resume(step, saved)
        self.alarms.resume(step, saved.get("alarms", {}))
        if self.batches is not None:
            self.batches.truncate_after(step)
        self.notifier.start(f"{'continues at' if step else 'started; now at'} step {step:,} on {socket.gethostname()}")

    def counters(self, wall_seconds: float) -> dict[str, Any]:
        """Return the value that a later `resume` takes as `saved`: numbers of written rows, reports and alarms, the pending report, and the
        wall time of all launches in seconds.

        wall_seconds: wall time of this launch."""
        counts = {"rows": self.sinks.state_dict(), "alarms": self.alarms.counters(), **self.reports.counters()}
        return {**counts, "seconds": self.seconds_before + wall_seconds}

    def row(self, step: int, row: Mapping[str, Any]) -> None:
        """Write a row of metrics at `step` to every sink (JSONL, W&B, TensorBoard)."""
        self.last_row |= row
        self.sinks.log(step, row)

    def alarm(self, step: int, alarm: Alarm) -> None:
        """Write an alarm that was raised at `step`, and show it in the panel."""
        self.alarms.log(step, alarm)
        self.display.alarm(alarm.headline())

    # -- validation results ----------------------------------------------------------------------------------------------

    def validation_result(self, step: int, key: str, weights: str) -> dict[str, float] | None:
        """Return the stored result of the validation pass `key` at `step`, the same on every rank; None if the pass must run.

        A stored result of other weights is ignored. weights: result of `saving.weights_hash` for the current weights."""
        return self.context.broadcast_object(self.results.read(step, key, weights) if self.context.is_master else None)

    def write_validation(self, step: int, key: str, metrics: Mapping[str, float], weights: str) -> None:
        """Write the result of the validation pass `key`.

        If writing fails, the result stays in memory and is written before the next checkpoint."""
        if self.context.is_master:
            self.reports.passes += 1
            with log_write_errors(self.results.path(step, key)):
                self.results.write(step, key, metrics, weights)

    def write_tables(self, step: int, key: str, tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
        """Write each table of the validation pass `key` to a file <key>-<name>.csv, and delete these files of earlier steps.

        Files of an earlier step with a table of samples stay: they are those of the end of the run, before it was extended. tables: name ->
        rows. A failed write is logged, and the earlier files stay."""
        for name, rows in tables.items():
            path = self.results.path(step, key).with_name(f"{key}-{name}.csv")
            with log_write_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, to_csv(rows))
                for earlier in self.results.directory.glob(f"step-*/{path.name}"):
                    if earlier.parent != path.parent and not any(earlier.parent.glob(f"*-{SAMPLES}.csv")):
                        earlier.unlink()

    def show_validation(self, step: int, key: str, metrics: Mapping[str, float], tasks: tuple[str, ...]) -> None:
        """Log the losses and top-1 accuracies of a finished validation pass, and a warning if a loss is not finite."""
        if not self.context.is_master:
            return
        shown = [name for name in metrics if name.endswith(("/loss", "/top1")) and (name.count("/") == 1 or name.endswith("/top1"))]
        log.debug("step %d  %s", step, "  ".join(f"{name} {metrics[name]:.4f}" for name in shown or list(metrics)[:4]))
        log.info(brief_validation(step, key, metrics, tasks), extra=CONSOLE_ONLY)
        self.display.results(step, metrics, tasks)
        not_finite = [name for name in shown if name.endswith("/loss") and not math.isfinite(metrics[name])]
        if not_finite:
            log.warning("%s at step %d is not finite: the weights are not finite, or no sample has a label", not_finite[0], step)

    def dump_metrics(self, step: int, state: Mapping[str, Any]) -> None:
        """Write `state`, the result of `MetricsTracker.dump_metrics_state()`, to debug/metrics-step-N.json, and log the path."""
        if self.context.is_master:
            path = self.directory.path / "debug" / f"metrics-step-{step:08d}.json"
            with log_write_errors(path):
                path.parent.mkdir(exist_ok=True)
                write_atomic(path, to_json(state))
                log.info("metrics state: %s", path)

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def before_write(self) -> None:
        """Flush the files of rows, reports, alarms and validation results, because a checkpoint contains their numbers of rows.

        The thread that writes checkpoints calls this before each checkpoint."""
        self.results.flush()
        self.sinks.sync()
        self.reports.sync()
        self.alarms.sync()

    def wait_for_writer(self) -> str | None:
        """Wait until the last checkpoint is written. Return the reason if writing it failed, otherwise None."""
        if self.writer is None:
            return None
        self.writer.wait()
        return self.writer.failure

    def newest_intact(self) -> int | None:
        """Return the step of the newest intact checkpoint of the run; None if there is none, or without a writer."""
        return None if self.writer is None else self.writer.newest_intact()

    # -- the end ---------------------------------------------------------------------------------------------------------

    def write_report(self) -> Path | None:
        """Write report.html from the files of the run, and return its path. Return None without `logger.report`, and after a failure, which
        is logged."""
        if self.config.logger.report:
            with log_page_errors(self.directory.path / "report.html"):
                run = RunFiles(self.directory.path)
                return write_report(run, report_sections(self.config.workload.name, run), clean=hide)
        return None

    def summary(self, status: str, global_step: int, **values: Any) -> None:
        """Write summary.json on rank 0, with `values` as further entries."""
        if self.context.is_master:
            self._note_end(status, global_step, values)
            write_summary(self.directory.path / "summary.json", status, global_step, **self._hidden(values))

    def _note_end(self, status: str, global_step: int, values: Mapping[str, Any]) -> None:
        """Set the message that `close` sends (status, step, reason and best metrics) and the status that it passes to the loggers. values:
        entries of summary.json."""
        best = [f"best {name} {entry['value']:.4g} at step {entry['global_step']:,}" for name, entry in (values.get("best") or {}).items()]
        reason = values.get("error") or values.get("stop_reason") or ""
        parts = [f"{status.replace('_', ' ')} at step {global_step:,}", *([str(reason)] if reason else []), *best]
        self._end = ("\n".join(parts), status)

    def fail(self, reason: str, global_step: int) -> None:
        """Write status `failed` and `reason` to summary.json, send the notification, and log the reason, on rank 0 only.
        A thread of the watchdog calls this just before it ends the process, so no collective operation is called."""
        if self.context.is_master:
            with log_write_errors(self.directory.path / "summary.json"):  # before the log: the console may block
                step = max(global_step, self.saved_step) if self.resumed else None
                self.mark("failed", step, error=reason)
            self.notifier.close(f"failed at step {global_step:,}\n{reason}", failed=True)  # before the log: the console may block
            log.error(reason)

    def mark(self, status: str, global_step: int | None = None, **values: Any) -> None:
        """Write `status` and `values` to summary.json. Keep its other entries, except `error` and `interrupted_by`.

        `global_step=None` keeps the step in the file; without a file the step is 0. Use this method in place of `summary` if the run ends
        before its state is restored, or if the watchdog found the failure."""
        previous = read_summary(self.directory.path)
        kept = {name: value for name, value in previous.items() if name not in ("status", "global_step", "error", "interrupted_by")}
        step = previous.get("global_step", 0) if global_step is None else global_step
        self._note_end(status, step, values)
        write_summary(self.directory.path / "summary.json", status, step, **(kept | self._hidden(values)))

    def _hidden(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of `values`. In its entry `error`, values that the configuration reads from environment variables are hidden
        (passwords)."""
        return {**values, "error": hide(values["error"])} if "error" in values else dict(values)

    def close(self) -> None:
        """Close all files and loggers."""
        text, status = self._end
        if self.writer is not None:
            self.writer.close()
        self.sinks.close(status)
        self.reports.close()
        self.alarms.close()
        if self.batches is not None:
            self.batches.close()
        self.notifier.close(text, failed=status == "failed")


# -- construction --------------------------------------------------------------------------------------------------------------


def open_outputs(config: Config, context: DistributedContext, directory: RunDirectory, workload: Workload, total_steps: int) -> Outputs:
    """Open the files and loggers of the run and return them. Call this once the run directory is locked.

    Raise `ConfigError` if a process does not find the run directory."""
    check_shared_disk(directory.path, context)
    attach_log_file(directory.path / ("train.log" if context.is_master else f"train-rank{context.rank}.log"))
    if context.is_master:
        for line in directory.start_messages():
            log.info(line)
        workload.save_dataset_record(directory.path)
    sinks = LogSinks(directory.path if context.is_master else None, build_loggers(config, directory) if context.is_master else [])
    display = ProgressDisplay(total_steps, config.logger.console, context.is_master)
    outputs = Outputs(config, context, directory, sinks, display)
    if config.debug.batch_hashes:
        outputs.batches = BatchRecord(directory.path, workload.sample_names, context.rank, context.world_size)
    return outputs


def check_shared_disk(directory: Path, context: DistributedContext) -> None:
    """Raise `ConfigError`, on all processes, if a process does not find the run directory of rank 0: all ranks must read checkpoints from
    it.

    A network disk may show a new directory late, so each process looks for it for up to `SHARED_DISK_DELAY` seconds."""
    deadline = time.monotonic() + SHARED_DISK_DELAY
    while not (found := (directory / "config.yaml").exists()) and time.monotonic() < deadline:
        time.sleep(0.5)
    hosts: list[tuple[bool, str]] = context.all_gather((found, socket.gethostname()))
    missing = next((rank for rank, (rank_found, _) in enumerate(hosts) if not rank_found), None)
    if missing is not None:
        raise ConfigError(
            f"run.root: process rank 0 on {hosts[0][1]} has made {directory}, but process rank {missing} on {hosts[missing][1]} does "
            "not find it; choose a folder on a disk that all nodes share"
        )
