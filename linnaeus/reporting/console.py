"""Lines for a person: the logger `linnaeus` on stdout and in train.log, and live progress where there is a terminal.

Lines written before the run directory exists are kept and open train.log, so that a mistake found in between leaves no file.
A live bar is drawn on a terminal only, never into a pipe or a file; everywhere else the report lines of
`linnaeus.progress` are all the progress there is. rich is imported when a live display starts.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO, TextIO

LOGGER = logging.getLogger("linnaeus")
KEPT = 10_000  # lines of the log held in memory while they cannot be written
REFRESH = 0.1  # seconds between two updates of the live display


class _Lines(logging.Formatter):
    """`12:03:01 text`, and `12:03:01 WARNING text` from warnings on."""

    def __init__(self, clock: str) -> None:
        super().__init__(datefmt=clock)

    def format(self, record: logging.LogRecord) -> str:
        mark = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        text = f"{self.formatTime(record, self.datefmt)} {mark}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Stdout(logging.Handler):
    """Writes to whatever `sys.stdout` is at that moment: a live display puts itself there and moves lines above its bars."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stdout, flush=True)
        except BrokenPipeError:
            self.setLevel(logging.CRITICAL + 1)  # the reader of the pipe has left; train.log goes on
        except OSError:
            pass  # redirected to a file on a disk that is full: train.log keeps the line until there is room


class _LogFile(logging.Handler):
    """Keeps its lines until a file is attached, then appends to it; also while the disk takes none (the last `KEPT` of them)."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=KEPT)
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
                self._file.write(self._lines[0].encode())
            except OSError:
                return  # the console has the line; the file gets it once there is room
            self._lines.popleft()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()


def setup_logging(log_file: Path | str | None = None, is_master: bool = True, style: str = "auto") -> logging.Logger:
    """The logger `linnaeus`, set up anew: stdout and train.log on rank 0, errors to stderr on the others.

    `style` is `logger.console`; with `quiet` the console has warnings only, the file everything. Without `log_file`, lines wait
    for `attach_log_file`.
    """
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
        handler.close()
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    console: logging.Handler = _Stdout() if is_master else logging.StreamHandler()
    console.setLevel((logging.WARNING if style == "quiet" else logging.INFO) if is_master else logging.ERROR)
    console.setFormatter(_Lines("%H:%M:%S"))
    LOGGER.addHandler(console)
    if is_master:
        file = _LogFile()
        file.setFormatter(_Lines("%Y-%m-%d %H:%M:%S"))
        LOGGER.addHandler(file)
        if log_file is not None:
            file.attach(Path(log_file))
    return LOGGER


def attach_log_file(path: Path | str) -> None:
    """From here on lines are appended to `path`, those so far first. Nothing on ranks other than 0."""
    for handler in LOGGER.handlers:
        if isinstance(handler, _LogFile):
            handler.attach(Path(path))


def is_terminal() -> bool:
    """Whether stdout is a terminal that can redraw lines."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _restore_streams(stdout: TextIO, stderr: TextIO) -> None:
    """In a forked loader worker: print past the display, whose lock the refreshing thread may have held at the fork."""
    sys.stdout, sys.stderr = stdout, stderr


class ProgressDisplay:
    """Progress of the run: live bars on a terminal with `style` auto or rich, nothing by itself elsewhere.

    `update(step, text)` may be called at every step (0.2 us where nothing is drawn, a clock read between refreshes otherwise);
    `line(text)` is for report lines and always reaches the log; `validation(name, batches)` starts a second bar.
    """

    def __init__(self, total_steps: int, style: str = "auto", is_master: bool = True, start_step: int = 0) -> None:
        self.total_steps, self.start_step = total_steps, start_step
        self.live = is_master and style in ("auto", "rich") and is_terminal()
        self._bars: Any = None
        self._task: Any = None
        self._pass: Any = None
        self._next = 0.0

    def start(self) -> None:
        if not self.live:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Remaining

        columns = (TextColumn("[bold]{task.description}"), BarColumn(None), TaskProgressColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TextColumn("left"), Remaining(), TextColumn("{task.fields[text]}"))
        self._bars = Progress(*columns, *times, console=Console(file=sys.stdout), refresh_per_second=4, expand=True)
        self._task = self._bars.add_task("training", total=self.total_steps, completed=self.start_step, text="")
        plain = sys.stdout, sys.stderr
        self._bars.start()
        os.register_at_fork(after_in_child=lambda: _restore_streams(*plain))

    def update(self, step: int, text: str = "") -> None:
        """`step` optimizer steps are done; `text` stands right of the bar, such as `loss 1.234`."""
        if self._bars is None:
            return
        now = time.monotonic()
        if now >= self._next or step == self.total_steps:
            self._next = now + REFRESH
            self._bars.update(self._task, completed=step, **({"text": text} if text else {}))

    def validation(self, name: str, batches: int) -> None:
        """A bar for a validation pass of so many batches, in place of the last one."""
        if self._bars is not None:
            self.end_validation()
            self._pass = self._bars.add_task(name, total=batches, text="")

    def validated(self, batches: int) -> None:
        """So many batches of the pass are done."""
        if self._bars is not None and self._pass is not None:
            self._bars.update(self._pass, completed=batches)

    def end_validation(self) -> None:
        if self._bars is not None and self._pass is not None:
            self._bars.remove_task(self._pass)
            self._pass = None

    def line(self, text: str) -> None:
        """A line above the bars and in train.log."""
        LOGGER.info(text)

    def stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def __enter__(self) -> ProgressDisplay:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
