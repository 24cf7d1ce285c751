"""Commands on a terminal of a given width."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def on_terminal(command: Sequence[str], columns: int) -> tuple[str, str]:
    """Run a command that must succeed on a terminal. Return everything that it wrote to stdout and to stderr."""
    own, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command, stdout=other, stderr=subprocess.PIPE, text=True, env={**env, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    )
    os.close(other)
    shown = b""
    with contextlib.suppress(OSError):  # Linux: the last writer has closed the terminal
        while chunk := os.read(own, 65536):
            shown += chunk
    _, errors = process.communicate()
    os.close(own)
    assert process.returncode == 0, errors
    return shown.decode(), errors
