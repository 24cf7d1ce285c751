"""The standard streams of a command: closed ones, pipes whose reader has ended, consoles that cannot encode a character."""

from __future__ import annotations

import contextlib
import io
import os
import sys
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


def print_page(text: str) -> None:
    """Print a page on stdout; its reader may close the pipe early (`| head`)."""
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
