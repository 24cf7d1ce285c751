"""Start a run inside a SLURM job, with one task per node, and requeue the job until the run is finished.

    `signal_before` s before the limit  SLURM sends SIGUSR2 to every process of the job steps. The run ignores SIGUSR2; the task sends one
                                        SIGTERM to the run: the run saves and ends with status 75, and the first task requeues the job.
    preemption, `scontrol requeue`      SLURM sends SIGTERM to every process and requeues the job. The run saves if the cluster allows
                                        enough time, and otherwise continues from its last checkpoint.
    `scancel`                           SLURM sends SIGTERM to every process and does not requeue the job.
    stop request of the submitting      SIGUSR2 as before the time limit, and the file `stop`, which prevents requeueing.
    process (`slurm.py`)

Every start runs `main.py` in the same run directory and resumes from its newest checkpoint. A requeued job keeps its number."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from linnaeus.checkpoint.resume import list_checkpoints
from linnaeus.files import no_follow, read_json, to_json, write_atomic
from linnaeus.launch.launcher import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, EXIT_USAGE
from linnaeus.rundir.finished_run import ENDED, read_summary

END_FILE, REQUEUE_FILE, STOP_FILE = "ended.json", "requeues.json", "stop"  # in `slurm_directory`
TIME_LIMIT, PREEMPTED = "time limit", "preempted"
MAX_STARTS_WITHOUT_CHECKPOINT = 3
REQUEUE_SECONDS = 5.0  # before the time limit: a job that has ended cannot be requeued
PORTS = range(20000, 32000)  # below the ports that Linux assigns to outgoing connections


@dataclass(frozen=True)
class RunInJob:
    """Callable that submitit calls once on each node of the job, to start the run.

    `command`: the program of a run and its arguments. `directory`: the run directory. `slurm_directory`: the folder of this job's files.
    `log`: the file for the output of the run on the first node. `signal_before`: seconds from SLURM's signal to the time limit."""

    command: list[str]
    processes: int
    nodes: int
    directory: Path
    slurm_directory: Path
    log: Path
    signal_before: int
    max_requeues: int

    def __call__(self) -> int:
        """Run until the run ends or the job is requeued.

        On the first node exit with the status of the run, so that SLURM shows a failure. On other nodes return 0."""
        is_first = int(os.environ.get("SLURM_PROCID", "0")) == 0
        if is_first:
            (self.slurm_directory / END_FILE).unlink(missing_ok=True)
        launches, step = launch_count(self.directory), self._newest_step()
        code, received = self._run()
        if not is_first:
            return EXIT_FINISHED  # the status of the job is that of the first task
        status, reason = settled_status(code, self.directory, launches, bool(received)), ""
        if status == EXIT_INTERRUPTED and PREEMPTED not in received and not (self.slurm_directory / STOP_FILE).exists():
            status, reason = self._requeue(step)
        if status == EXIT_FAILED and reason:
            with open(self.log, "a", opener=no_follow) as log:
                log.write(f"error: {reason}\n")
        end = {"job": os.environ["SLURM_JOB_ID"], "status": status, "reason": reason}
        write_atomic(self.slurm_directory / END_FILE, to_json(end, None))
        raise SystemExit(status)

    def arguments(self) -> list[str]:
        """Return the command for this node: the run itself, or torchrun with the rank of this node."""
        if self.processes == 1 and self.nodes == 1:
            return [sys.executable, *self.command]
        torchrun = [sys.executable, "-m", "linnaeus.launch.torchrun", f"--nproc-per-node={self.processes}"]
        # seconds that torchrun waits for a save; torch before 2.13 always waits 30 s
        os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(self.signal_before)
        if self.nodes == 1:
            return [*torchrun, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", *self.command]
        # a new port per start: the one of the previous start may still be in use
        port = PORTS[(int(os.environ["SLURM_JOB_ID"]) * 7 + int(os.environ.get("SLURM_RESTART_COUNT", "0"))) % len(PORTS)]
        node = [f"--nnodes={self.nodes}", f"--node-rank={os.environ['SLURM_NODEID']}"]
        # srun runs on the first node and sets its address
        return [*torchrun, *node, f"--master-addr={os.environ['SLURM_LAUNCH_NODE_IPADDR']}", f"--master-port={port}", *self.command]

    def _run(self) -> tuple[int | None, list[str]]:
        """Run the command of this node. Return (its exit status, the stop requests received).

        The status is None if the run is still saving shortly before the time limit."""
        node = int(os.environ.get("SLURM_NODEID", "0"))
        log = self.log if node == 0 else self.log.with_name(f"{self.log.name}.node{node}")
        received: list[str] = []
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # inherited by the run
        with open(log, "ab", opener=no_follow) as out:
            child = subprocess.Popen(self.arguments(), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        signal.signal(signal.SIGUSR2, lambda *_: received.append(TIME_LIMIT))
        signal.signal(signal.SIGTERM, lambda *_: received.append(PREEMPTED))  # SLURM sends it to the run too
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        is_terminated, deadline = False, math.inf
        while child.poll() is None and time.monotonic() < deadline:
            if TIME_LIMIT in received and PREEMPTED not in received and not is_terminated:
                child.terminate()
                is_terminated = True
                if not (self.slurm_directory / STOP_FILE).exists():
                    deadline = time.monotonic() + self.signal_before - REQUEUE_SECONDS
            time.sleep(0.2)
        return child.returncode, received

    def _newest_step(self) -> int:
        """Return the step of the newest checkpoint; 0 without a checkpoint."""
        return max((step for step, _ in list_checkpoints(self.directory / "checkpoints")), default=0)

    def _requeue(self, first_step: int) -> tuple[int, str]:
        """Requeue the job and exit this process. If the job cannot or should not be requeued, return (an exit status, the reason).

        `first_step`: step of the newest checkpoint when this start began; it counts only for the first start of the job."""
        path = self.slurm_directory / REQUEUE_FILE
        before = read_json(path) or {"requeues": 0, "step": first_step, "without_progress": 0}
        step = self._newest_step()
        idle = before["without_progress"] + 1 if step <= before["step"] else 0
        if idle >= MAX_STARTS_WITHOUT_CHECKPOINT:
            return EXIT_FAILED, f"no checkpoint was written in {idle} starts in a row; set a longer launch.time or launch.signal_before"
        if before["requeues"] >= self.max_requeues:
            return EXIT_INTERRUPTED, f"launch.max_requeues={self.max_requeues} is reached"
        write_atomic(path, to_json({"requeues": before["requeues"] + 1, "step": step, "without_progress": idle}, None))
        requeued = subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], capture_output=True, text=True)
        if requeued.returncode:
            return EXIT_INTERRUPTED, f"SLURM refuses to requeue the job: {' '.join(requeued.stderr.split())}"
        raise SystemExit(EXIT_INTERRUPTED)


def settled_status(code: int | None, directory: Path, launches_before: int, stop_requested: bool) -> int:
    """Return the exit status (0, 1, 2 or 75) of a run whose process returned `code`. None means that the process still runs; then return
    75.

    `launches_before`: number of starts of the run before this one. `stop_requested`: True if the run was asked to stop. If `code` is none
    of 0, 2 and 75, as under torchrun after a signal, the result follows from the status in summary.json, if this launch has written that
    file."""
    if code is None:
        return EXIT_INTERRUPTED
    if code in (EXIT_FINISHED, EXIT_USAGE, EXIT_INTERRUPTED):
        return code
    status = read_summary(directory).get("status") if launch_count(directory) > launches_before else None
    if status == "interrupted" or (stop_requested and status in (None, "running")):  # also a request during start-up
        return EXIT_INTERRUPTED
    return EXIT_FINISHED if status in ENDED else EXIT_FAILED


def launch_count(directory: Path) -> int:
    """Return the number of times that the run in `directory` was started."""
    folder = directory / "launches"
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=0) if folder.is_dir() else 0
