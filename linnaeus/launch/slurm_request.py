"""What is asked of SLURM for a run, from the settings of `launch=slurm`: checked here, before anything is submitted."""

from __future__ import annotations

import hashlib
import math
import shlex
from pathlib import Path
from typing import Any

from linnaeus.config.schema_launch import SlurmConfig
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError
from linnaeus.launch.base import MAIN, Job
from linnaeus.launch.slurm_job import RunInJob

# sbatch options that have keys of their own, or that the launcher needs as they are
OWN = {
    **{"time": "launch.time", "partition": "launch.partition", "nodes": "launch.nodes", "mem": "launch.memory"},
    **{"cpus-per-task": "launch.cpus", "gpus-per-node": "launch.gpus", "signal": "launch.signal_before"},
    **{"ntasks-per-node": "launch.processes", "ntasks": "launch.processes", "requeue": "", "no-requeue": "", "job-name": ""},
    **{"output": "", "error": "", "open-mode": "", "array": ""},
}


def check_settings(c: SlurmConfig) -> None:
    """Raises `ConfigError` for settings that SLURM could not take, or that would break what the launcher relies on."""
    seconds = Duration.parse(c.time, "launch.time").seconds
    if seconds < 60 or seconds <= c.signal_before:
        raise ConfigError(f"launch.time is {c.time}; give at least a minute, and more than launch.signal_before={c.signal_before} seconds")
    for option in c.extra:
        if option.replace("_", "-") in OWN:
            key = OWN[option.replace("_", "-")]
            raise ConfigError(f"launch.extra.{option}: " + (f"set {key} instead" if key else "the launcher sets it itself"))


def sbatch_settings(c: SlurmConfig, job: Job) -> dict[str, Any]:
    """The settings of submitit's executor."""
    wanted = {"partition": c.partition, "cpus-per-task": c.cpus, "gpus-per-node": c.gpus, "mem": c.memory, **c.extra}
    options = {option.replace("_", "-"): value for option, value in wanted.items() if value is not None and value is not False}
    return {
        "job_name": job_name(job.directory),
        "time": math.ceil(Duration.parse(c.time, "launch.time").seconds / 60),
        "nodes": c.nodes,
        "ntasks_per_node": 1,
        "stderr_to_stdout": True,
        "wckey": None,
        "setup": [f"export PYTHONPATH={shlex.quote(str(MAIN.parent))}${{PYTHONPATH:+:$PYTHONPATH}}"],
        # srun takes no --cpus-per-task from sbatch since SLURM 22.05
        "srun_args": [f"--cpus-per-task={c.cpus}"] if c.cpus is not None else [],
        "additional_parameters": {**options, "signal": f"USR2@{c.signal_before}", "requeue": True},
    }


def run_in_job(c: SlurmConfig, job: Job) -> RunInJob:
    """What the job does."""
    return RunInJob(
        command=job.arguments(),
        processes=c.processes,
        nodes=c.nodes,
        directory=job.directory.absolute(),
        records=records_of(job.directory).absolute(),
        log=log_of(job).absolute(),
        signal_before=c.signal_before,
        max_requeues=c.max_requeues,
    )


def log_of(job: Job) -> Path:
    """What the run prints: a run on its own has no other place, for the process that waits for it may be gone."""
    return job.log or records_of(job.directory) / "job.log"


def records_of(directory: Path) -> Path:
    """Where submitit's files and ours lie: in the run directory."""
    return directory / "slurm"


def job_name(directory: Path) -> str:
    """One name per run directory, by which a later command finds the job."""
    path = str(directory.resolve())
    return f"linnaeus-{directory.name}-{hashlib.blake2b(path.encode(), digest_size=4).hexdigest()}"
