"""Run the trials of a sweep: start them, read the results of trials that have ended, and forward requests to stop.

Trials do not affect each other. The files on the disk are sufficient to continue at any instant: a run directory shows if its run is
finished, and the same command starts the unfinished runs. If a file of the sweep cannot be written, it is written later; no trial ends
because of it."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from linnaeus.config.schema import SweepConfig
from linnaeus.distributed.signals import SAME_REQUEST, STOP_SIGNALS
from linnaeus.errors import ConfigError, counted, system_reason
from linnaeus.launch import Handle, Job, Launcher
from linnaeus.launch.launcher import POLL_SECONDS
from linnaeus.sweep.trial import Trial, short_value
from linnaeus.sweep.trial_results import FAILED, INTERRUPTED, RUNNING, WAITING, TrialResult, finished_result, result_of_job
from linnaeus.sweep.trial_source import TrialSource

log = logging.getLogger("linnaeus")


class StopRequests:
    """Context manager that counts requests to stop (the signals SIGTERM, SIGINT and SIGUSR1) in `count`.

    The first request asks the runs to save and end, the second kills the runs. The third ends this process, and with it its child
    processes. `forwarded`: number of requests that were sent to the runs."""

    def __init__(self) -> None:
        self.count = self.forwarded = 0
        self._last = 0.0

    def __enter__(self) -> StopRequests:
        self._previous = {number: signal.signal(number, self._receive) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self.count or now - self._last > SAME_REQUEST:
            self.count, self._last = self.count + 1, now
        if self.count > 2:
            os._exit(128 + number)

    def forward(self, handles: Sequence[Handle]) -> None:
        """Send all requests that were not forwarded yet to each of the jobs in `handles`, and log each request."""
        while self.forwarded < self.count:
            self.forwarded += 1
            if handles:
                count = counted(len(handles), "run")
                log.info("stopping: %s to %s", count, "save and end" if self.forwarded == 1 else "end at once")
            for handle in handles:
                handle.stop()


class RunningTrial(NamedTuple):
    """A trial that runs. `since`: monotonic time of its start. `log_start`: size of its log file in bytes when it started."""

    trial: Trial
    handle: Handle
    since: float
    log: Path
    log_start: int


class TrialRunner:
    """Loop that runs the trials of `source`.

    `interrupted`: True if a stop was requested. `is_recorded`: True if the last write of the sweep's files succeeded."""

    def __init__(self, source: TrialSource, launcher: Launcher, sweep: SweepConfig, directory: Path) -> None:
        self.source, self.launcher, self.sweep, self.directory = source, launcher, sweep, directory
        self.interrupted, self.is_recorded = False, True
        self._running: list[RunningTrial] = []
        self._next: Trial | None = None  # a trial that cannot start yet
        self._requests = StopRequests()
        self._error: ConfigError | None = None

    def run(self, write: Callable[[], None]) -> None:
        """Run until every trial has ended. After a stop request, start no more trials and wait until the running trials have ended.

        `write`: function that writes the files of the sweep. It is called before a trial starts, after a trial ended and at the end; if it
        raises `OSError`, it is called again at each poll. A `ConfigError` of the trial source, of the launcher or about the metric stops
        the sweep like a stop request, and is raised at the end."""
        self._write = write
        with self._requests:
            while True:
                changed = self._read_results()
                self._requests.forward([running.handle for running in self._running])
                if not self._requests.count and len(self._running) < self.sweep.parallel and self._start_next():
                    continue
                if changed or not self.is_recorded:
                    self._record()
                if not self._running and (self._requests.count or self._next is None):
                    break
                time.sleep(POLL_SECONDS)
        self._record()
        self.interrupted = self._requests.count > 0
        if self._error is not None:
            raise self._error

    def _record(self) -> None:
        """Write the files of the sweep. If that fails, log a warning; of several failures in a row only the first is logged."""
        was_recorded, self.is_recorded = self.is_recorded, True
        try:
            self._write()
        except OSError as error:
            self.is_recorded = False
            if was_recorded:
                log.warning("%s cannot be written: %s; trying again, the trials continue", self.directory, system_reason(error))

    def _start_next(self) -> bool:
        """Start the next trial. If the trial already ended in an earlier start of the sweep, only read its result. Return False if no trial
        can start now."""
        try:
            trial = self._next = self._next or self.source.next()
            if trial is None or any(trial.directory == running.trial.directory for running in self._running):
                return False
            is_finished = trial.is_finished() and not trial.config.plan
            result = finished_result(trial, self.sweep) if is_finished else self.source.saved_failure(trial)
            self.source.results[trial.number] = result or TrialResult(WAITING)
            self._record()
            if result is None and self.source.record_before_start and not self.is_recorded:
                return False
            self._next = None
            if result is not None:
                self._log(trial, self._describe(result) + (" already" if result.is_good else " before"))
            else:
                self._start(trial)
            return True
        except ConfigError as error:
            self._stop(error)
        except OSError as error:
            self._stop(ConfigError(f"the next trial cannot be read: {system_reason(error)}"))
        return False

    def _start(self, trial: Trial) -> None:
        path = self.directory / f"trial-{trial.number:02d}.log"
        try:
            path.touch()
            start = path.stat().st_size
            handle = self.launcher.start(Job(trial.overrides, trial.directory, trial.config_dir, path))
        except OSError as error:
            result = TrialResult(FAILED, error=f"cannot start: {system_reason(error)}")
            self._log(trial, f"failed: {result.error}")
        else:
            self._running.append(RunningTrial(trial, handle, time.monotonic(), path, start))
            result = TrialResult(RUNNING)
            self._log(trial, f"started ({handle.describe()})")
        self.source.results[trial.number] = result
        self._record()

    def _read_results(self) -> bool:
        """Read the results of the trials that have ended since the last call. Return True if there are any."""
        ended = [(running, status) for running in self._running if (status := running.handle.poll()) is not None]
        for running, status in ended:
            self._running.remove(running)
            trial = running.trial
            try:
                result = result_of_job(trial, self.sweep, status, running.log, running.log_start, self._requests.forwarded > 0)
            except ConfigError as error:
                self._stop(error)
                result = TrialResult(FAILED, error=str(error))
            except OSError as error:  # the next start may be able to read it
                result = TrialResult(FAILED, error=f"its results cannot be read: {system_reason(error)}")
            self.source.results[trial.number] = result
            details = f": {result.error}; {running.log}" if result.error else ""
            if result.status == INTERRUPTED and result.step is not None:
                details = f"; saved at step {result.step}"
            self._log(trial, f"{self._describe(result)}  {time.monotonic() - running.since:.0f} s{details}")
        return bool(ended)

    def _describe(self, result: TrialResult) -> str:
        value = f"  {self.source.metric.name} {short_value(repr(result.value))}" if result.value is not None else ""
        return result.status.replace("_", " ") + value

    def _log(self, trial: Trial, message: str) -> None:
        log.info("trial %d/%d  %s  %s", trial.number, self.source.total, trial.describe(), message)

    def _stop(self, error: ConfigError) -> None:
        """Stop the sweep as a stop request does. At its end, `run` raises the first error that was passed to this method."""
        self._error = self._error or error
        self._requests.count = max(self._requests.count, 1)
