"""Define the interface of all launchers: a `Launcher` starts a `Job` and returns a `Handle` to it.

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
SEE_ABOVE = "its own lines are above"  # end of the line of `torchrun.py` after a failed process rank
POLL_SECONDS = 0.1  # between two polls of all running jobs


@dataclass(frozen=True)
class Job:
    """One run to start: `python main.py [--config-dir config_dir] overrides...`, or `python -m linnaeus ...` of an installed package.

    overrides: settings as on a command line, without the settings of `sweep` and `launch`; `launch=process` and `~launch.<key>` may be
    added. directory: the run directory of these settings. config_dir: a folder with further config groups; None: only conf/. log: the file
    to which stdout and stderr are appended, in an existing folder; None: the console for processes, slurm/job.log in the run directory for
    SLURM."""

    overrides: list[str]
    directory: Path
    config_dir: str | None
    log: Path | None

    def arguments(self) -> list[str]:
        """Return the command-line arguments of `python` that start the run."""
        return [*PROGRAM, *(["--config-dir", self.config_dir] if self.config_dir else []), *self.overrides]


class Handle(Protocol):
    """Handle of a started job. All methods return at once."""

    def poll(self) -> int | None:
        """Return None while the job runs, then its exit status: 0 finished, 2 mistake of the user, 75 saved and stopped, any other
        number failed."""

    def stop(self) -> None:
        """Ask the run to save and end. A second call kills the run."""

    def describe(self) -> str:
        """Return a short name of the job for messages, such as `process 123`."""


class Launcher(Protocol):
    """An object that starts jobs, each as a process, under torchrun or as a SLURM job."""

    def start(self, job: Job) -> Handle:
        """Start `job` and return its handle at once.

        Raise `ConfigError` if no job can be started with these settings, and `OSError` if this job cannot be started."""


def signal_name(status: int) -> str | None:
    """Return the name of the signal that ended a process, such as SIGKILL, from its exit status 128 + signal number; None for any other
    status."""
    try:
        return signal.Signals(status - 128).name
    except ValueError:
        return None
