"""Set up the logger `linnaeus`: every line is written to train.log, and `logger.console` sets which lines are also printed.

Three levels are used besides warnings and errors: DEBUG for full reports, INFO for short lines on the progress, RESULT for the result at
the end of a run. Lines logged before the run directory exists wait in memory and become the first lines of train.log. If an error occurs
before, no file is left.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from linnaeus.errors import escaped
from linnaeus.files import no_follow, to_utf8
from linnaeus.streams import discard_output, fit_terminal

LOGGER = logging.getLogger("linnaeus")
RESULT = logging.INFO + 5  # level of the result of a run, which `quiet` prints too
CONSOLE_ONLY = {"console_only": True}  # `extra` of a short line whose full form is logged to train.log
# Value of `logger.console` -> lowest level that is printed.
LEVELS = {"auto": logging.INFO, "live": logging.INFO, "plain": logging.INFO, "quiet": RESULT, "full": logging.DEBUG}
TIME = len("12:03:01 ")  # columns of the time stamp on the console
MAX_WAITING_LINES = 10_000  # kept in memory while they cannot be written


class _LineFormatter(logging.Formatter):
    """Formatter of log records as `12:03:01 text`, from level WARNING on as `12:03:01 WARNING text`.

    datefmt: format of the time. stamp_results: False leaves out the time of records of level RESULT. hidden: {text: text shown instead}.
    Control characters of a message are escaped, except line breaks."""

    def __init__(self, datefmt: str, stamp_results: bool, hidden: Mapping[str, str]) -> None:
        super().__init__(datefmt=datefmt)
        self.stamp_results, self.hidden = stamp_results, hidden

    def format(self, record: logging.LogRecord) -> str:
        message = "\n".join(escaped(line) for line in self._hide(record.getMessage()).split("\n"))
        if record.levelno == RESULT and not self.stamp_results:
            return message
        level = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        text = f"{self.formatTime(record, self.datefmt)} {level}{message}"
        return f"{text}\n{self._hide(self.formatException(record.exc_info))}" if record.exc_info else text

    def _hide(self, text: str) -> str:
        for value, shown in self.hidden.items():
            text = text.replace(value, shown)
        return text


class _StdoutHandler(logging.Handler):
    """Handler that prints to the current `sys.stdout`. A live display replaces `sys.stdout` in order to print lines above its panel.

    On a terminal, the first line of a record is wrapped between words. Further lines (tables) and records of level RESULT (paths and
    commands, which people copy) are not wrapped. style: value of `logger.console`."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if record.levelno != RESULT and sys.stdout.isatty():
                first, *table = text.split("\n")
                text = "\n".join([fit_terminal(first, TIME), *table])
            print(text, file=sys.stdout, flush=True)
        except BrokenPipeError:
            discard_output(sys.stdout)
            self.setLevel(logging.CRITICAL + 1)  # the reader has closed the pipe; train.log still gets the lines
        except OSError:
            pass  # stdout is a file on a full disk; train.log gets the line


class _LogFileHandler(logging.Handler):
    """Handler that appends lines of at least `level` to a file. Lines wait in memory while the disk is full, and before the file is
    attached.

    is_master: False on ranks other than 0. Their file is made at the first line after `attach`. Earlier lines, about the settings, are the
    same on every rank, so rank 0 has them."""

    def __init__(self, is_master: bool) -> None:
        super().__init__(logging.DEBUG if is_master else logging.WARNING)
        self.is_master = is_master
        self._lines: deque[str] = deque(maxlen=MAX_WAITING_LINES)
        self._path: Path | None = None
        self._file: BinaryIO | None = None

    def attach(self, path: Path) -> None:
        self._path = path
        if self.is_master:
            self._open(path)
            self._write()

    def _open(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0, opener=no_follow)  # noqa: SIM115 (open as long as the run)

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_master or self._path is not None:
            self._lines.append(self.format(record) + "\n")
            self._write()

    def _write(self) -> None:
        while self._path is not None and self._lines:
            try:
                if self._file is None:
                    self._open(self._path)
                assert self._file is not None
                self._file.write(to_utf8(self._lines[0]))
            except OSError:
                return  # written with the next line for which there is room
            self._lines.popleft()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()


def _is_not_console_only(record: logging.LogRecord) -> bool:
    return not getattr(record, "console_only", False)


def setup_logging(is_master: bool = True, style: str = "auto", hidden: Mapping[str, str] | None = None) -> logging.Logger:
    """Replace the handlers of the logger `linnaeus` and return the logger. Rank 0 logs to stdout and train.log. Other ranks log errors to
    stderr, and warnings and errors to a file of their own, which is not made without such a line.

    style: value of `logger.console`, a key of `LEVELS`. hidden: {value of an environment variable that must not be logged: text shown
    instead} (`config/environment.py`). Lines are written to the file once `attach_log_file` is called."""
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
        handler.close()
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.propagate = False
    console: logging.Handler = _StdoutHandler(style) if is_master else logging.StreamHandler()
    console.setLevel(LEVELS[style] if is_master else logging.ERROR)
    console.setFormatter(_LineFormatter("%H:%M:%S", stamp_results=False, hidden=hidden or {}))
    if style == "full":
        console.addFilter(_is_not_console_only)
    LOGGER.addHandler(console)
    file = _LogFileHandler(is_master)
    file.setFormatter(_LineFormatter("%Y-%m-%d %H:%M:%S", stamp_results=True, hidden=hidden or {}))
    file.addFilter(_is_not_console_only)
    LOGGER.addHandler(file)
    return LOGGER


def draws_panel() -> bool:
    """Return True if this process may draw a live panel: in a command, or on rank 0 of a run with `logger.console` auto or live, on a
    terminal."""
    styles = [handler.style for handler in LOGGER.handlers if isinstance(handler, _StdoutHandler)]
    return (not LOGGER.handlers or styles in (["auto"], ["live"])) and is_terminal()


def is_terminal() -> bool:
    """Return True if stdout is a terminal on which rows can be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def attach_log_file(path: Path | str) -> None:
    """Write the lines logged so far and all later lines to the end of the file `path`. On ranks other than 0 the
    file is made at the first line."""
    for handler in LOGGER.handlers:
        if isinstance(handler, _LogFileHandler):
            handler.attach(Path(path))
