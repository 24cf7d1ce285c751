"""Guard the standard streams of a command: closed ones, pipes whose reader has ended, consoles that cannot encode a character."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import textwrap
from typing import TextIO


def prepare_streams() -> None:
    """Connect closed standard streams to the null device, and print characters that a console cannot encode as escapes.

    Otherwise the next file that is opened has the number of the closed stream, and whatever writes to the stream writes into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open_null(number)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 (open as long as the program)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_output(stream: TextIO) -> None:
    """Connect a stream that can no longer be written to the null device, so that nothing is left to write when the interpreter ends."""
    with contextlib.suppress(OSError):  # a stream without a file descriptor, as in a notebook
        _open_null(stream.fileno())


def flush_or_discard(stream: TextIO) -> bool:
    """Flush a stream. If that fails, call `discard_output` and return False."""
    try:
        stream.flush()
    except OSError:
        discard_output(stream)
        return False
    return True


def fit_terminal(line: str, indent: int) -> str:
    """Return a line broken between words at the width of the terminal, with `indent` blanks before its further parts."""
    columns = shutil.get_terminal_size().columns
    if len(line) <= columns:
        return line
    return textwrap.fill(line, max(columns, 20), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def print_page(text: str, prose: bool = True) -> None:
    """Print a page on stdout, on a terminal with the long lines of `prose` broken. Its reader may close the pipe early (`| head`)."""
    if prose and sys.stdout.isatty():
        text = "\n".join(fit_terminal(line, len(line) - len(line.lstrip())) for line in text.split("\n"))
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard_output(sys.stdout)


def _open_null(number: int) -> None:
    """Open the null device under the number of a file descriptor, which child processes inherit."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, number)
        os.close(null)
