"""What runs inside a SLURM job: one task per node starts the run there, and the job is requeued until the run is finished.

    signal_before seconds to the limit  SLURM sends SIGUSR2 to every process of the job's steps. The run ignores it; the task turns it
                                        into one SIGTERM: the run saves and ends with status 75, and the first task requeues the job.
    preemption, `scontrol requeue`      SLURM itself sends SIGTERM to every process and requeues the job. The run saves if the time
                                        the cluster allows is enough for it, and continues from its last checkpoint otherwise.
    `scancel`                           the same SIGTERM, and no requeueing.
    a request to stop of the parent     the same signal as before the time limit, and a file that says not to requeue.

`python main.py` starts again in the same run directory each time and finds by itself where to go on. A requeued job keeps its number.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from linnaeus.checkpoint.resume import list_checkpoints
from linnaeus.files import write_atomic
from linnaeus.rundir.finished_run import read_summary

FINISHED, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 75
ENDED, REQUEUES, STOP = "ended.json", "requeues.json", "stop"  # files in `records`; STOP: end, and do not requeue
TIME_LIMIT, PREEMPTED = "time limit", "preempted"
WITHOUT_PROGRESS = 3  # starts in a row that brought no checkpoint, after which there is no point in another
TO_REQUEUE = 5.0  # seconds before the time limit: a job that is over is not requeued
PORTS = range(20000, 32000)  # below those the system gives to connections that go out


@dataclass(frozen=True)
class RunInJob:
    """Called once per node. `command`: main.py and its arguments; `directory`: the run's; `records`: where this job's files are;
    `log`: what the run prints, on the first node."""

    command: list[str]
    processes: int
    nodes: int
    directory: Path
    records: Path
    log: Path
    signal_before: int
    max_requeues: int

    def __call__(self) -> int:
        """Run to an end or to the next requeue. Leaves with the exit status of the run, so that SLURM shows a failure as one."""
        first = int(os.environ.get("SLURM_PROCID", "0")) == 0
        if first:
            (self.records / ENDED).unlink(missing_ok=True)
        launch = newest_launch(self.directory)
        code, asked = self._run()
        if not first:
            return FINISHED  # the first task speaks for the job
        status, why = settle(code, self.directory, launch, bool(asked)), ""
        if status == INTERRUPTED and PREEMPTED not in asked and not (self.records / STOP).exists():
            status, why = self._requeue()
        if status == FAILED and why:
            with self.log.open("a") as log:
                log.write(f"error: {why}\n")
        write_atomic(self.records / ENDED, json.dumps({"job": os.environ["SLURM_JOB_ID"], "status": status, "why": why}) + "\n")
        raise SystemExit(status)

    def arguments(self) -> list[str]:
        """What is started on this node: main.py itself, or torchrun with this node's place among the others."""
        if self.processes == 1 and self.nodes == 1:
            return [sys.executable, *self.command]
        torchrun = [sys.executable, "-m", "linnaeus.launch.agent", f"--nproc-per-node={self.processes}"]
        # how long it waits for a save; torch before 2.13 waits 30 s whatever is said
        os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(self.signal_before)
        if self.nodes == 1:
            return [*torchrun, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", *self.command]
        port = PORTS[(int(os.environ["SLURM_JOB_ID"]) * 7 + int(os.environ.get("SLURM_RESTART_COUNT", "0"))) % len(PORTS)]
        place = [f"--nnodes={self.nodes}", f"--node-rank={os.environ['SLURM_NODEID']}"]
        # srun was started on the first node, and says from which address
        return [*torchrun, *place, f"--master-addr={os.environ['SLURM_LAUNCH_NODE_IPADDR']}", f"--master-port={port}", *self.command]

    def _run(self) -> tuple[int | None, list[str]]:
        """Its exit status, and what was asked of it meanwhile. None: it still saves, and the time limit is a moment away."""
        node = int(os.environ.get("SLURM_NODEID", "0"))
        log = self.log if node == 0 else self.log.with_name(f"{self.log.name}.node{node}")
        asked: list[str] = []
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # inherited: the run leaves the time limit to this process
        with log.open("ab") as out:
            child = subprocess.Popen(self.arguments(), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        signal.signal(signal.SIGUSR2, lambda *_: asked.append(TIME_LIMIT))
        signal.signal(signal.SIGTERM, lambda *_: asked.append(PREEMPTED))  # the run has got it too
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        told, ends = False, math.inf
        while child.poll() is None and time.monotonic() < ends:
            if TIME_LIMIT in asked and PREEMPTED not in asked and not told:
                child.terminate()
                told = True
                if not (self.records / STOP).exists():
                    ends = time.monotonic() + self.signal_before - TO_REQUEUE
            time.sleep(0.2)
        return child.returncode, asked

    def _requeue(self) -> tuple[int, str]:
        """Put the job back into the queue and leave; returns only when that cannot be, with the exit status and the reason."""
        path = self.records / REQUEUES
        before = json.loads(path.read_text()) if path.exists() else {"requeues": 0, "step": -1, "without_progress": 0}
        step = max((step for step, _ in list_checkpoints(self.directory / "checkpoints")), default=0)
        idle = before["without_progress"] + 1 if step <= before["step"] else 0
        if idle >= WITHOUT_PROGRESS:
            return FAILED, f"no checkpoint was written in {idle} starts in a row; set a longer launch.time or launch.signal_before"
        if before["requeues"] >= self.max_requeues:
            return INTERRUPTED, f"launch.max_requeues={self.max_requeues} is reached"
        write_atomic(path, json.dumps({"requeues": before["requeues"] + 1, "step": step, "without_progress": idle}) + "\n")
        asked = subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], capture_output=True, text=True)
        if asked.returncode:
            return INTERRUPTED, f"SLURM does not requeue it: {' '.join(asked.stderr.split())}"
        raise SystemExit(INTERRUPTED)


def settle(code: int | None, directory: Path, launch_before: int, asked: bool) -> int:
    """The exit status of a run of which `code` was returned, None while it runs. Asked to stop, torchrun returns that signal whatever its
    processes did, so what the run has written counts, if it was this launch that wrote it."""
    if code is None:
        return INTERRUPTED
    if code in (FINISHED, USAGE, INTERRUPTED):
        return code
    status = read_summary(directory).get("status") if newest_launch(directory) > launch_before else None
    if status == "interrupted" or (asked and status in (None, "running")):  # the request may come while it still starts up
        return INTERRUPTED
    return FINISHED if status in ("finished", "stopped_early") else FAILED


def newest_launch(directory: Path) -> int:
    """How often the run in `directory` has been started."""
    folder = directory / "launches"
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=0) if folder.is_dir() else 0
