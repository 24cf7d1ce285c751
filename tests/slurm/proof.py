"""Runs on a real SLURM are preempted, reach their time limit and lose the command that started them, and end with the same results.
`make test-slurm`; five minutes on two cores; needs root (`cluster.py` starts and ends the cluster).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import runs
from tests.slurm.cluster import install, slurm_cluster

# a run of about a minute on one idle core, longer than the 30 s before the signal
LONG = ["trainer.length=10000steps", "trainer.micro_batch_size=1", "trainer.global_batch_size=16", "schedule.log=[100steps]"]
LONG += ["schedule.report=[20%]", "schedule.validate=[25%]", "logger.console=plain", "schedule.checkpoint=[]", "data.train_samples=130"]
LAUNCH = ["launch=slurm", "launch.time=1min", "launch.signal_before=30", "launch.cpus=1", "launch.memory=2G", "launch.poll=1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """Start a cluster. Yield the environment for SLURM's commands."""
    install()
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with slurm_cluster(folder) as environment:
            yield {**environment, "OMP_NUM_THREADS": "1"}
    finally:
        shutil.rmtree(folder)


def command(root: Path, *more: str, options: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, "main.py", "--config-dir", str(runs.VECTORS), *options, *runs.overrides("vectors", root, *LONG, *more)]


def start(arguments: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a command; its output is appended to `log`."""
    with log.open("a") as out:
        return subprocess.Popen(arguments, cwd=runs.ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, text=True)


def slurm(environment: dict[str, str], *arguments: str) -> str:
    return subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def jobs(environment: dict[str, str]) -> dict[str, str]:
    """Return number -> state of all jobs in the queue."""
    return dict(line.split() for line in slurm(environment, "squeue", "-h", "-o", "%i %T").splitlines())


def wait_until(condition: Callable[[], object], log: Path, seconds: float = 180, process: subprocess.Popen[str] | None = None) -> None:
    """Wait until `condition()` is true. `process`: the command that makes it true, which must not end before."""
    end = time.monotonic() + seconds
    while not condition():
        status = None if process is None else process.poll()
        assert status is None, f"the command has ended with the status {status}\n{log.read_text()}"
        assert time.monotonic() < end, f"the condition is still False\n{log.read_text()}"
        time.sleep(0.2)


def has_rows(run: Path, number: int) -> bool:
    path = run / "metrics.jsonl"
    return path.exists() and len(path.read_text().splitlines()) >= number


def launches(run: Path) -> int:
    return len(list((run / "launches").iterdir()))


def test_a_sweep_continues_after_a_preemption_time_limits_and_a_kill_of_its_command(cluster, tmp_path):
    whole, root, log = tmp_path / "whole", tmp_path / "runs", tmp_path / "log"
    trials = [root / "vectors" / f"run-{number}" for number in (1, 2)]
    sweep = command(root, "seed=0,1", "sweep.parallel=2", *LAUNCH, options=("-m",))
    start_time = time.monotonic()

    first = start(sweep, log, cluster)
    wait_until(lambda: all(has_rows(run, 5) for run in trials), log, process=first)
    submitted = jobs(cluster)
    assert sorted(submitted.values()) == ["RUNNING", "RUNNING"]
    first.kill()
    first.wait()
    preempted = json.loads((trials[0] / "launches/1/launch.json").read_text())
    assert preempted["launch"] == 1
    number = next(job for job in submitted if (trials[0] / "slurm" / f"{job}_submitted.pkl").exists())
    slurm(cluster, "scontrol", "requeue", number)

    second = start(sweep, log, cluster)
    assert second.wait(400) == 0, log.read_text()
    text = log.read_text()
    assert text.count("submitted as SLURM job") == 2 and text.count("of an earlier command continues") == 2
    print(f"the sweep took {time.monotonic() - start_time:.0f} s; starts: {[launches(run) for run in trials]}")
    assert launches(trials[0]) >= 3 and launches(trials[1]) >= 2, "a preemption and a time limit; a time limit"
    for run in trials:
        assert json.loads((run / "slurm/requeues.json").read_text())["requeues"] >= 1, "the job was requeued before the time limit"
    assert not any("Traceback" in path.read_text() for path in root.glob("sweeps/*/*.log"))

    outside = command(whole, "seed=0,1", "sweep.parallel=2", options=("-m",))
    assert start(outside, tmp_path / "outside", cluster).wait(400) == 0, (tmp_path / "outside").read_text()
    for run in trials:
        outside_run = whole / "vectors" / run.name
        assert launches(outside_run) == 1
        assert (run / "metrics.jsonl").read_bytes() == (outside_run / "metrics.jsonl").read_bytes()
        assert runs.differences(outside_run, run) == []

    third = start(sweep, tmp_path / "third", cluster)
    assert third.wait(60) == 0 and jobs(cluster) == {}
    assert "submitted" not in (tmp_path / "third").read_text()


TWO = ["trainer.length=2500steps", "schedule.log=[50steps]"]


@pytest.fixture(scope="module")
def two_processes(cluster, tmp_path_factory) -> Path:
    """Return the run directory of a run of two processes outside SLURM."""
    folder = tmp_path_factory.mktemp("two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = start([*torchrun, *command(folder / "runs", *TWO)[1:]], folder / "log", cluster)
    assert process.wait(300) == 0, (folder / "log").read_text()
    return folder / "runs/vectors/run"


def test_a_run_on_two_nodes_is_preempted_and_continues(cluster, two_processes, tmp_path):
    root, log = tmp_path / "runs", tmp_path / "log"
    process = start(command(root, *TWO, "launch=slurm", "launch.time=5min", "launch.nodes=2", "launch.poll=1"), log, cluster)
    run = root / "vectors/run"
    wait_until(lambda: has_rows(run, 5), log, process=process)
    assert slurm(cluster, "squeue", "-h", "-o", "%D %T") == "2 RUNNING"
    slurm(cluster, "scontrol", "requeue", next(iter(jobs(cluster))))
    assert process.wait(400) == 0, log.read_text()
    assert launches(run) == 2
    assert json.loads((run / "run.json").read_text())["world_size"] == 2
    assert runs.differences(two_processes, run) == []


def test_the_script_of_the_docs_continues_after_the_signal_before_a_time_limit(cluster, two_processes, tmp_path):
    root, script, log = tmp_path / "runs", tmp_path / "script.sh", tmp_path / "log"
    run = root / "vectors/run"
    text = re.search(r"```bash\n(#!/bin/bash.*?)```", (runs.ROOT / "docs/clusters.md").read_text(), re.S)[1]
    settings = " ".join(f'"{argument}"' for argument in command(root, *TWO)[2:])
    for old, new in {
        "--cpus-per-task=32\n#SBATCH": "--cpus-per-task=1\n#SBATCH",
        "srun --cpus-per-task=32": "srun --cpus-per-task=1",
        "#SBATCH --gpus-per-node=4\n": "",
        "--time=04:00:00": f"--time=10 --output={log}",
        "SHUTDOWN_TIMEOUT=110": "SHUTDOWN_TIMEOUT=30",
        "exec python": f"exec {sys.executable}",
        "--nproc-per-node=4": "--nproc-per-node=1",
        "experiment=plants480 data.path=photos/manifest.csv run.name=all": settings,
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script.write_text(text)
    log.touch()
    slurm(cluster, "sbatch", f"--chdir={runs.ROOT}", str(script))
    wait_until(lambda: has_rows(run, 5), log)
    slurm(cluster, "scancel", "--signal=USR1", next(iter(jobs(cluster))))  # as before a time limit: to the steps, not to the script
    wait_until(lambda: not jobs(cluster), log, 400)
    assert json.loads((run / "summary.json").read_text())["status"] == "finished", log.read_text()
    assert launches(run) == 2
    assert runs.differences(two_processes, run) == []


def test_after_a_stop_request_the_run_saves_and_the_queue_is_empty(cluster, tmp_path):
    root, log = tmp_path / "runs", tmp_path / "log"
    process = start(command(root, *LAUNCH), log, cluster)
    run = root / "vectors/run"
    wait_until(lambda: has_rows(run, 5), log, process=process)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(120) == 75, log.read_text()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "interrupted" and summary["global_step"] > 0
    assert jobs(cluster) == {}


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ("launch.partition=nowhere", "invalid partition specified: nowhere"),
        ("launch.memory=900T", "Memory specification can not be satisfied"),
        ("launch.extra={signal: USR1}", "launch.extra.signal: set launch.signal_before instead"),
        ("launch.extra={colour: red}", "colour"),
    ],
)
def test_an_invalid_request_is_one_line(cluster, tmp_path, wrong, line):
    settings = dict(setting.split("=", 1) for setting in [*LAUNCH, wrong])
    arguments = command(tmp_path / "runs", *(f"{key}={value}" for key, value in settings.items()))
    done = subprocess.run(arguments, cwd=runs.ROOT, env=cluster, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert line in done.stderr and not (tmp_path / "runs").exists()
    assert jobs(cluster) == {}
