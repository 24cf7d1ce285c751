"""Send metric rows to MLflow or trackio while a run trains, from a second process: `linnaeus replay RUN --to TARGET --follow`.

The training process does not import these packages and makes no network calls, so they cannot block it. If the second process is killed,
training continues. The second process reads the rows from the files of the run directory, so no queue of rows is needed. Its stdin is a
pipe to which nothing is written. When the run closes the pipe or is killed, the second process sends the remaining rows and exits.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from linnaeus.reporting.sinks.log_sinks import Row
from linnaeus.reporting.sinks.soft_failure import SoftFailure

END_TIMEOUT = 30.0  # seconds for which the end of the run waits for the last rows; the process continues alone after that


class Follower:
    """Destination of metric rows that starts a process `linnaeus replay ... --follow` to send the rows, and checks that it has not failed.

    directory: run directory. target: mlflow or trackio. options: further arguments of the command. environment: further environment
    variables of the process. An address with a password is passed in `environment`, because other users can read a command line."""

    def __init__(self, directory: Path, target: str, options: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, "-m", "linnaeus", "replay", str(directory), "--to", target, "--follow", *options]
        self._environment, self._target = {**os.environ, **(environment or {})}, target
        self._output = Path(directory) / f"{target}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._soft = SoftFailure(f"logger.{target}", f"{target} gets no more rows in this launch (`linnaeus replay` sends the rest)")

    def start(self, global_step: int, earlier: Iterable[Row]) -> None:
        """Start the process; if that fails, log a warning.

        The arguments are not used: the process reads all rows from metrics.jsonl and timings.jsonl, which end at `global_step` now."""
        with self._soft.guard(), open(self._output, "wb") as output:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
            )

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None:
        """Check the process: if it has ended with an error, log a warning, once. The arguments are not used: the process reads the row from
        its file."""
        self._check()

    def sync(self) -> None:
        self._check()

    def close(self, status: str = "running") -> None:
        """Pass `status` to the process and close the pipe, so that the process sends the last rows and ends. Wait for its end.

        After `END_TIMEOUT` seconds, log a warning and let the process continue alone."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError), self._process.stdin as pipe:
            pipe.write(status.encode())  # summary.json of a finished run is written later
        try:
            self._process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._soft.fail(f"the last rows are not sent after {END_TIMEOUT:.0f} s; process {self._process.pid} goes on")
        self._check()
        self._process = None

    def _check(self) -> None:
        if self._process is not None and self._process.poll():  # costs a system call, 2 us; None: running, 0: at its end
            lines = []
            with contextlib.suppress(OSError):
                lines = self._output.read_text(errors="replace").strip().splitlines()
            self._soft.fail(lines[-1] if lines else f"its process has ended with status {self._process.returncode}")
