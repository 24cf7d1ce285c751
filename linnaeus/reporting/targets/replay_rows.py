"""Send the rows of metrics.jsonl and timings.jsonl to another destination. A row that is already at the destination is not sent again.

    linnaeus replay outputs/biota/1a2b3c4d5e --to mlflow
    linnaeus replay outputs/biota/* --to wandb --offline

The rows keep their names. A replay compares the rows at the destination with the files and sends the difference, so it may be repeated,
interrupted, or made while the run trains. A replay to a place that the running launch or another replay writes to is refused.

With `--follow` the program sends new rows until its stdin is closed. A run with `logger.mlflow` or `logger.trackio` starts the program with
this option (`sinks/follower.py`).
"""

import argparse
import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from linnaeus.errors import ConfigError, RunFailed, counted, one_line
from linnaeus.files import no_follow
from linnaeus.reporting.sinks.saved_rows import STREAMS, SavedRows, open_run
from linnaeus.reporting.targets import FOLLOWED, PACKAGES, Target, missing_package, open_target
from linnaeus.rundir.lock import has_owner
from linnaeus.rundir.saved_run import without_comparison

INTERVAL = 2.0  # seconds between two looks at the files of a run that is followed
SHARE = 20.0  # times as long as a look takes: long runs are looked at more rarely, so that this costs at most 5 % of a core


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line. Raise `ConfigError` for a mistake."""
    from linnaeus.config.command_line import OneLineParser

    parser = OneLineParser(
        prog="linnaeus replay", description="Send the rows of runs to another destination. Rows that are already there are not sent again."
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directory, such as outputs/biota/1a2b3c4d5e")
    parser.add_argument("--to", required=True, choices=tuple(PACKAGES), help="destination")
    parser.add_argument("--uri", help="mlflow: server or database; default: MLFLOW_TRACKING_URI, or else that of MLflow")
    parser.add_argument("--project", help="wandb, trackio: project; default: logger.wandb_project of the run")
    parser.add_argument("--offline", action="store_true", help="wandb: write a folder for `wandb sync` in the run directory")
    parser.add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name, targets in (("uri", ("mlflow",)), ("project", ("wandb", "trackio")), ("offline", ("wandb",)), ("follow", FOLLOWED)):
        if getattr(options, name) and options.to not in targets:
            parser.error(f"--{name} has no effect with --to {options.to}; it belongs to --to {' and '.join(targets)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay each run of the command line and print a line about it. Return the exit status.

    The program ends with one line and status 2 after a mistake of the user, and with status 1 if a destination fails."""
    from linnaeus.config.messages import user_errors

    with user_errors(2):
        options = parse(arguments)
        if missing := missing_package(options.to):
            raise ConfigError(f"--to {options.to} {missing}")
        for path in without_comparison(options.runs):
            if options.follow:
                follow(path, options)
            else:
                print(replay(path, options))
    return 0


def replay(path: Path, options: argparse.Namespace) -> str:
    """Send the rows of the run directory `path` and return a line for the terminal. Raise `RunFailed` if the destination does not take
    them. `options`: result of `parse`.

    Raise `ConfigError` if the run trains and writes to the same place itself: a replay to a folder would replace it, so that later rows of
    this launch are lost; rows that wait to be sent to W&B would be sent twice, and the W&B run would be marked as finished."""
    run = open_run(path)
    if (key := written_by_run(run, options)) is not None and has_owner(path / "lock"):
        raise ConfigError(f"{path} trains with {key} and writes to this place itself; repeat the command after its end")
    with exclusive(path, options.to, wait=False), failing_in_one_line(options.to):
        target = _open(run, options)
        sent = target.send(run)
        target.close(run.status)
    kind = "new value" if options.to == "mlflow" else "row"
    return f"{path}: {counted(len(run.rows), 'row')}, {counted(sent, kind)} sent to {target.place}"


def written_by_run(run: SavedRows, options: argparse.Namespace) -> str | None:
    """Return the setting by which the run writes to the place of a replay with `options`, such as `logger.tensorboard=true`; None if it
    does not. For mlflow and trackio always return None: the process beside the run has locked this place (`exclusive`)."""
    logger = run.config.get("logger", {})
    if options.to == "wandb":  # a replay online ends with the removal of the folders that offline launches have written
        return f"logger.wandb={logger['wandb']}" if logger.get("wandb") in ("offline", *(() if options.offline else ("online",))) else None
    return "logger.tensorboard=true" if options.to == "tensorboard" and logger.get("tensorboard") else None


def follow(path: Path, options: argparse.Namespace) -> None:
    """Send the rows of the run directory `path` while the run writes them, until stdin is closed; then send the remaining rows.

    stdin is a pipe from the process of the run, so it is closed when the run ends or is killed. A run that ends writes its status to it.
    Stop signals are ignored. options: result of `parse`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole group of the run, which may log more rows before it ends
    run = open_run(path)
    with exclusive(path, options.to, wait=True), failing_in_one_line(options.to):
        target, seen, pause, ended = _open(run, options), None, 0.0, False
        while not ended:
            ended = bool(select.select([sys.stdin], [], [], pause)[0])
            state, start = [_size(path / f"{name}.jsonl") for name in STREAMS], time.monotonic()
            if state != seen:
                run.read()
                target.send(run)
                seen = state
            pause = max(INTERVAL, SHARE * (time.monotonic() - start))
        target.close(sys.stdin.read() or run.status)


def _open(run: SavedRows, options: argparse.Namespace) -> Target:
    project = options.project or run.config.get("logger", {}).get("wandb_project") or "linnaeus"
    return open_target(options.to, run, uri=options.uri, project=project, offline=options.offline)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextlib.contextmanager
def exclusive(path: Path, target: str, wait: bool) -> Iterator[None]:
    """Return a context manager that holds a lock for (run directory `path`, `target`) while its block runs. The kernel releases the lock if
    the process is killed.

    While another process has the lock, wait if `wait` is True; otherwise raise `ConfigError`. Also raise it if the directory cannot be
    written."""
    try:
        descriptor = no_follow(path / f".replay-{target}.lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise ConfigError(f"RUN: {path} cannot be written ({error.strerror}); copy the run to a folder that you may write to") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            beside = f" (a run that trains with logger.{target}=true has such a process)" if target in FOLLOWED else ""
            raise ConfigError(f"{path}: another process sends its rows to {target}{beside}; repeat the command after its end") from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def failing_in_one_line(target: str) -> Iterator[None]:
    """Return a context manager that turns an exception of its block into a `RunFailed` with a one-line message.

    `ConfigError` and `RunFailed` are raised unchanged. All other exceptions are caught, because each package raises its own, and the
    network adds more. target: name of the destination, for the message."""
    try:
        yield
    except (ConfigError, RunFailed):
        raise
    except Exception as error:
        raise RunFailed(f"--to {target}: {type(error).__name__}: {one_line(error)}; the same command sends the rest") from error


if __name__ == "__main__":
    raise SystemExit(main())
