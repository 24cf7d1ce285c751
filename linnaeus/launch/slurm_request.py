"""The request to SLURM for a run, made from the settings of `launch=slurm` and checked before anything is submitted."""

from __future__ import annotations

import hashlib
import math
import shlex
from pathlib import Path
from typing import Any

from linnaeus.config.schema import SlurmConfig
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError
from linnaeus.launch.launcher import Job
from linnaeus.launch.slurm_job import RunInJob

# options of sbatch that the launcher sets, and their keys; "" where there is no key
RESERVED = {
    **{"time": "launch.time", "partition": "launch.partition", "nodes": "launch.nodes", "mem": "launch.memory"},
    **{"cpus-per-task": "launch.cpus", "gpus-per-node": "launch.gpus", "signal": "launch.signal_before"},
    **{"ntasks-per-node": "launch.processes", "ntasks": "launch.processes", "requeue": "", "no-requeue": "", "job-name": ""},
    **{"output": "", "error": "", "open-mode": "", "array": ""},
}


def check_settings(c: SlurmConfig) -> None:
    """Raise `ConfigError` for a time limit that is too short and for an `extra` option that the launcher sets."""
    seconds = Duration.parse(c.time, "launch.time").seconds
    if seconds < 60 or seconds <= c.signal_before:
        raise ConfigError(
            f"launch.time is {c.time}; it must be at least 1min and longer than launch.signal_before={c.signal_before} seconds"
        )
    for option in c.extra:
        if option.replace("_", "-") in RESERVED:
            key = RESERVED[option.replace("_", "-")]
            raise ConfigError(f"launch.extra.{option}: " + (f"set {key} instead" if key else "the launcher sets it itself"))


def sbatch_settings(c: SlurmConfig, job: Job) -> dict[str, Any]:
    """Return the settings of submitit's executor."""
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
    """Return the function that the job calls."""
    directory, log = job.directory.absolute(), log_path(job).absolute()
    return RunInJob(job.arguments(), c.processes, c.nodes, directory, slurm_directory(directory), log, c.signal_before, c.max_requeues)


def log_path(job: Job) -> Path:
    """Return the file that the run prints to. A single run needs one too: the command that waits for it may be killed."""
    return job.log or slurm_directory(job.directory) / "job.log"


def slurm_directory(directory: Path) -> Path:
    """Return the folder in a run directory for submitit's files and ours."""
    return directory / "slurm"


def job_name(directory: Path) -> str:
    """Return the name of a run directory's job, unique per directory, by which a later command finds the job."""
    path = str(directory.resolve())
    return f"linnaeus-{directory.name}-{hashlib.blake2b(path.encode(), digest_size=4).hexdigest()}"
