"""Make stdin, stdout and stderr safe to use: closed streams, pipes whose reader has ended, consoles that cannot encode a character."""

from __future__ import annotations

import contextlib
import io
import os
import select
import shutil
import sys
import textwrap
from typing import TextIO


def prepare_streams() -> None:
    """Connect each closed standard stream to the null device. Make characters that a console cannot encode print as escapes.

    Without this, the next file that the program opens would get the descriptor of a closed standard stream, and text for the stream would
    be written into that file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open_null(number)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 (open as long as the program)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_output(stream: TextIO) -> None:
    """Connect `stream` to the null device after a write has failed, so that the interpreter does not fail again when it flushes at exit."""
    with contextlib.suppress(OSError):  # a stream without a file descriptor, as in a notebook
        _open_null(stream.fileno())


def flush_or_discard(stream: TextIO) -> bool:
    """Flush `stream` and return True. If that fails, call `discard_output` and return False."""
    try:
        stream.flush()
    except OSError:
        discard_output(stream)
        return False
    return True


def reader_ended(stream: TextIO) -> bool:
    """Return True if `stream` is a pipe whose reader has ended.

    Flushing does not always fail then: a failed write of more than the buffer leaves nothing to flush."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # errors are reported without being asked for
    except OSError:  # a stream without a file descriptor, as in a notebook
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def fit_terminal(line: str, indent: int) -> str:
    """Return `line` wrapped between words at the width of the terminal. Each further line of the result begins with `indent` spaces."""
    columns = shutil.get_terminal_size().columns
    if len(line) <= columns:
        return line
    return textwrap.fill(line, max(columns, 20), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def print_page(text: str, prose: bool = True) -> None:
    """Print `text` on stdout. A reader that closes the pipe early (`| head`) is not an error.

    `prose=True` wraps long lines if stdout is a terminal; use False for YAML."""
    if prose and sys.stdout.isatty():
        text = "\n".join(fit_terminal(line, len(line) - len(line.lstrip())) for line in text.split("\n"))
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard_output(sys.stdout)


def _open_null(number: int) -> None:
    """Open the null device as file descriptor `number`. Child processes inherit the descriptor."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, number)
        os.close(null)
