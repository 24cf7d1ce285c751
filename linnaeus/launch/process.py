"""Runs on this machine: `python main.py ...` in its own process, which is killed when the parent process ends.

Each run has its own session, so Ctrl-C in the terminal reaches only the parent, which forwards it exactly once. Parallel runs on one
machine get separate GPUs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from linnaeus.distributed import die_with_parent
from linnaeus.launch.launcher import Handle, Job


class ProcessHandle:
    """A process and its slot, which determines its GPUs."""

    def __init__(self, process: subprocess.Popen[bytes], slot: int) -> None:
        self.process, self.slot = process, slot
        self._stop_requested = False

    def poll(self) -> int | None:
        status = self.process.poll()
        return status if status is None or status >= 0 else 128 - status

    def stop(self) -> None:
        if self.poll() is not None:
            return
        if not self._stop_requested:
            self._stop_requested = True
            self.request_stop()
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the group contains the loader workers

    def request_stop(self) -> None:
        """Send SIGTERM to the run."""
        self.process.send_signal(signal.SIGTERM)

    def describe(self) -> str:
        return f"process {self.process.pid}"


class ProcessLauncher:
    """Starts at most `max_parallel` runs at a time, one process each."""

    processes = 1
    handle_type: type[ProcessHandle] = ProcessHandle

    def __init__(self, max_parallel: int) -> None:
        self.max_parallel = max_parallel
        self._handles: list[ProcessHandle] = []

    def start(self, job: Job) -> Handle:
        self._handles = [handle for handle in self._handles if handle.poll() is None]
        slot = min(set(range(self.max_parallel)) - {handle.slot for handle in self._handles})
        with contextlib.ExitStack() as files:
            output = files.enter_context(open(job.log, "ab")) if job.log is not None else None
            process = subprocess.Popen(
                [sys.executable, *self.command(job)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output and subprocess.STDOUT,
                env=self._environment(slot),
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        self._handles.append(self.handle_type(process, slot))
        return self._handles[-1]

    def command(self, job: Job) -> list[str]:
        """Return the arguments of `python`."""
        return job.arguments()

    def _environment(self, slot: int) -> dict[str, str]:
        gpus = visible_gpus(os.environ) if self.max_parallel > 1 else []
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(assigned_gpus(gpus, slot, self.processes))} if gpus else dict(os.environ)


def visible_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """Return the GPUs of this process in the form of CUDA_VISIBLE_DEVICES, without loading CUDA: the parent's context would occupy memory
    on each GPU."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    return [str(i) for i, _ in enumerate(path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))]


def assigned_gpus(gpus: Sequence[str], slot: int, processes: int) -> list[str]:
    """Return the GPUs of the run in `slot` (from 0), one per process, round robin: with too few GPUs runs share them."""
    return list(dict.fromkeys(gpus[(slot * processes + i) % len(gpus)] for i in range(processes)))
