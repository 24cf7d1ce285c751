"""What starts a run and what is started: a `Launcher` takes a `Job` and gives a `Handle`.

`linnaeus.sweep` decides what runs and when; a launcher knows how. It keeps nothing about sweeps, and one job's end is no business
of another's.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from linnaeus.config.load import CONF

MAIN = CONF.parent / "main.py"


@dataclass(frozen=True)
class Job:
    """One run: `python main.py [--config-dir config_dir] overrides...`.

    `overrides` are settings as on a command line, without those of `launch` and `sweep`; `directory` is the run directory they
    lead to; stdout and stderr are appended to `log`, whose folder exists. `log: None` is a run on its own: they go to the console.
    """

    overrides: list[str]
    directory: Path
    config_dir: str | None
    log: Path | None

    def arguments(self) -> list[str]:
        """What follows `python`."""
        return [str(MAIN), *(["--config-dir", self.config_dir] if self.config_dir else []), *self.overrides]


class Handle(Protocol):
    """A started job."""

    def poll(self) -> int | None:
        """None while it runs; then 0 (finished), 2 (a user's mistake), 75 (saved and stopped), or another number (failed). Returns
        at once."""

    def stop(self) -> None:
        """Ask it to save and end; a second call ends it at once. Returns at once."""

    def describe(self) -> str:
        """What to look for in a list of processes or jobs."""


class Launcher(Protocol):
    def start(self, job: Job) -> Handle:
        """Start `job` and return at once. `ConfigError` when it cannot be started at all."""

    def close(self) -> None:
        """Let go of what the launcher holds; every handle has ended."""


def ended_by_signal(status: int) -> str | None:
    """The name of the signal in an exit status of 128 + number."""
    try:
        return signal.Signals(status - 128).name
    except ValueError:
        return None
