"""Run sweeps whose trials are fake runs (`fake_run.py`), or real runs in `test_real_runs.py`. The command and its trials are forked."""

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.runs import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Sweep:
    """Command of a sweep, whose directories are below `root`/sweeps."""

    def __init__(self, root: Path, *arguments: str, program: tuple[str, ...] = ("-m", "tests.sweep.command")) -> None:
        self.root = root
        self.command = [sys.executable, *program, "-m", f"run.root={root}", *arguments]
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(self, seconds: float = 0.01) -> subprocess.Popen[str]:
        """Start the command; an update of a fake run takes `seconds`."""
        environment = {**self.environment, "UPDATE_SECONDS": str(seconds)}
        return fork_server.Popen(
            self.command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(self, seconds: float = 0.01) -> tuple[int, str, str]:
        """Run the command to its end. Return (exit status, stdout, stderr)."""
        process = self.start(seconds)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    @property
    def directory(self) -> Path:
        (directory,) = (self.root / "sweeps").iterdir()
        return directory

    def text(self, name: str) -> str:
        return (self.directory / name).read_text()

    def statuses(self) -> list[str]:
        lines = self.text("trials.csv").splitlines() if list(self.root.glob("sweeps/*/trials.csv")) else []
        return [line.split(",")[lines[0].split(",").index("status")] for line in lines[1:]]


def started(out: str) -> list[int]:
    """Return the process ids of the trials in the output of a sweep."""
    return [int(number) for number in re.findall(r"started \(\w+ (\d+)\)", out)]


def state(pid: int) -> str:
    """Return the letter by which Linux names the state of a process: T for stopped, Z or X for ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    return state(pid) not in "ZX"


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def kill(process: subprocess.Popen[str]) -> str:
    """Send SIGKILL to the parent only. Return its output. Check that its trials end, too."""
    trials = children(process)
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: not alive(process.pid))  # on a busy machine trials that continue before could finish
    for pid in trials:  # one that `kill_when` stopped before it asked Linux for a signal at the end of its parent would stay stopped
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=120)
    assert started(out)
    wait_until(lambda: not any(alive(pid) for pid in started(out)), 30)
    return out


def kill_when(condition: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 120) -> str:
    """Kill the parent while `condition()` is true. Return the output of the parent.

    All processes are stopped before the last check, so the condition cannot change before the kill."""
    wait_until(functools.partial(_stop_and_check, condition, process), seconds)
    return kill(process)


def _stop_and_check(condition: Callable[[], Any], process: subprocess.Popen[str]) -> bool:
    """Return True if `condition()` is true with the parent and its trials stopped. Otherwise continue them."""
    if not condition():
        return False
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: state(process.pid) in "TZX")
    trials = children(process)
    for pid in trials:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(state(pid) in "TZX" for pid in trials))
    if condition():
        return True
    for pid in [*trials, process.pid]:
        os.kill(pid, signal.SIGCONT)
    return False


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., Sweep]:
    """Return a function `sweep(folder, arguments...)`."""
    return lambda folder, *arguments, **more: Sweep(tmp_path / folder, *arguments, **more)
