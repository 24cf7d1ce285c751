"""A run on two hosts that is killed on one of them and started again ends with the same results. `make test-multinode`; needs root.

One process on each host, torchrun's rendezvous over the network, one run directory on a shared disk. After a host dies the other process
ends within `END_SECONDS` and prints which host died.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import runs
from tests.multinode.hosts import Host, two_hosts, why_not

MISSING = why_not()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"two hosts cannot be made: {MISSING}")

END_SECONDS = 60  # the watchdog waits 30 s, and torchrun needs some seconds to end
PORT = "29471"
SETTINGS = ["trainer.length=2000steps", "schedule.log=[20steps]", "schedule.report=[25%]", "schedule.checkpoint=[200steps]"]
SETTINGS += ["schedule.validate=[25%]", "data.train_samples=130", "logger.console=plain", "debug.batch_hashes=true"]


def static(hosts: tuple[Host, Host], host: Host) -> list[str]:
    """Return the options of a rendezvous with fixed node ranks."""
    return [f"--node-rank={host.number}", f"--master-addr={hosts[0].address}", f"--master-port={PORT}", f"--local-addr={host.address}"]


def c10d(hosts: tuple[Host, Host], host: Host) -> list[str]:
    """Return the options of a rendezvous on the first host that assigns the node ranks."""
    endpoint = [f"--rdzv-endpoint={hosts[0].address}:{PORT}", f"--rdzv-conf=is_host={int(host.number == 0)}"]
    return ["--rdzv-backend=c10d", "--rdzv-id=proof", *endpoint, f"--local-addr={host.address}"]


def start(hosts: tuple[Host, Host], root: Path, log: Path, rendezvous: Any, private: Path | None = None) -> list[subprocess.Popen[str]]:
    """Start the same command on both hosts, output in `log`.host0 and `log`.host1. `private`: the second host has its own disk there."""
    settings = ["main.py", "--config-dir", str(runs.VECTORS), *runs.overrides("vectors", root, *SETTINGS)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    return [
        host.start([*torchrun, *rendezvous(hosts, host), *settings], log.with_suffix(f".{host.name}"), runs.ROOT, private=disk)
        for host, disk in zip(hosts, (None, private))
    ]


def ended(processes: list[subprocess.Popen[str]], seconds: float = 300) -> list[int]:
    end = time.monotonic() + seconds
    return [process.wait(max(0.1, end - time.monotonic())) for process in processes]


def text(log: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(log.parent.glob(f"{log.stem}.host*")))


def wait_for_step(run: Path, step: int, processes: list[subprocess.Popen[str]], seconds: float = 120) -> None:
    """Wait until metrics.jsonl has a row of `step`."""
    end, rows = time.monotonic() + seconds, run / "metrics.jsonl"
    while not rows.exists() or not re.search(rf'"global_step": ?{step}\b', rows.read_text()):
        assert time.monotonic() < end and all(process.poll() is None for process in processes), "the run has stopped"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return the run directory of a run on two hosts that was not killed."""
    folder = tmp_path_factory.mktemp("whole")
    with two_hosts() as hosts:
        processes = start(hosts, folder / "runs", folder / "log", static)
        assert ended(processes) == [0, 0], text(folder / "log")
    run = folder / "runs/vectors/run"
    record = json.loads((run / "run.json").read_text())
    assert record["world_size"] == 2 and [path.name for path in (run / "launches").iterdir()] == ["1"]
    return run


@pytest.mark.parametrize(("dying", "rendezvous", "silently"), [(1, static, False), (0, static, False), (1, static, True), (1, c10d, False)])
def test_a_host_that_dies_is_named_and_the_run_continues(whole, tmp_path, dying, rendezvous, silently):
    """`silently`: the host is disconnected first, so that the other one sees no closed connection."""
    root, run = tmp_path / "runs", tmp_path / "runs/vectors/run"
    with two_hosts() as hosts:
        processes = start(hosts, root, tmp_path / "first", rendezvous)
        wait_for_step(run, 700, processes)
        if silently:
            hosts[dying].connect("down")
        hosts[dying].kill()
        killed_at = time.monotonic()
        assert ended([processes[1 - dying]], END_SECONDS) != [0]
        seconds = time.monotonic() - killed_at
        if silently:
            hosts[dying].connect()
        text_of_other = (tmp_path / f"first.host{1 - dying}").read_text()
        named = re.search(rf"^error.*?(process rank {dying} on {hosts[dying].name} \(pid \d+\).* at step \d+.*)", text_of_other, re.M)
        assert named, text_of_other
        print(f"\nhost{dying} dies{' silently' if silently else ''}, {seconds:.0f} s later the other process ends: {named[1]}")

        processes = start(hosts, root, tmp_path / "second", rendezvous)
        assert ended(processes) == [0, 0], text(tmp_path / "second")
    assert "continuing at step" in text(tmp_path / "second")
    assert runs.differences(whole, run) == []


def test_a_disk_that_the_hosts_do_not_share_is_one_line(tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    with two_hosts() as hosts:
        processes = start(hosts, root, tmp_path / "log", static, private=root)
        assert 0 not in ended(processes)
    # torchrun repeats the reason of the first failure at the end of its own page, as `traceback : error: run.root: ...`
    lines = [line for line in text(tmp_path / "log").splitlines() if line.startswith("error: run.root: ")]
    assert len(lines) == 1 and str(root) in lines[0] and "process rank 1 on host1" in lines[0], text(tmp_path / "log")
