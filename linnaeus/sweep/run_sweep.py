"""Run a sweep from its command line to its table of results, or a single run through a launcher."""

import argparse
import logging
import sys
import time
from pathlib import Path

from linnaeus.launch import Job, build_launcher
from linnaeus.launch.launcher import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, EXIT_USAGE, POLL_SECONDS
from linnaeus.reporting import setup_logging
from linnaeus.sweep.optuna_study import OptunaStudy
from linnaeus.sweep.picture import sweep_picture
from linnaeus.sweep.request import Request, read_request
from linnaeus.sweep.sweep_files import SweepFiles
from linnaeus.sweep.trial import make_trial
from linnaeus.sweep.trial_results import FAILED, INTERRUPTED, STOP_STATUSES
from linnaeus.sweep.trial_runner import StopRequests, TrialRunner
from linnaeus.sweep.trial_source import Grid, TrialSource, sweep_header, sweep_name

log = logging.getLogger("linnaeus")


def sweep(arguments: argparse.Namespace) -> int:
    """Run the sweep of a parsed command line with `-m`, or the single run with a `launch` other than process.

    Return the exit status: 0 if all trials ended well, 1 if a trial failed, 75 if interrupted. Raise `ConfigError` for a mistake in the
    command."""
    setup_logging(style="plain")
    try:
        request = read_request(arguments)
        return run_sweep(request) if arguments.multirun else run_single(request)
    except KeyboardInterrupt:  # while trials are composed and checked, before `StopRequests`
        print("stopped before the first trial", file=sys.stderr)
        return EXIT_INTERRUPTED


def run_sweep(request: Request) -> int:
    """Run every trial to its end and print the table of results. Return the exit status, as `sweep` does.

    A `ConfigError` is raised before anything is written, except for mistakes that only show when a trial runs."""
    source = Grid(request) if request.sweep.method == "grid" else OptunaStudy(request)
    launcher = build_launcher(request.launch, request.sweep.parallel)
    root, name = Path(source.first.config.run.root), sweep_name(request, source.first)
    keys, header = [p.key for p in request.parameters], sweep_header(request, source.metric)
    files = SweepFiles(root / "sweeps" / name, root, source, keys, request.sweep.columns)
    with files.opened() as saved:
        source.resume(saved, header)
        runner = TrialRunner(source, launcher, request.sweep, files.directory)
        log.info("sweep %s: %d trials, at most %d in parallel; %s", name, source.total, request.sweep.parallel, files.directory)
        runner.run(lambda: files.write(header, sweep_picture(request.parameters, source)))
        return _finish(files, runner, source)


def _finish(files: SweepFiles, runner: TrialRunner, source: TrialSource) -> int:
    """Log the table of results and the end of the sweep. Return the exit status."""
    log.info("the best first:\n%s", files.table().rstrip())
    if means := files.means():
        log.info("over seeds and folds, mean +- standard deviation:\n%s", means.rstrip())
    for column in files.unknown_columns():
        log.warning("sweep.columns: no trial has %s; the names are in `final` and `timings` of a summary.json", column)
    if runner.is_recorded:
        log.info("%s: %s", files.directory, ", ".join(files.written()))
    else:
        log.error("%s cannot be written; the same command writes its files", files.directory)
    statuses = [result.status for result in source.results.values()]
    if runner.interrupted:
        log.info("stopped; the same command continues")
    elif FAILED in statuses:
        retry = "; the same command tries again" if isinstance(source, Grid) else ""
        log.info("%d of %d trials failed%s", statuses.count(FAILED), len(source.trials), retry)
        return EXIT_FAILED
    if runner.interrupted or INTERRUPTED in statuses:
        return EXIT_INTERRUPTED
    return EXIT_FINISHED if runner.is_recorded else EXIT_FAILED


def run_single(request: Request) -> int:
    """Start one run by a launcher other than `process`, show its output and forward stop requests to it.

    Return the exit status of the run: 0 finished, 1 failed, 2 mistake of the user, 75 interrupted."""
    trial = make_trial(request, 0, {}, check_directory=False)
    if trial.is_finished() and not trial.config.plan:
        log.info(trial.run_directory().finished_message())
        return EXIT_FINISHED
    launcher = build_launcher(request.launch, 1)
    with StopRequests() as requests:
        handle = launcher.start(Job(trial.overrides, trial.directory, trial.config_dir, log=None))
        log.info("%s: %s", trial.directory, handle.describe())
        while (status := handle.poll()) is None:
            requests.forward([handle])
            time.sleep(POLL_SECONDS)
    if status == EXIT_INTERRUPTED or (requests.forwarded and status in STOP_STATUSES):
        return EXIT_INTERRUPTED
    return status if status in (EXIT_FINISHED, EXIT_USAGE) else EXIT_FAILED
