"""The loop of a sweep: start what may start, notice what ended, pass on a request to stop.

One trial's end is no business of another's. At any instant what is on the disk is enough to go on: a run directory knows whether it
is finished, and the same command starts whatever is not. What the disk refuses to take is written later: it ends no trial.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from linnaeus.config.schema_launch import SweepConfig
from linnaeus.errors import ConfigError
from linnaeus.launch import Handle, Job, Launcher
from linnaeus.sweep.outcomes import FAILED, INTERRUPTED, RUNNING, WAITING, Metric, Outcome, ended, finished
from linnaeus.sweep.retried import Retried, reason
from linnaeus.sweep.stopping import Requests
from linnaeus.sweep.trials import Trial, shown

log = logging.getLogger("linnaeus")

LOOK = 0.1  # seconds between two looks at what runs


class Source(Protocol):
    """Where trials come from."""

    total: int
    on_record_first: bool  # whether what it gives cannot be known again, and has to be on the disk before it starts

    def next(self, outcomes: Mapping[int, Outcome]) -> Trial | None:
        """The next trial; None when there is none, or none before another one has ended."""

    def kept(self, trial: Trial) -> Outcome | None:
        """The outcome of a trial that has ended for good before this start, besides those that finished."""


@dataclass
class Running:
    trial: Trial
    handle: Handle
    since: float
    log_start: int


class Driver:
    """`trials` and `outcomes` by number, from 1; `interrupted`: the sweep was asked to stop; `is_recorded`: what `run` wrote at
    the end is on the disk."""

    def __init__(self, source: Source, launcher: Launcher, sweep: SweepConfig, metric: Metric, directory: Path) -> None:
        self.source, self.launcher, self.sweep, self.metric, self.directory = source, launcher, sweep, metric, directory
        self.trials: dict[int, Trial] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.interrupted, self.is_recorded = False, True
        self._running: list[Running] = []
        self._held: list[Trial] = []  # their run is another trial's as well, which runs; or the disk refuses the record of them
        self._requests = Requests()
        self._passed_on = 0
        self._error: ConfigError | None = None

    def run(self, write: Callable[[], None]) -> None:
        """Until every trial has ended, or those that run after a request to stop. `write` is called whenever something changed, before
        a trial starts and after it ended, and once more at the end; if the disk refuses it (`OSError`), at each look. A `ConfigError` (of
        the source, the launcher, a metric's name) ends the sweep as a request to stop does, and is raised then."""
        record = Retried(self.directory, write)
        try:
            with self._requests:
                self._loop(record)
        finally:
            self.is_recorded = record()
        self.interrupted = self._requests.count > 0
        if self._error is not None:
            raise self._error

    def _loop(self, record: Retried) -> None:
        while True:
            changed = self._notice()
            self._pass_on()
            if not self._stops() and len(self._running) < self.sweep.parallel and self._start_next(record):
                continue
            if changed or not record.is_written:
                record()
            if not self._running and (self._stops() or not self._held):
                break
            time.sleep(LOOK)

    def log_of(self, trial: Trial) -> Path:
        return self.directory / f"trial-{trial.number:02d}.log"

    # -- trials ----------------------------------------------------------------------------------------------------------

    def _start_next(self, record: Retried) -> bool:
        """Start the next trial; whether there was one that could."""
        try:
            trial = self._next()
            return trial is not None and self._begin(trial, record)
        except ConfigError as error:
            self._error = error
        except OSError as error:
            self._error = ConfigError(f"the next trial cannot be looked at: {reason(error)}")
        return False

    def _next(self) -> Trial | None:
        busy = {running.trial.directory for running in self._running}
        free = next((trial for trial in self._held if trial.directory not in busy), None)
        if free is not None:
            self._held.remove(free)
            return free
        while (trial := self.source.next(self.outcomes)) is not None:
            self.trials[trial.number] = trial
            if trial.directory not in busy:
                return trial
            self._held.append(trial)
        return None

    def _begin(self, trial: Trial, record: Retried) -> bool:
        """Start it; False when it is held back, to be tried again."""
        known = finished(trial, self.sweep) if trial.is_finished() and not trial.config.plan else self.source.kept(trial)
        self.outcomes[trial.number] = known or Outcome(WAITING)
        record()  # before it starts: what optuna proposed has to be known if this process ends now
        if known is not None:
            self._say(trial, self._result(known) + (" already" if known.is_good else " before"))
            return True
        if not record.is_written and self.source.on_record_first:
            self._held.append(trial)
            return False
        try:
            if not record.is_written:
                self.log_of(trial).touch()  # to a launcher, a log that cannot be made is a mistake that ends the sweep
            self._launch(trial)
        except OSError as error:  # of this trial alone
            self.outcomes[trial.number] = Outcome(FAILED, error=f"it could not be started: {reason(error)}")
            self._say(trial, f"failed: {self.outcomes[trial.number].error}")
        record()
        return True

    def _launch(self, trial: Trial) -> None:
        path = self.log_of(trial)
        start = path.stat().st_size if path.exists() else 0
        handle = self.launcher.start(Job(trial.overrides, trial.directory, trial.config_dir, path))
        self._running.append(Running(trial, handle, time.monotonic(), start))
        self.outcomes[trial.number] = Outcome(RUNNING)
        self._say(trial, f"started ({handle.describe()})")

    def _notice(self) -> bool:
        """Take what has ended; whether anything has."""
        left = []
        for running in self._running:
            status = running.handle.poll()
            if status is None:
                left.append(running)
                continue
            trial = running.trial
            try:
                outcome = ended(trial, self.sweep, status, self.log_of(trial), running.log_start, self._passed_on > 0)
            except ConfigError as error:
                self._error = self._error or error
                outcome = Outcome(FAILED, error=str(error))
            except OSError as error:  # the disk may have it again by the next start, which reads it
                outcome = Outcome(FAILED, error=f"its results cannot be read: {reason(error)}")
            self.outcomes[trial.number] = outcome
            self._say(trial, f"{self._result(outcome)}  {time.monotonic() - running.since:.0f} s{self._why(trial, outcome)}")
        changed = len(left) < len(self._running)
        self._running = left
        return changed

    def _result(self, outcome: Outcome) -> str:
        measured = f"  {self.metric.name} {shown(repr(outcome.value))}" if outcome.value is not None else ""
        return outcome.status.replace("_", " ") + measured

    def _why(self, trial: Trial, outcome: Outcome) -> str:
        if outcome.status == INTERRUPTED:
            return f"; saved at step {outcome.step}" if outcome.step is not None else ""
        return f": {outcome.error}; {self.log_of(trial)}" if outcome.error else ""

    def _say(self, trial: Trial, what: str) -> None:
        log.info("trial %d/%d  %s  %s", trial.number, self.source.total, trial.describe(), what)

    # -- stopping --------------------------------------------------------------------------------------------------------

    def _stops(self) -> bool:
        return self._requests.count > 0 or self._error is not None

    def _pass_on(self) -> None:
        """Each request reaches each trial once: the first asks it to save and end, the second ends it."""
        wanted = max(self._requests.count, int(self._error is not None))
        while self._passed_on < wanted:
            self._passed_on += 1
            if self._running:
                count = f"{len(self._running)} trial{'s' if len(self._running) > 1 else ''}"
                log.info("stopping: %s to %s", count, "save and end" if self._passed_on == 1 else "end at once")
            for running in self._running:
                running.handle.stop()
