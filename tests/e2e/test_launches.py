"""`python main.py` and `torchrun main.py` as a user types them: exit statuses, one directory, one log, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests import fork_server, runs
from tests.faults.spec import processes, signal_to

TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
LONG = ["trainer.length=100000steps", "schedule.log=[5steps]", "schedule.report=[]", "schedule.checkpoint=[]", "trainer.num_workers=1"]


def command(root: Path, *more: str, launcher: list[str] | None = None) -> list[str]:
    settings = runs.overrides("vectors", root, "logger.console=auto", "trainer.micro_batch_size=16", *more)
    return [sys.executable, *(launcher or []), "main.py", "--config-dir", str(runs.VECTORS), *settings]


def begin(mark: str, *arguments, real: bool = False, **keywords) -> subprocess.Popen:
    """Start a launch, each process of which carries `mark`. `real`: start interpreters instead of forking the server."""
    environment = {**os.environ, fork_server.MARK: mark, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    start = subprocess.Popen if real else fork_server.Popen
    return start(
        command(*arguments, **keywords), cwd=runs.ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def left_in_shared_memory() -> set[str]:
    """Segments of torch (`torch_<pid>_...`) whose process is no more."""
    folder = Path("/dev/shm")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return {name for name in names if name.startswith("torch_") and not Path("/proc", name.split("_")[1]).exists()}


def wait_in(launch: subprocess.Popen, mark: str, what, seconds: float = 180) -> None:
    """Until `what` holds while the launch lives; else the failure shows what the launch printed and where its threads stood."""
    end = time.monotonic() + seconds
    while not what():
        ended = launch.poll() is not None
        if ended or time.monotonic() > end:
            for pid in processes(mark):
                signal_to(pid, signal.SIGABRT)  # PYTHONFAULTHANDLER: each prints its stacks
            text, _ = launch.communicate(timeout=120)
            raise AssertionError(f"{f'it ended with {launch.returncode}' if ended else 'it did not happen'}:\n{text}")
        time.sleep(0.05)


@pytest.fixture
def mark():
    """A mark for a launch; whatever is still alive at the end is ended."""
    name = uuid.uuid4().hex
    yield name
    for pid in processes(name):
        signal_to(pid, signal.SIGKILL)


def test_a_run_that_is_asked_to_stop_is_continued_by_the_same_command_and_then_finished(tmp_path, mark):
    root = tmp_path / "stopped"
    metrics = root / "vectors/run/metrics.jsonl"
    long = begin(mark, root, *LONG, real=True)
    wait_in(long, mark, lambda: metrics.exists() and metrics.stat().st_size > 0)
    long.terminate()
    text, _ = long.communicate(timeout=120)
    assert long.returncode == 75 and "the same command continues" in text and "Traceback" not in text
    assert re.search(r"step \d+ was saved \d+\.\d s after SIGTERM", text) and "first update" not in text
    summary = json.loads((root / "vectors/run/summary.json").read_text())
    assert summary["status"] == "interrupted" and summary["global_step"] > 0
    assert processes(mark) == []

    again = begin(mark, root, *LONG[1:], f"trainer.length={summary['global_step'] + 2}steps", "run.allow=[trainer.length]")
    text, _ = again.communicate(timeout=120)
    assert again.returncode == 0 and f"continuing at step {summary['global_step']}" in text
    parts = r"first update [\d.]+ s after the start of the process: imports [\d.]+, data [\d.]+, model [\d.]+, checkpoint [\d.]+, "
    assert re.search(parts + r"first update [\d.]+\n", text)
    third = begin(mark, root, *LONG[1:], f"trainer.length={summary['global_step'] + 2}steps")
    text, _ = third.communicate(timeout=120)
    assert third.returncode == 0 and text.count("\n") == 1 and "is finished" in text


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_make_one_run_with_one_log_and_leave_nothing_behind(tmp_path, mark, real):
    before = left_in_shared_memory()
    launch = begin(
        mark, tmp_path / "runs", "trainer.num_workers=1", "trainer.length=6steps", "logger.report=true", launcher=TORCHRUN, real=real
    )
    text, _ = launch.communicate(timeout=120)
    assert launch.returncode == 0, text
    assert [str(p.relative_to(tmp_path)) for p in sorted(tmp_path.glob("runs/*/*"))] == ["runs/vectors/run"]
    run = tmp_path / "runs/vectors/run"
    assert [p.name for p in (run / "launches").iterdir()] == ["1"]
    assert json.loads((run / "run.json").read_text())["world_size"] == 2
    lines = [line.split(" ", 2)[-1] for line in (run / "train.log").read_text().splitlines() if line[:2].isdigit()]
    assert any(line.split()[:1] == ["report"] for line in lines)
    lines = [line for line in lines if line != "next"]  # twice, each above a command that is longer than a line
    assert len(lines) == len(set(lines)), "a line is doubled"
    assert len(re.findall(r"^report\b", text, re.M)) == 1 and text.count("\nvalidation: loss ") == 1, "the console has each line once"
    assert [row["global_step"] for row in runs.rows(run / "metrics.jsonl") if "train/loss" in row] == [1, 2, 3, 4, 5, 6]
    assert processes(mark) == [], "a process is left"
    assert left_in_shared_memory() <= before


def test_ranks_die_with_the_launcher(tmp_path, mark):
    """Under torchrun every rank has a session of its own; killing the agent alone must not leave ranks training."""
    root = tmp_path / "runs"
    metrics = root / "vectors/run/metrics.jsonl"
    launch = begin(mark, root, *LONG, launcher=TORCHRUN)
    wait_in(launch, mark, lambda: metrics.exists() and metrics.stat().st_size > 0)
    assert len(processes(mark)) >= 5  # the agent, two ranks, a worker each
    launch.kill()
    runs.wait_until(lambda: processes(mark) == [])
    launch.wait()
