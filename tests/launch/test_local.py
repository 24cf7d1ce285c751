"""Launchers on this machine: the GPUs, exit statuses and stop requests of their runs."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from linnaeus.config import compose
from linnaeus.launch import Job, build_launcher, launcher, process
from linnaeus.launch.process import assigned_gpus, children, visible_gpus
from tests import fork_server, runs
from tests.sweep.conftest import wait_until

RANK = """
import os, pathlib, signal, sys, time
rank, kind = int(os.environ.get("RANK", 0)), sys.argv[1]
if kind == "saved":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
if kind == "ignores SIGTERM":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if kind == "mistake":
    sys.exit(2)
if kind == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path(sys.argv[2], f"rank-{rank}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
if kind not in ("finished", "gpus"):
    time.sleep(120)
"""


def test_gpus_are_assigned_round_robin(tmp_path):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3,GPU-8a"}) == ["3", "GPU-8a"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == visible_gpus({}, tmp_path) == []
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    four = ["0", "1", "2", "3"]
    assert [assigned_gpus(four, slot, 1) for slot in range(5)] == [["0"], ["1"], ["2"], ["3"], ["0"]]
    assert [assigned_gpus(four, slot, 2) for slot in range(3)] == [["0", "1"], ["2", "3"], ["0", "1"]]
    assert assigned_gpus(["7"], 1, 3) == ["7"]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a fake run of some kind with a launcher and returns (handle, log)."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    monkeypatch.setattr(launcher, "PROGRAM", [str(script)])
    forked = lambda command, preexec_fn, **more: fork_server.Popen(command, **more)
    monkeypatch.setattr(process, "subprocess", SimpleNamespace(Popen=forked, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT))
    handles = []

    def run(kind: str, *launch: str):
        log = tmp_path / "log"
        started = build_launcher(compose(list(launch)).launch, 1)
        handles.append(started.start(Job([kind, str(tmp_path)], tmp_path, None, log)))
        return handles[-1], log

    yield run
    for handle in handles:
        handle.stop()
        handle.stop()


def ended(handle) -> int:
    wait_until(lambda: handle.poll() is not None)
    return handle.poll()


def test_parallel_runs_have_separate_gpus_and_slots_are_reused(start, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    two_slots = build_launcher(compose().launch, 2)

    def run(kind: str, folder: str):
        (tmp_path / folder).mkdir()
        return two_slots.start(Job([kind, str(tmp_path / folder)], tmp_path, None, tmp_path / "log")), tmp_path / folder / "rank-0"

    first, second = run("ignores SIGTERM", "a"), run("gpus", "b")
    assert ended(second[0]) == 0
    third = run("gpus", "c")
    assert ended(third[0]) == 0
    wait_until(first[1].exists)
    assert [path.read_text() for _, path in (first, second, third)] == ["4", "5", "5"]
    first[0].stop()
    first[0].stop()
    assert ended(first[0]) == 128 + signal.SIGKILL
    single, _ = start("gpus")
    assert ended(single) == 0 and (tmp_path / "rank-0").read_text() == "4,5,6", "a single run has all GPUs"


@pytest.mark.parametrize("kind, status", [("mistake", 2), ("killed", 1)])
def test_torchrun_returns_the_status_of_the_run(start, kind, status):
    handle, log = start(kind, "launch=torchrun", "launch.processes=2")
    assert ended(handle) == status
    lines = [line for line in log.read_text().splitlines() if "OMP_NUM_THREADS" not in line and set(line) != {"*"}]
    assert lines == (["error: process rank 1 was killed by SIGKILL; its own lines are above"] if kind == "killed" else [])


def test_a_stop_request_reaches_the_ranks_and_their_status_is_returned(start, tmp_path):
    handle, _ = start("saved", "launch=torchrun", "launch.processes=2")
    wait_until(lambda: (tmp_path / "rank-1").exists() and (tmp_path / "rank-0").exists())
    assert len(children(handle.process.pid)) == 2
    handle.stop()
    assert ended(handle) == 75


@pytest.mark.slow  # quick: the two tests above, and tests/e2e/test_launches.py
@pytest.mark.parametrize("popen", [fork_server.Popen, subprocess.Popen], ids=["forked", "started"])
def test_a_single_run_with_torchrun_stops_and_continues(tmp_path, popen):
    """`python main.py launch=torchrun` has the output and the exit status of the run and forwards signals to it."""
    settings = runs.overrides("vectors", tmp_path, "logger.console=auto", "trainer.length=150steps", "trainer.micro_batch_size=16")
    command = [sys.executable, "main.py", "--config-dir", str(runs.VECTORS), *settings, "launch=torchrun"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = tmp_path / "vectors" / "run"
    first = popen(command, cwd=runs.ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: first.poll() is not None or ((run / "metrics.jsonl").exists() and len(runs.rows(run / "metrics.jsonl")) > 5))
    first.send_signal(signal.SIGTERM)
    out, _ = first.communicate(timeout=120)
    assert first.returncode == 75, out
    assert "Traceback" not in out and "the same command continues" in out
    step = len(runs.rows(run / "metrics.jsonl"))
    second = fork_server.Popen(command, cwd=runs.ROOT, env=environment, stdout=subprocess.DEVNULL)
    assert second.wait(120) == 0 and 5 < step < 150
    steps = [row["global_step"] for row in runs.rows(run / "metrics.jsonl") if "train/loss" in row]
    assert steps == list(range(1, 151))
    assert not (tmp_path / "sweeps").exists() and [path.name for path in (tmp_path / "vectors").iterdir()] == ["run"]
