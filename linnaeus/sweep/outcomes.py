"""How a trial ended: its status, and the number it is compared by, from the summary of its run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnaeus.config.metric_directions import direction
from linnaeus.config.schema import Config
from linnaeus.config.schema_launch import SweepConfig
from linnaeus.errors import ConfigError
from linnaeus.launch.base import ended_by_signal
from linnaeus.rundir.finished_run import ENDED, read_summary
from linnaeus.sweep.trials import Trial

WAITING, RUNNING, FINISHED, PLANNED, INTERRUPTED, FAILED = "waiting", "running", "finished", "planned", "interrupted", "failed"
SAVED = 75  # exit status of a run that saved and stopped
STOPPED = (130, 137, 138, 143)  # by SIGINT, SIGKILL, SIGUSR1, SIGTERM
TAIL = 65536  # bytes of a log that are searched for its last error
_ERROR = re.compile(r"(error\b|[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Failed|Killed)\b)")


@dataclass(frozen=True)
class Metric:
    """What trials are compared by; `of_best`: the best value of a run, otherwise its last. `mode` is min or max."""

    name: str
    mode: str
    of_best: bool

    def better(self, a: float, b: float) -> bool:
        return a < b if self.mode == "min" else a > b


@dataclass(frozen=True)
class Outcome:
    """`value` and `step` are None unless the run ended well and measured it; `error` is one line; `seconds` over all its starts;
    `columns`: what it has of `sweep.columns`, None where that is not defined."""

    status: str
    value: float | None = None
    step: int | None = None
    seconds: float | None = None
    error: str | None = None
    columns: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def is_final(self) -> bool:
        """Whether the same command has nothing to add."""
        return self.status in (*ENDED, PLANNED, FAILED)

    @property
    def is_good(self) -> bool:
        return self.status in (*ENDED, PLANNED)


def metric_of(sweep: SweepConfig, config: Config) -> Metric:
    """By what a trial with this configuration is compared."""
    if sweep.metric is None:
        return Metric(config.schedule.best_monitor, config.schedule.best_mode, True)
    return Metric(sweep.metric, direction(sweep.mode, sweep.metric, config.workload.name, "sweep.mode"), False)


def common_metric(sweep: SweepConfig, trials: Sequence[Trial]) -> Metric:
    """The metric of all trials, named as the first one's. `ConfigError` when more is better for one and less for another."""
    found = [metric_of(sweep, trial.config) for trial in trials]
    other = next((metric for metric in found if metric.mode != found[0].mode), None)
    if other is not None:
        raise ConfigError(f"trials cannot be compared by both {found[0].name} and {other.name}; choose one with sweep.metric")
    return found[0]


def ended(trial: Trial, sweep: SweepConfig, exit_status: int, log: Path, start: int, asked_to_stop: bool) -> Outcome:
    """The outcome of a trial whose job has returned `exit_status`; its lines begin at byte `start` of `log`."""
    if exit_status == 0:
        return finished(trial, sweep)
    try:
        summary = read_summary(trial.directory)
    except OSError:  # how it ended is known without its numbers
        summary = {}
    seconds = summary.get("wall_seconds")
    if exit_status == SAVED or (asked_to_stop and exit_status in STOPPED):
        return Outcome(INTERRUPTED, step=summary.get("global_step"), seconds=seconds)
    name = ended_by_signal(exit_status)
    error = f"killed by {name}" if name else last_error(log, start) or f"exit status {exit_status}"
    return Outcome(FAILED, seconds=seconds, error=error)


def finished(trial: Trial, sweep: SweepConfig) -> Outcome:
    """The outcome of a run that has ended well. `ConfigError` when it has not measured `sweep.metric`."""
    if trial.config.plan:
        return Outcome(PLANNED)
    summary, metric = read_summary(trial.directory), metric_of(sweep, trial.config)
    if metric.of_best:
        best: Mapping[str, Any] = summary.get("best", {}).get(metric.name, {})
        value, step = best.get("value"), best.get("global_step")
    else:
        known = summary.get("final", {})
        if metric.name not in known:
            raise ConfigError(f"sweep.metric: {trial.directory} has no {metric.name}; it has {', '.join(sorted(known)) or 'none at all'}")
        value, step = known[metric.name], summary.get("global_step")
    status = str(summary.get("status", FINISHED))
    known = {**summary.get("final", {}), **summary.get("timings", {})}
    columns = {name: known[name] for name in sweep.columns if name in known}
    step = step if value is not None else summary.get("global_step")
    return Outcome(status, value, step, summary.get("wall_seconds"), columns=columns)


def last_error(log: Path, start: int) -> str | None:
    """The last line of a log from byte `start` on that tells of an error, or else its last line."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(start, end - TAIL))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return None
    told = [line for line in lines if _ERROR.match(line)] or lines
    return told[-1] if told else None
