"""Read the result of a trial: its status follows from the exit status, and the metric by which trials are compared is in the run's
summary.json."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnaeus.config.monitors import direction, measured_name, nearest_metric
from linnaeus.config.schema import Config, SweepConfig
from linnaeus.errors import ConfigError
from linnaeus.launch.launcher import EXIT_FINISHED, EXIT_INTERRUPTED, SEE_ABOVE, signal_name
from linnaeus.rundir.finished_run import ENDED, read_summary
from linnaeus.sweep.trial import Trial

WAITING, RUNNING, FINISHED, PLANNED, INTERRUPTED, FAILED = "waiting", "running", "finished", "planned", "interrupted", "failed"
STOP_STATUSES = (130, 137, 138, 143)  # exit statuses after SIGINT, SIGKILL, SIGUSR1, SIGTERM
TAIL = 65536  # bytes at the end of a log that are searched for the last error
_ERROR = re.compile(r"(error\b|[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Failed|Killed)\b)")


@dataclass(frozen=True)
class Metric:
    """The metric by which trials are compared. `mode`: "min" or "max".

    `of_best`: True to compare the best value of each run, False to compare the last value."""

    name: str
    mode: str
    of_best: bool

    def rank(self, value: float | None) -> tuple[bool, float]:
        """Return a sort key for `value`: in sorted order the best value comes first and None last."""
        return value is None, (1 if self.mode == "min" else -1) * (value or 0.0)


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial.

    `value`: value of the metric; None unless the run ended well and measured the metric. `step`: step of this value, or the last step of an
    interrupted run; None if unknown. `seconds`: wall time of all starts of the run. `error`: one line. `columns`: the values of
    `sweep.columns` in summary.json, None for NaN."""

    status: str
    value: float | None = None
    columns: Mapping[str, float | None] = field(default_factory=dict)
    step: int | None = None
    seconds: float | None = None
    error: str | None = None

    @property
    def is_good(self) -> bool:
        return self.status in (*ENDED, PLANNED)


def metric_of(sweep: SweepConfig, config: Config) -> Metric:
    """Return the metric by which a trial with this configuration is compared: `sweep.metric`, by default `schedule.best_monitor`.

    Like that one, `val/...` means `val_ema/...` in a trial that validates its averaged weights."""
    if sweep.metric is None:
        return Metric(config.schedule.best_monitor, config.schedule.best_mode, True)
    mode = direction(sweep.mode, sweep.metric, config.workload.name, "sweep.mode")
    return Metric(measured_name(config, sweep.metric), mode, False)


def common_metric(sweep: SweepConfig, trials: Sequence[Trial]) -> Metric:
    """Return the metric of the first trial, as the metric by which all `trials` are compared.

    `val/...` and `val_ema/...` count as the same metric. Raise `ConfigError` if the metric differs between trials, or is minimised in some
    trials and maximised in others."""
    metrics = [metric_of(sweep, trial.config) for trial in trials]
    compared = [(metric.mode, metric.name.replace("val_ema", "val", 1)) for metric in metrics]
    other = next((metric for metric, own in zip(metrics, compared, strict=True) if own != compared[0]), None)
    if other is not None:
        raise ConfigError(f"trials cannot be compared by both {metrics[0].name} and {other.name}; choose one with sweep.metric")
    return metrics[0]


def result_of_job(trial: Trial, sweep: SweepConfig, exit_status: int, log: Path, start: int, stop_requested: bool) -> TrialResult:
    """Return the result of a trial whose job has ended with `exit_status`. The output of the job is in the file `log` from byte `start` on.

    `stop_requested`: True if the sweep has asked its runs to stop; a run that a stop signal ended is then interrupted, not failed."""
    if exit_status == EXIT_FINISHED:
        return finished_result(trial, sweep)
    try:
        summary = read_summary(trial.directory)
    except OSError:  # the exit status determines the result without the summary
        summary = {}
    seconds = summary.get("wall_seconds")
    if exit_status == EXIT_INTERRUPTED or (stop_requested and exit_status in STOP_STATUSES):
        return TrialResult(INTERRUPTED, step=summary.get("global_step"), seconds=seconds)
    name = signal_name(exit_status)
    error = f"killed by {name}" if name else last_error(log, start) or f"exit status {exit_status}"
    return TrialResult(FAILED, seconds=seconds, error=error)


def finished_result(trial: Trial, sweep: SweepConfig) -> TrialResult:
    """Return the result of a trial whose run has ended well. Raise `ConfigError` if the run has not measured `sweep.metric`."""
    if trial.config.plan:
        return TrialResult(PLANNED)
    summary, metric = read_summary(trial.directory), metric_of(sweep, trial.config)
    final, step = summary.get("final", {}), summary.get("global_step")
    if metric.of_best:
        best: Mapping[str, Any] = summary.get("best", {}).get(metric.name, {})
        value = best.get("value")
        step = best.get("global_step") if value is not None else step
    elif metric.name in final:
        value = final[metric.name]
    else:
        hint = nearest_metric(metric.name, sorted(final)) if final else "it has no metric"
        raise ConfigError(f"sweep.metric: {trial.directory} has no {metric.name}; {hint}")
    measured = {**final, **summary.get("timings", {})}
    columns = {name: measured[own] for name in sweep.columns if (own := measured_name(trial.config, name)) in measured}
    return TrialResult(str(summary.get("status", FINISHED)), value, columns, step, summary.get("wall_seconds"))


def last_error(log: Path, start: int) -> str | None:
    """Return the last line after byte `start` of `log` that looks like an error. A line of torchrun that refers to such a line counts only
    if it is the only one. Without such a line, return the last line; without any line, None."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - TAIL))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return None
    errors = [line for line in lines if _ERROR.match(line)]
    own = [line for line in errors if not line.endswith(SEE_ABOVE)]
    return next((found[-1] for found in (own, errors, lines) if found), None)
