"""The logger `linnaeus`, which writes to stdout and train.log, and the live progress bar on a terminal.

Lines logged before the run directory exists wait in memory and are the first lines of train.log, so an error before that leaves no
file. The bar is drawn on a terminal only; a pipe or a file gets progress reports only. rich is imported when it is drawn.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

from linnaeus.files import to_utf8
from linnaeus.streams import discard_output

LOGGER = logging.getLogger("linnaeus")
MAX_WAITING_LINES = 10_000  # kept in memory while they cannot be written
REFRESH = 0.1  # seconds between two updates of the live display


class _LineFormatter(logging.Formatter):
    """Formats records as `12:03:01 text`, from level WARNING on as `12:03:01 WARNING text`."""

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        text = f"{self.formatTime(record, self.datefmt)} {level}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _StdoutHandler(logging.Handler):
    """Writes to the current `sys.stdout`, which a live display replaces to print lines above its bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stdout, flush=True)
        except BrokenPipeError:
            discard_output(sys.stdout)
            self.setLevel(logging.CRITICAL + 1)  # the reader has closed the pipe; train.log still gets the lines
        except OSError:
            pass  # stdout is a file on a full disk; train.log gets the line


class _LogFileHandler(logging.Handler):
    """Appends lines to a file. Lines wait in memory before the file is attached and while the disk is full."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=MAX_WAITING_LINES)
        self._file: BinaryIO | None = None

    def attach(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (open as long as the run)
        self._write()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record) + "\n")
        self._write()

    def _write(self) -> None:
        while self._file is not None and self._lines:
            try:
                self._file.write(to_utf8(self._lines[0]))
            except OSError:
                return  # written with the next line for which there is room
            self._lines.popleft()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()


def setup_logging(is_master: bool = True, style: str = "auto") -> logging.Logger:
    """Replace the handlers of the logger `linnaeus` and return it: stdout and train.log on rank 0, errors to stderr on other ranks.

    `style` is `logger.console`; `quiet` prints warnings only and still writes every line to train.log, once `attach_log_file` is called."""
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
        handler.close()
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    console: logging.Handler = _StdoutHandler() if is_master else logging.StreamHandler()
    console.setLevel((logging.WARNING if style == "quiet" else logging.INFO) if is_master else logging.ERROR)
    console.setFormatter(_LineFormatter(datefmt="%H:%M:%S"))
    LOGGER.addHandler(console)
    if is_master:
        file = _LogFileHandler()
        file.setFormatter(_LineFormatter(datefmt="%Y-%m-%d %H:%M:%S"))
        LOGGER.addHandler(file)
    return LOGGER


def attach_log_file(path: Path | str) -> None:
    """Append the lines so far and all later ones to `path`, on rank 0 only."""
    for handler in LOGGER.handlers:
        if isinstance(handler, _LogFileHandler):
            handler.attach(Path(path))


class ProgressDisplay:
    """The live bar of a run, on a terminal with `style` auto or rich, while the block of `with` runs.

    `update` may be called at every step: it takes 0.2 us where nothing is drawn, and reads a clock between refreshes otherwise."""

    def __init__(self, total_steps: int, style: str = "auto", is_master: bool = True) -> None:
        self.total_steps = total_steps
        redraws = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.live = is_master and style in ("auto", "rich") and redraws
        self._bar: Any = None
        self._task: Any = None
        self._next_refresh = 0.0

    def __enter__(self) -> ProgressDisplay:
        if not self.live:
            return self
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Remaining

        columns = (TextColumn("[bold]{task.description}"), BarColumn(None), TaskProgressColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TextColumn("left"), Remaining())
        self._bar = Progress(*columns, *times, console=Console(file=sys.stdout), refresh_per_second=4, expand=True)
        self._task = self._bar.add_task("training", total=self.total_steps)
        stdout, stderr = sys.stdout, sys.stderr
        self._bar.start()

        def bypass() -> None:  # in a forked loader worker: the refresh thread may have held the display's lock at the fork
            sys.stdout, sys.stderr = stdout, stderr

        os.register_at_fork(after_in_child=bypass)
        return self

    def update(self, step: int) -> None:
        """Show that `step` updates are done."""
        if self._bar is None:
            return
        now = time.monotonic()
        if now >= self._next_refresh or step == self.total_steps:
            self._next_refresh = now + REFRESH
            self._bar.update(self._task, completed=step)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
