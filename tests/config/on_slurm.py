"""Effects of the keys of `launch=slurm`, without SLURM."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from linnaeus.launch import Job, slurm
from linnaeus.launch.slurm_request import run_in_job, sbatch_settings

RUN = Job(["seed=1"], Path("run"), None, None)


def asked(config: Any) -> Any:
    """Return the options of sbatch and the function that the job calls."""
    return sbatch_settings(config.launch, RUN), run_in_job(config.launch, RUN)


def questions(config: Any) -> int:
    """Return the number of squeue calls in a minute with one poll per second."""
    clock = iter(range(60))
    run = mock.Mock(return_value=SimpleNamespace(returncode=0, stdout="", stderr=""))
    with (
        mock.patch.dict(sys.modules, {"submitit": mock.Mock()}),
        mock.patch.object(slurm, "shutil", SimpleNamespace(which=lambda name: name)),
        mock.patch.object(slurm, "subprocess", SimpleNamespace(run=run)),
    ):
        launcher = slurm.SlurmLauncher(config.launch)
        for now in clock:
            with mock.patch.object(slurm, "time", SimpleNamespace(monotonic=lambda now=now: float(now))):
                launcher.entry("1")
    return run.call_count
