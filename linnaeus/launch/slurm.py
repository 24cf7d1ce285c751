"""`launch=slurm`: one SLURM job per trial, submitted through submitit. `slurm_request.py` says what is asked for, `slurm_job.py`
is what runs in it.

    python main.py -m launch=slurm launch.time=4h launch.partition=gpu launch.gpus=4 launch.processes=4 seed=0,1,2

A job is requeued before its time limit and after a preemption, and the run in it goes on where it was, until it is finished. The
process that submitted may end: the jobs belong to SLURM. The same command again finds those still queued or running, by their
names, which are made of the run directory.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from linnaeus.config.schema_launch import SlurmConfig
from linnaeus.errors import ConfigError
from linnaeus.launch.base import Job
from linnaeus.launch.slurm_job import ENDED, FAILED, FINISHED, INTERRUPTED, REQUEUES, STOP
from linnaeus.launch.slurm_request import check_settings, job_name, log_of, records_of, run_in_job, sbatch_settings
from linnaeus.rundir.finished_run import read_summary

log = logging.getLogger("linnaeus")

PROGRAMS = ("sbatch", "srun", "squeue", "scontrol", "scancel")
SETTLING = 30.0  # seconds a shared file system may take to show a job's last file


class State(NamedTuple):
    """SLURM's words for a job, such as PENDING and Resources."""

    word: str
    reason: str
    name: str


class SlurmLauncher:
    """Raises `ConfigError` where there is no SLURM, no submitit, or a setting that SLURM could not take."""

    def __init__(self, config: SlurmConfig) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing:
            raise ConfigError(
                f"launch=slurm: there is no {missing[0]} on this machine; start it on a SLURM login node, or use launch=process"
            )
        check_settings(config)
        try:
            import submitit  # noqa: F401
        except ModuleNotFoundError:
            raise ConfigError("launch=slurm needs submitit; install it with: pip install -e '.[slurm]'") from None
        self.config = config
        self._queue: dict[str, State] = {}
        self._asked = -math.inf
        self._silent = ""  # why squeue failed when it was asked last

    def start(self, job: Job) -> SlurmHandle:
        """Submit `job`, or take on the one that was submitted for its run directory and is still in the queue."""
        name = job_name(job.directory)
        self._refresh()
        if self._silent:  # a job of an earlier command may be there, and would meet its double
            raise ConfigError(f"launch=slurm: SLURM does not answer ({self._silent}); try again later")
        number = next((number for number, state in self._queue.items() if state.name == name), None)
        if number is not None:
            log.info("%s: SLURM job %s of an earlier command goes on; it prints to %s", job.directory, number, log_of(job))
            (records_of(job.directory) / STOP).unlink(missing_ok=True)
        else:
            number = self._submit(job)
            log.info("%s: submitted as SLURM job %s, which prints to %s", job.directory, number, log_of(job))
            self._queue[number] = State("PENDING", "None", name)
        return SlurmHandle(self, number, job)

    def close(self) -> None:
        """The jobs go on: SLURM owns them."""

    def state(self, number: str) -> State | None:
        """Where a job stands; None: it is not in the queue."""
        self._refresh()
        return self._queue.get(number)

    def _refresh(self) -> None:
        """One question for all jobs, now and then. A controller that does not answer changes nothing that is known."""
        if time.monotonic() - self._asked < self.config.poll:
            return
        command = ["squeue", "--noheader", f"--user={os.getuid()}", "--format=%i|%T|%r|%j"]
        asked = subprocess.run(command, capture_output=True, text=True)
        self._asked = time.monotonic()
        self._silent = " ".join(asked.stderr.split()) or "squeue failed" if asked.returncode else ""
        if self._silent:
            log.warning("SLURM does not answer: %s", self._silent)
            return
        rows = (line.split("|", 3) for line in asked.stdout.splitlines())
        self._queue = {number: State(*row) for number, *row in rows}

    def _submit(self, job: Job) -> str:
        import submitit

        records = records_of(job.directory)
        is_new = not records.exists()
        records.mkdir(parents=True, exist_ok=True)
        for left in (ENDED, REQUEUES, STOP):
            (records / left).unlink(missing_ok=True)
        executor = submitit.SlurmExecutor(folder=records)
        executor.update_parameters(**sbatch_settings(self.config, job))
        try:
            with _outside_of_jobs(), contextlib.redirect_stderr(io.StringIO()):  # submitit repeats there what it raises
                return str(executor.submit(run_in_job(self.config, job)).job_id)
        except submitit.core.utils.FailedJobError as error:
            if is_new:
                shutil.rmtree(records)
                with contextlib.suppress(OSError):
                    os.removedirs(records.parent)  # as far as they are empty
            text = " ".join(re.sub(r"sbatch: (error: )?", "", str(error)).split())
            raise ConfigError(f"sbatch refuses the job ({text}); check launch.partition and the other launch keys") from None


class SlurmHandle:
    """One job in SLURM's hands. What becomes of it is logged as it is noticed."""

    def __init__(self, launcher: SlurmLauncher, number: str, job: Job) -> None:
        self.launcher, self.number, self.job = launcher, number, job
        self.records = records_of(job.directory)
        self._said = ""
        self._gone: float | None = None
        self._stopping = False

    def poll(self) -> int | None:
        """The exit status once the job has left the queue for good; a requeued one has not."""
        state = self.launcher.state(self.number)
        if state is not None:
            self._gone = None
            self._say(state.word.lower() + (f" ({state.reason})" if state.reason not in ("None", state.word) else ""))
            return None
        ended = self._ended()
        if ended is not None:
            self._say(f"ended{': ' if ended['why'] else ''}{ended['why']}")
            return int(ended["status"])
        self._gone = self._gone or time.monotonic()
        if time.monotonic() - self._gone < SETTLING:
            return None
        return self._lost()

    def stop(self) -> None:
        """Ask it to save and end, however long it takes, and not to be requeued; a job that does not run is cancelled. Once more: cancel
        it, which leaves the run the cluster's KillWait to save."""
        if not self._stopping:
            (self.records / STOP).touch()
            _scancel("--state=PENDING", self.number)
            _scancel("--signal=USR2", self.number)
        else:
            _scancel(self.number)
        self._stopping = True

    def describe(self) -> str:
        return f"SLURM job {self.number}"

    def _ended(self) -> dict[str, Any] | None:
        """What the job wrote at its end; of an earlier job nothing counts."""
        path = self.records / ENDED
        found = json.loads(path.read_text()) if path.exists() else {}
        return found if found.get("job") == self.number else None

    def _lost(self) -> int:
        """The exit status of a job that was cancelled, or broke, before it could say how it ended."""
        status = {"finished": FINISHED, "stopped_early": FINISHED, "interrupted": INTERRUPTED}
        found = FAILED if not self._stopping else INTERRUPTED
        found = status.get(str(read_summary(self.job.directory).get("status")), found)
        line = f"SLURM ended job {self.number} before the run could; see {self.records}/{self.number}_0_log.out"
        self._say(line)
        if found == FAILED:
            with log_of(self.job).open("a") as file:
                file.write(f"error: {line}\n")
        return found

    def _say(self, what: str) -> None:
        if what != self._said:
            log.info("%s: SLURM job %s %s", self.job.directory, self.number, what)
            self._said = what


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Without the variables of a SLURM job that this process may run in: the new job would take some of them for its own."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_")) and name not in ("SLURM_CONF", "SLURM_CLUSTERS"):
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)


def _scancel(*arguments: str) -> None:
    subprocess.run(["scancel", *arguments], capture_output=True)
