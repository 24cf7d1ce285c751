"""A sweep from its request to its table."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from linnaeus.files import write_atomic
from linnaeus.launch import build_launcher
from linnaeus.sweep.driver import Driver
from linnaeus.sweep.outcomes import FAILED, INTERRUPTED, Metric, common_metric
from linnaeus.sweep.picture import sweep_picture
from linnaeus.sweep.request import Request
from linnaeus.sweep.study import Study
from linnaeus.sweep.study_record import PICTURE, SweepRecord
from linnaeus.sweep.trials import Trial, grid, sweep_name

log = logging.getLogger("linnaeus")

ALL_WELL, ONE_FAILED, STOPPED = 0, 1, 75  # exit statuses; 1 also when a file of the sweep could not be written


class Grid:
    """A source of trials that are all known from the start."""

    on_record_first = False

    def __init__(self, request: Request) -> None:
        self.trials = grid(request)
        self.total, self._given = len(self.trials), 0
        self.metric = common_metric(request.sweep, self.trials)
        self.first = self.trials[0]

    def resume(self, before: object) -> None:
        """The run directories say what is left to do."""

    def next(self, outcomes: object) -> Trial | None:
        self._given += 1
        return self.trials[self._given - 1] if self._given <= self.total else None

    def kept(self, trial: Trial) -> None:
        """A trial that failed is tried again."""


def run_sweep(request: Request) -> int:
    """Every trial to its end, then the table. What can be refused is refused before anything is written."""
    source = Grid(request) if request.sweep.method == "grid" else Study(request)
    launcher = build_launcher(request.launch, request.sweep.parallel)
    root, name = Path(source.first.config.run.root), sweep_name(request, source.first)
    keys = [p.key for p in request.parameters]
    record = SweepRecord(root / "sweeps" / name, root, source.metric, keys, request.sweep.columns)
    lock = record.open()
    try:
        source.resume(record.before)
        driver = Driver(source, launcher, request.sweep, source.metric, record.directory)
        log.info("sweep %s: %d trials, %d at once; %s", name, source.total, request.sweep.parallel, record.directory)

        def write() -> None:
            trials = source.trials if isinstance(source, Grid) else list(driver.trials.values())
            of_study = (source.head, source.more()) if isinstance(source, Study) else ({}, {})
            record.write(trials, driver.outcomes, {**_head(request, source.metric), **of_study[0]}, of_study[1])

        driver.run(write)
        return _end(record, driver, request, source)
    finally:
        launcher.close()
        lock.release()


def _head(request: Request, metric: Metric) -> dict[str, object]:
    """What sweep.json says first."""
    return {
        "command": ["python", "main.py", *sys.argv[1:]],
        "parameters": {p.setting: p.text for p in request.parameters},
        "fixed": request.fixed,
        "metric": metric.name,
        "mode": metric.mode,
    }


def _end(record: SweepRecord, driver: Driver, request: Request, source: Grid | Study) -> int:
    """Print the table, draw the picture; returns the exit status."""
    trials = source.trials if isinstance(source, Grid) else list(driver.trials.values())
    log.info("the best first:\n%s", record.table(trials, driver.outcomes).rstrip())
    means = record.means(trials, driver.outcomes)
    if means:
        log.info("over the seeds, mean +- standard deviation:\n%s", means.rstrip())
    for column in record.unknown(driver.outcomes):
        log.warning("sweep.columns: no trial has %s; `final` and `timings` of a summary.json have the names", column)
    picture = sweep_picture(request.parameters, trials, driver.outcomes, source.metric)
    is_drawn = picture is None or _drawn(record.directory / PICTURE, picture)
    if driver.is_recorded:
        log.info("%s: table.txt, trials.csv%s", record.directory, f", {PICTURE}" if picture is not None and is_drawn else "")
    else:
        log.error("%s: the table and what belongs to it could not be written; the same command writes them", record.directory)
    return _status(driver, source, len(trials), driver.is_recorded and is_drawn)


def _drawn(path: Path, picture: str) -> bool:
    """Whether the disk has taken the picture."""
    try:
        write_atomic(path, picture)
    except OSError as error:
        log.error("%s could not be written (%s); the same command writes it", path, error.strerror or error)
        return False
    return True


def _status(driver: Driver, source: Grid | Study, trials: int, all_written: bool) -> int:
    """The exit status, and what there is to say of it."""
    statuses = [outcome.status for outcome in driver.outcomes.values()]
    if driver.interrupted:
        log.info("stopped; the same command goes on")
        return STOPPED
    if FAILED in statuses:
        again = "; the same command tries again" if isinstance(source, Grid) else ""
        log.info("%d of %d trials failed%s", statuses.count(FAILED), trials, again)
        return ONE_FAILED
    if INTERRUPTED in statuses:
        return STOPPED
    return ALL_WELL if all_written else ONE_FAILED
