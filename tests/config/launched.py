"""Effects of the keys of `launch` and `sweep`, without starting a run."""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from linnaeus.launch import Job, build_launcher, slurm
from linnaeus.launch.slurm import run_in_job, sbatch_settings
from linnaeus.sweep.request import Request
from linnaeus.sweep.trial_results import finished_result
from linnaeus.sweep.trial_source import sweep_name
from tests.sweep.test_full_disk import Trials

RUN = Job(["seed=1"], Path("run"), None, None)


def command(config: Any) -> list[str]:
    """Return the command of a run on this machine."""
    launcher: Any = build_launcher(config.launch, 1)
    return launcher.command(RUN)


def sweep_name_of(config: Any) -> str:
    request = Request([], [], None, config.sweep, config.launch)
    return sweep_name(request, SimpleNamespace(config=config))  # type: ignore[arg-type]


def columns_of_a_run(config: Any) -> Any:
    """Return the columns of a finished trial in the table of a sweep."""
    summary = {"status": "finished", "final": {"val/loss": 1.0, "val/order/loss": 2.0}, "timings": {"time/ms_per_step": 3.0}}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "summary.json").write_text(json.dumps(summary))
        found: Any = SimpleNamespace(config=config, directory=Path(folder))
        return finished_result(found, config.sweep).columns


def most_at_once(config: Any) -> int:
    """Return the largest number of trials that run at the same time, of four."""
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(Path(folder), 4, polls=2, config=config)
        trials.runner.run(trials.write)
    return trials.most_at_once


def submitted(config: Any) -> Any:
    """Return the options of sbatch and the function that the SLURM job calls."""
    return sbatch_settings(config.launch, RUN), run_in_job(config.launch, RUN)


def squeue_calls(config: Any) -> int:
    """Return the number of squeue calls in a minute with one poll per second."""
    run = mock.Mock(return_value=SimpleNamespace(returncode=0, stdout="", stderr=""))
    with (
        mock.patch.dict(sys.modules, {"submitit": mock.Mock()}),
        mock.patch.object(slurm, "shutil", SimpleNamespace(which=lambda name: name)),
        mock.patch.object(slurm, "subprocess", SimpleNamespace(run=run)),
    ):
        launcher = slurm.SlurmLauncher(config.launch)
        for now in range(60):
            with mock.patch.object(slurm, "time", SimpleNamespace(monotonic=lambda now=now: float(now))):
                launcher.entry("1")
    return run.call_count
