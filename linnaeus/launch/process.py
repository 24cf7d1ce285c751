"""Start runs on this machine, each as one process or under one torchrun. A run is killed when the parent process ends.

Each run has its own session, so Ctrl-C in the terminal reaches only the parent, which forwards it exactly once. Parallel runs on one
machine get separate GPUs.
"""

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
from linnaeus.files import no_follow
from linnaeus.launch.launcher import Handle, Job


class ProcessHandle:
    """Handle of a started process: a run, or the torchrun of a run.

    `slot`: number of the run among the parallel runs, from 0, which determines its GPUs."""

    def __init__(self, process: subprocess.Popen[bytes], slot: int, is_torchrun: bool) -> None:
        self.process, self.slot, self.is_torchrun = process, slot, is_torchrun
        self._stop_requested = False

    def poll(self) -> int | None:
        status = self.process.poll()
        return status if status is None or status >= 0 else 128 - status

    def stop(self) -> None:
        if self.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            if self._stop_requested:
                os.killpg(self.process.pid, signal.SIGKILL)  # the group contains the loader workers
                return
            self._stop_requested = True
            # torchrun would give its process ranks only 30 s to save, then kill them
            for pid in (children(self.process.pid) if self.is_torchrun else []) or [self.process.pid]:
                os.kill(pid, signal.SIGTERM)

    def describe(self) -> str:
        return f"{'torchrun' if self.is_torchrun else 'process'} {self.process.pid}"


class ProcessLauncher:
    """Launcher of at most `max_parallel` runs at a time on this machine.

    `processes`: number of processes of each run, started by torchrun; None: one process without torchrun."""

    def __init__(self, max_parallel: int, processes: int | None = None) -> None:
        self.max_parallel, self.processes = max_parallel, processes
        self._handles: list[ProcessHandle] = []

    def start(self, job: Job) -> Handle:
        self._handles = [handle for handle in self._handles if handle.poll() is None]
        slot = min(set(range(self.max_parallel)) - {handle.slot for handle in self._handles})
        with contextlib.ExitStack() as files:
            output = files.enter_context(open(job.log, "ab", opener=no_follow)) if job.log is not None else None
            process = subprocess.Popen(
                [sys.executable, *self.command(job)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output and subprocess.STDOUT,
                env=self._environment(slot),
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        self._handles.append(ProcessHandle(process, slot, self.processes is not None))
        return self._handles[-1]

    def command(self, job: Job) -> list[str]:
        """Return the command-line arguments of `python` that start the run of `job`, with torchrun if it has several processes."""
        if self.processes is None:
            return job.arguments()
        return ["-m", "linnaeus.launch.torchrun", "--standalone", f"--nproc-per-node={self.processes}", *job.arguments()]

    def _environment(self, slot: int) -> dict[str, str]:
        gpus = visible_gpus(os.environ) if self.max_parallel > 1 else []
        own = {"CUDA_VISIBLE_DEVICES": ",".join(assigned_gpus(gpus, slot, self.processes or 1))} if gpus else {}
        return {**os.environ, **own}


def children(pid: int) -> list[int]:
    """Return the process ids of the children of process `pid`; empty if the system does not list them in /proc."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def visible_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """Return the GPUs that this process may use, named as in CUDA_VISIBLE_DEVICES.

    CUDA itself is not asked, because its context in this parent process would occupy memory on each GPU. `devices`: the directory of device
    files."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    return [str(i) for i, _ in enumerate(path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))]


def assigned_gpus(gpus: Sequence[str], slot: int, processes: int) -> list[str]:
    """Return the names from `gpus` for the run with number `slot` (from 0) among the parallel runs: one for each of its `processes`.

    GPUs are assigned in turn; if there are too few, several runs or processes share a GPU."""
    return list(dict.fromkeys(gpus[(slot * processes + i) % len(gpus)] for i in range(processes)))
