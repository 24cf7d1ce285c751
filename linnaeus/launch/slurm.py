"""Start each run as a SLURM job (`launch=slurm`), submitted through submitit. The program in the job is `slurm_job.py`.

    python main.py -m launch=slurm launch.time=4h launch.partition=gpu launch.gpus=4 launch.processes=4 seed=0,1,2

Before its time limit and after a preemption a job is requeued and the run continues, until the run is finished. The submitting process may
end: the jobs stay in the queue. The same command finds queued and running jobs by their names, which are derived from the run directory."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from linnaeus.config.schema import SlurmConfig
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError
from linnaeus.files import no_follow, read_json, to_utf8
from linnaeus.launch.launcher import EXIT_FAILED, Job
from linnaeus.launch.slurm_job import END_FILE, REQUEUE_FILE, STOP_FILE, RunInJob, settled_status

log = logging.getLogger("linnaeus")

PROGRAMS = ("sbatch", "srun", "squeue", "scontrol", "scancel")
SETTLE_SECONDS = 30.0  # until a shared file system shows the last file of a job
# options of sbatch that the launcher sets, and their keys; "" where there is no key
RESERVED = {
    **{"time": "launch.time", "partition": "launch.partition", "nodes": "launch.nodes", "mem": "launch.memory"},
    **{"cpus-per-task": "launch.cpus", "gpus-per-node": "launch.gpus", "signal": "launch.signal_before"},
    **{"ntasks-per-node": "launch.processes", "ntasks": "launch.processes", "requeue": "", "no-requeue": "", "job-name": ""},
    **{"output": "", "error": "", "open-mode": "", "array": ""},
}


class QueueEntry(NamedTuple):
    """A row of squeue: state, reason and name of a job, such as PENDING, Resources, linnaeus-run-1a2b3c4d."""

    state: str
    reason: str
    name: str


class SlurmLauncher:
    """Launcher that submits SLURM jobs.

    The constructor raises `ConfigError` if SLURM or submitit is not installed, or for a setting that SLURM does not accept."""

    def __init__(self, config: SlurmConfig) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing:
            raise ConfigError(f"launch=slurm: there is no {missing[0]} on this machine; start on a SLURM login node, or use launch=process")
        check_settings(config)
        try:
            import submitit  # noqa: F401
        except ModuleNotFoundError:
            raise ConfigError("launch=slurm needs submitit; install it with: pip install 'linnaeus[slurm]'") from None
        self.config = config
        self._queue: dict[str, QueueEntry] = {}
        self._queried_at = -math.inf
        self._query_error = ""  # error of the last squeue, "" if it succeeded

    def start(self, job: Job) -> SlurmHandle:
        """Submit `job`, or return a handle to the queued or running job that an earlier command submitted for the same run directory.

        Raise `ConfigError` if SLURM does not answer or refuses the job."""
        name = job_name(job.directory)
        self._query()
        if self._query_error:  # an earlier job may be in the queue; a second one would run in the same directory
            raise ConfigError(f"launch=slurm: SLURM does not answer ({self._query_error}); start on a login node of the cluster, or later")
        number = next((number for number, entry in self._queue.items() if entry.name == name), None)
        if number is not None:
            text = "%s: SLURM job %s of an earlier command continues, with the settings of that command; its output is in %s"
            log.info(text, job.directory, number, log_path(job))
            (slurm_directory(job.directory) / STOP_FILE).unlink(missing_ok=True)
        else:
            number = self._submit(job)
            log.info("%s: submitted as SLURM job %s; its output is in %s", job.directory, number, log_path(job))
            self._queue[number] = QueueEntry("PENDING", "None", name)
        return SlurmHandle(self, number, job)

    def entry(self, number: str) -> QueueEntry | None:
        """Return the row of job `number` in the queue; None if the job has left the queue."""
        self._query()
        return self._queue.get(number)

    def _query(self) -> None:
        """Read the queue with one call of squeue for all jobs, at most every `launch.poll` seconds. If squeue fails, keep the rows of the
        last call."""
        if time.monotonic() - self._queried_at < self.config.poll:
            return
        command = ["squeue", "--noheader", f"--user={os.getuid()}", "--format=%i|%T|%r|%j"]
        done = subprocess.run(command, capture_output=True, text=True)
        self._queried_at = time.monotonic()
        self._query_error = " ".join(done.stderr.split()) or "squeue failed" if done.returncode else ""
        if self._query_error:
            log.warning("SLURM does not answer: %s", self._query_error)
            return
        rows = (line.split("|", 3) for line in done.stdout.splitlines())
        self._queue = {number: QueueEntry(*row) for number, *row in rows}

    def _submit(self, job: Job) -> str:
        import submitit

        directory = slurm_directory(job.directory)
        is_new = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        for name in (END_FILE, REQUEUE_FILE, STOP_FILE):
            (directory / name).unlink(missing_ok=True)
        executor = submitit.SlurmExecutor(folder=directory)
        executor.update_parameters(**sbatch_settings(self.config, job))
        try:
            with _without_job_variables(), contextlib.redirect_stderr(io.StringIO()):  # submitit also prints the error it raises
                return str(executor.submit(run_in_job(self.config, job)).job_id)
        except submitit.core.utils.FailedJobError as error:
            if is_new:
                shutil.rmtree(directory)
                with contextlib.suppress(OSError):
                    os.removedirs(directory.parent)  # deletes parent directories as long as they are empty
            text = " ".join(re.sub(r"sbatch: (error: )?", "", str(error)).split())
            raise ConfigError(f"sbatch refuses the job ({text}); check launch.partition and the other launch keys") from None


class SlurmHandle:
    """Handle of one SLURM job. Each change of the state of the job is logged."""

    def __init__(self, launcher: SlurmLauncher, number: str, job: Job) -> None:
        self.launcher, self.number, self.job = launcher, number, job
        self.directory = slurm_directory(job.directory)
        self._last_logged = ""
        self._left_queue_at: float | None = None
        self._stop_requested = False

    def poll(self) -> int | None:
        """Return None while the job is queued or running, also after it was requeued. Afterwards return the exit status of the run."""
        entry = self.launcher.entry(self.number)
        if entry is not None:
            self._left_queue_at = None
            self._log(entry.state.lower() + (f" ({entry.reason})" if entry.reason not in ("None", entry.state) else ""))
            return None
        path = self.directory / END_FILE
        end = read_json(path) or {}
        if end.get("job") == self.number:  # not the file of an earlier job
            self._log(f"ended{': ' if end['reason'] else ''}{end['reason']}")
            return int(end["status"])
        self._left_queue_at = self._left_queue_at or time.monotonic()
        return None if time.monotonic() - self._left_queue_at < SETTLE_SECONDS else self._status_without_end_file()

    def stop(self) -> None:
        """Ask the job to end. A pending job is cancelled. A running job saves, ends and is not requeued.

        Saving may take until the time limit of the job. A second call cancels the job; SLURM kills the job after `KillWait` seconds (a
        setting of the cluster)."""
        if self._stop_requested:
            _scancel(self.number)
        else:
            (self.directory / STOP_FILE).touch()
            _scancel("--state=PENDING", self.number)
            _scancel("--signal=USR2", self.number)
        self._stop_requested = True

    def describe(self) -> str:
        return f"SLURM job {self.number}"

    def _status_without_end_file(self) -> int:
        """Return the exit status of a job that ended without writing its end file, because it was cancelled or crashed."""
        status = settled_status(EXIT_FAILED, self.job.directory, -1, self._stop_requested)
        line = f"SLURM ended job {self.number} before the run ended; see {self.directory}/{self.number}_0_log.out"
        self._log(line)
        if status == EXIT_FAILED:
            with open(log_path(self.job), "a", opener=no_follow) as file:
                file.write(f"error: {line}\n")
        return status

    def _log(self, message: str) -> None:
        if message != self._last_logged:
            log.info("%s: SLURM job %s %s", self.job.directory, self.number, message)
            self._last_logged = message


@contextlib.contextmanager
def _without_job_variables() -> Iterator[None]:
    """Return a context manager that removes the environment variables of the SLURM job in which this process runs, if any.

    sbatch would apply some of them to the new job."""
    removed = {name for name in os.environ if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_"))}
    before = {name: os.environ.pop(name) for name in removed - {"SLURM_CONF", "SLURM_CLUSTERS"}}
    try:
        yield
    finally:
        os.environ.update(before)


def _scancel(*arguments: str) -> None:
    subprocess.run(["scancel", *arguments], capture_output=True)


# -- the request for a run ------------------------------------------------------------------------------------------------------


def check_settings(c: SlurmConfig) -> None:
    """Raise `ConfigError` if the time limit is too short, or if `launch.extra` contains an option that the launcher sets itself."""
    seconds = Duration.parse(c.time, "launch.time").seconds
    if seconds < 60 or seconds <= c.signal_before:
        raise ConfigError(f"launch.time is {c.time}; it must be at least 1min and longer than launch.signal_before={c.signal_before} s")
    for option in c.extra:
        if option.replace("_", "-") in RESERVED:
            key = RESERVED[option.replace("_", "-")]
            raise ConfigError(f"launch.extra.{option}: " + (f"set {key} instead" if key else "the launcher sets it itself"))


def sbatch_settings(c: SlurmConfig, job: Job) -> dict[str, Any]:
    """Return the keyword arguments for `update_parameters` of submitit's executor."""
    options = {"partition": c.partition, "cpus-per-task": c.cpus, "gpus-per-node": c.gpus, "mem": c.memory, **c.extra}
    options = {option.replace("_", "-"): value for option, value in options.items() if value is not None and value is not False}
    return {
        "job_name": job_name(job.directory),
        "time": math.ceil(Duration.parse(c.time, "launch.time").seconds / 60),
        "nodes": c.nodes,
        "ntasks_per_node": 1,
        "stderr_to_stdout": True,
        "wckey": None,
        "setup": [f"export PYTHONPATH={shlex.quote(str(Path(__file__).parents[2]))}${{PYTHONPATH:+:$PYTHONPATH}}"],
        # srun does not inherit --cpus-per-task from sbatch since SLURM 22.05
        "srun_args": [f"--cpus-per-task={c.cpus}"] if c.cpus is not None else [],
        "additional_parameters": {**options, "signal": f"USR2@{c.signal_before}", "requeue": True},
    }


def run_in_job(c: SlurmConfig, job: Job) -> RunInJob:
    """Return the callable that submitit pickles and calls in the job."""
    directory, log = job.directory.absolute(), log_path(job).absolute()
    return RunInJob(job.arguments(), c.processes, c.nodes, directory, slurm_directory(directory), log, c.signal_before, c.max_requeues)


def log_path(job: Job) -> Path:
    """Return the file to which the run prints: `job.log`, or if that is None the file job.log in `slurm_directory`. A single run also
    prints to a file, because the command that waits for the run may be killed."""
    return job.log or slurm_directory(job.directory) / "job.log"


def slurm_directory(directory: Path) -> Path:
    """Return the folder in the run directory `directory` for the files of submitit and of this module."""
    return directory / "slurm"


def job_name(directory: Path) -> str:
    """Return the name of the SLURM job for a run directory. Each directory has a different name, by which a later command finds the job."""
    path = str(directory.resolve())
    return f"linnaeus-{directory.name}-{hashlib.blake2b(to_utf8(path), digest_size=4).hexdigest()}"
