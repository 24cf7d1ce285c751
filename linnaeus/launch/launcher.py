"""Define the interface of all launchers: a `Launcher` starts a `Job` and returns a `Handle`.

`linnaeus.sweep` decides which runs start and when. A launcher has no state about sweeps, and its jobs do not affect each other.
"""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from linnaeus.config.load import CONF

# The program of a run. In an installed package main.py is in the package directory, and Python would put that directory on sys.path, where
# its modules `config` and `data` hide a user's own.
PROGRAM = ["-m", "linnaeus"] if CONF.parent == Path(__file__).resolve().parents[1] else [str(CONF.parent / "main.py")]
EXIT_FINISHED, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 75  # of a run; 2: a mistake in the command; 75: saved and stopped
POLL_SECONDS = 0.1  # between two polls of all running jobs


@dataclass(frozen=True)
class Job:
    """One run: `python main.py [--config-dir config_dir] overrides...`, or `python -m linnaeus ...` of an installed package.

    overrides: settings as on a command line. Those of `sweep` and `launch` are removed; `launch=process` and `~launch.<key>` may be added.
    directory: the run directory of these settings. log: the file to which stdout and stderr are appended, in an existing folder;
    None: the console for processes, slurm/job.log in the run directory for SLURM."""

    overrides: list[str]
    directory: Path
    config_dir: str | None
    log: Path | None

    def arguments(self) -> list[str]:
        """Return the arguments of `python`."""
        return [*PROGRAM, *(["--config-dir", self.config_dir] if self.config_dir else []), *self.overrides]


class Handle(Protocol):
    """A started job. No method waits."""

    def poll(self) -> int | None:
        """Return None while the job runs, then its exit status: 0, 2, 75 as above; any other number means that the run failed."""

    def stop(self) -> None:
        """Request that the run saves and ends. The second call kills it."""

    def describe(self) -> str:
        """Return the name of the job in a list of processes or jobs, such as `process 123`."""


class Launcher(Protocol):
    """Starts jobs."""

    def start(self, job: Job) -> Handle:
        """Start `job` and return at once. Raise `ConfigError` if no job can be started with these settings, OSError if this one cannot."""


def signal_name(status: int) -> str | None:
    """Return the name of the signal in an exit status of 128 + number, None for another status."""
    try:
        return signal.Signals(status - 128).name
    except ValueError:
        return None
