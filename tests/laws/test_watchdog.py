"""A process that fails, dies or hangs ends the run soon, and the others name it with its host and step."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from linnaeus.distributed import DistributedContext
from linnaeus.distributed.watchdog import is_connection_error
from linnaeus.errors import ConfigError
from tests import fork_server, runs

LONG = ["trainer.length=1000000steps", "schedule.log=[50steps]", "schedule.report=[]", "schedule.checkpoint=[]"]
SCRIPT = (
    "import sys; from linnaeus.distributed import watchdog\n"
    "watchdog.STATUS_INTERVAL = 0.25; watchdog.LOST_AFTER = watchdog.LOST_AFTER_DISCONNECT = 4.0\n"
    "watchdog.LAUNCHER_GRACE = {grace}\n"
    "from tests import watching; from pathlib import Path; import contextlib, main\n"
    "with getattr(watching, {watch!r})(Path()) if {watch!r} else contextlib.nullcontext():\n"
    "    sys.exit(main.main())\n"
)


def group(root: Path, *more: str, watch: str = "", grace: float = 1.0, real: bool = False) -> list[subprocess.Popen]:
    """Start two processes of one run without a launcher, which would end the second after the first. `real`: start interpreters instead
    of forking the server."""
    start = subprocess.Popen if real else fork_server.Popen
    port = runs.free_port()
    command = [sys.executable, "-c", SCRIPT.format(watch=watch, grace=grace), "--config-dir", str(runs.VECTORS)]
    command += runs.overrides("vectors", root, *LONG, *more)
    options: dict[str, Any] = {"cwd": runs.ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [start(command, env=runs.rank_environment(rank, 2, MASTER_PORT=port), **options) for rank in range(2)]


def training(root: Path) -> Path:
    """Return the run directory once some updates have been made."""
    run, end = root / "vectors" / "run", time.monotonic() + 180
    while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").stat().st_size == 0:
        assert time.monotonic() < end, "no update was made"
        time.sleep(0.05)
    time.sleep(0.5)  # for one or two statuses
    return run


def ends(process: subprocess.Popen, within: float) -> str:
    """Return what a process printed. It must end with status 1 `within` seconds."""
    text, _ = process.communicate(timeout=within)
    assert process.returncode == 1, text
    return text


@pytest.fixture
def processes():
    """A list whose processes are killed at the end of the test."""
    started: list[subprocess.Popen] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


# a process that stands still is quick in test_watchdog_clock.py
STOPPED = pytest.param(signal.SIGSTOP, "has sent no status for", marks=pytest.mark.slow)


@pytest.mark.parametrize("number, text", [(signal.SIGKILL, "died at step"), STOPPED])
def test_a_process_that_dies_or_stands_still_is_named(tmp_path, processes, number, text):
    processes += group(tmp_path)
    run = training(tmp_path)
    processes[1].send_signal(number)
    if number == signal.SIGKILL:
        processes[1].wait()
    printed = ends(processes[0], within=100)
    error = runs.summary(run)["error"]
    assert f"process rank 1 on {socket.gethostname()} (pid {processes[1].pid})" in error and text in error
    assert error in printed and error in (run / "train.log").read_text()
    assert int(error.split("step ")[1].split()[0]) > 0


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_when_rank_0_dies_the_others_end_and_name_it(tmp_path, processes, real):
    processes += group(tmp_path, real=real)
    training(tmp_path)
    processes[0].kill()
    processes[0].wait()
    printed = ends(processes[1], within=100)
    assert "process rank 0 on" in printed or "the first node has failed" in printed


def test_the_cause_is_the_error_that_the_other_process_has_published(tmp_path, processes):
    processes += group(tmp_path, watch="last_rank_fails")
    printed = ends(processes[0], within=100)
    error = runs.summary(tmp_path / "vectors" / "run")["error"]
    assert "process rank 1" in error and "failed" in error and "ArithmeticError: an error of this process alone" in error
    assert "Traceback" not in printed
    assert "Traceback" in ends(processes[1], within=100)  # the failed process prints it itself


def test_a_group_without_progress_is_ended_and_the_process_that_hangs_is_named(tmp_path, processes):
    processes += group(tmp_path, "trainer.timeout=3s", "trainer.startup_timeout=60s", watch="last_rank_hangs")
    printed = ends(processes[0], within=100)
    assert "no process has made progress for" in printed and "furthest behind: process rank 1 on" in printed
    assert "process rank 0" not in printed and "at step 4 (training)" in printed


def test_rank_0_composes_the_configuration_and_every_rank_raises_its_error(monkeypatch):
    class Store(dict):
        def set(self, name, value):
            self[name] = value

        def get(self, name):
            return self[name]

    store, calls = Store(), []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(DistributedContext, "store", store)

    def refuse():
        calls.append(1)
        raise ConfigError("seed is -1; it must be at least 0")

    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        with pytest.raises(ConfigError, match="seed is -1"):
            DistributedContext().from_master("config", refuse)
    assert calls == [1]
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        assert DistributedContext().from_master("config", lambda: {"of": os.environ["RANK"]}) == {"of": "0"}
    for rank, error, text in ((0, OSError, "disk full"), (1, ConfigError, "process rank 0 failed with OSError: disk full")):
        monkeypatch.setenv("RANK", str(rank))
        with pytest.raises(error, match=f"^{text}$"):
            DistributedContext().from_master("config", mock.Mock(side_effect=OSError("disk full")))


def test_a_process_that_reads_the_configuration_differently_is_refused(monkeypatch):
    from linnaeus.config import shared
    from linnaeus.config.load import compose_tree

    tree = compose_tree([])
    assert shared.shared_config(lambda: tree).seed == 0
    monkeypatch.setattr(DistributedContext, "from_master", lambda self, name, make: {"tree": tree, "hash": "another", "environment": {}})
    with pytest.raises(ConfigError, match="derives another configuration from that of rank 0"):
        shared.shared_config(lambda: tree)


def test_connection_errors_are_recognised():
    assert is_connection_error(RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"))
    assert not is_connection_error(ValueError("Connection closed by peer")) and not is_connection_error(RuntimeError("shape mismatch"))
