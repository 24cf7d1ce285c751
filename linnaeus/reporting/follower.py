"""Feed MLflow or trackio while a run trains, by a process beside it: `linnaeus replay RUN --to TARGET --follow`.

The packages and their network stay out of the training process: they cannot block it, and if the process is killed the run goes on. The
process reads the rows from the files of the run directory, so nothing is queued here. Its stdin is a pipe that nobody writes to. The pipe
ends when the run closes it or is killed; the process then sends the rows that are left and exits.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from linnaeus.reporting.rows import Row
from linnaeus.reporting.soft_failure import SoftFailure

END_TIMEOUT = 30.0  # seconds for which the end of the run waits for the last rows; the process continues alone after that


class Follower:
    """Sink of rows that starts the process and watches it. `target` is mlflow or trackio; `options` are further words of its command, and
    `environment` are variables for it (an address with a password must not be on a command line)."""

    def __init__(self, directory: Path, target: str, options: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, "-m", "linnaeus", "replay", str(directory), "--to", target, "--follow", *options]
        self._environment, self._target = {**os.environ, **(environment or {})}, target
        self._output = Path(directory) / f"{target}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._soft = SoftFailure(f"logger.{target}", f"{target} gets no more rows in this launch (`linnaeus replay` sends the rest)")

    def start(self, global_step: int, earlier: Iterable[Row]) -> None:
        """Start the process, which reads the rows up to `global_step` from the files."""
        with self._soft.guard(), open(self._output, "wb") as output:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
            )

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None:
        """Log a line if the process has ended. The row itself is in the file already."""
        self._check()

    def sync(self) -> None:
        self._check()

    def close(self) -> None:
        """Let the process send the last rows, for at most `END_TIMEOUT` seconds."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._soft.fail(f"the last rows are not sent after {END_TIMEOUT:.0f} s; process {self._process.pid} goes on")
        self._check()
        self._process = None

    def _check(self) -> None:
        if self._process is not None and self._process.poll():  # costs a system call, 2 us; None: running, 0: at its end
            lines = self._output.read_text(errors="replace").strip().splitlines() if self._output.exists() else []
            self._soft.fail(lines[-1] if lines else f"its process has ended with status {self._process.returncode}")
