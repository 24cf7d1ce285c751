"""Runs of several processes on this machine, each under a torchrun of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from linnaeus.launch.base import Job
from linnaeus.launch.process import ProcessHandle, ProcessLauncher


class TorchrunHandle(ProcessHandle):
    """torchrun's agent; its children are the ranks."""

    def ask(self) -> None:
        """Past the agent, to the ranks: asked itself it would give them 30 s to save, then kill them."""
        ranks = children(self.process.pid)
        for pid in ranks or [self.process.pid]:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue  # it has ended meanwhile

    def describe(self) -> str:
        return f"torchrun {self.process.pid}"


class TorchrunLauncher(ProcessLauncher):
    """Up to `at_once` runs at a time, of `processes` processes each."""

    def __init__(self, processes: int, at_once: int) -> None:
        super().__init__(at_once)
        self.processes = processes

    def command(self, job: Job) -> list[str]:
        return ["-m", "linnaeus.launch.agent", "--standalone", f"--nproc-per-node={self.processes}", *job.arguments()]

    def handle(self, process: subprocess.Popen[bytes], slot: int) -> TorchrunHandle:
        return TorchrunHandle(process, slot)


def children(pid: int) -> list[int]:
    """The processes that a process has started; none where the system does not tell."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
