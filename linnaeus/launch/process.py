"""Runs on this machine: `python main.py ...` in a process of its own, which never outlives the one that started it.

A session of its own keeps the terminal's Ctrl-C away: the parent passes a request to stop on exactly once. Where several runs share
the machine, each gets GPUs of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
from typing import IO

from linnaeus.distributed import die_with_parent
from linnaeus.errors import ConfigError
from linnaeus.launch.base import Handle, Job
from linnaeus.launch.gpus import share, visible_gpus


class ProcessHandle:
    """A process and the slot it occupies."""

    def __init__(self, process: subprocess.Popen[bytes], slot: int) -> None:
        self.process, self.slot = process, slot
        self._asked = False

    def poll(self) -> int | None:
        status = self.process.poll()
        return status if status is None or status >= 0 else 128 - status

    def stop(self) -> None:
        if self.poll() is not None:
            return
        if self._asked:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # the loader workers with it
            return
        self._asked = True
        self.ask()

    def ask(self) -> None:
        """Pass the request to stop on."""
        self.process.send_signal(signal.SIGTERM)

    def describe(self) -> str:
        return f"process {self.process.pid}"


class ProcessLauncher:
    """Up to `at_once` runs at a time, of one process each."""

    processes = 1

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._handles: list[ProcessHandle] = []

    def start(self, job: Job) -> Handle:
        self._handles = [handle for handle in self._handles if handle.poll() is None]
        slot = min(set(range(self.at_once)) - {handle.slot for handle in self._handles})
        with contextlib.ExitStack() as files:
            output = files.enter_context(_appended(job)) if job.log is not None else None
            process = subprocess.Popen(
                [sys.executable, *self.command(job)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output and subprocess.STDOUT,
                env=self._environment(slot),
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        self._handles.append(self.handle(process, slot))
        return self._handles[-1]

    def command(self, job: Job) -> list[str]:
        """What follows `python`."""
        return job.arguments()

    def handle(self, process: subprocess.Popen[bytes], slot: int) -> ProcessHandle:
        return ProcessHandle(process, slot)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _environment(self, slot: int) -> dict[str, str]:
        gpus = visible_gpus(os.environ) if self.at_once > 1 else []
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(share(gpus, slot, self.processes))} if gpus else dict(os.environ)


def _appended(job: Job) -> IO[bytes]:
    assert job.log is not None
    try:
        return open(job.log, "ab")
    except OSError as error:
        raise ConfigError(f"run.root: {job.log} cannot be written ({error.strerror}); choose a directory you may write to") from None
