"""A run on two hosts is killed on one of them, started again, and ends as the run that was not. `make test-multinode`; needs root.

Two processes, one on each host, torchrun's rendezvous over the network between them, one run directory on a disk that both see. A
host that dies takes the run down within `TOLD` seconds, with a line on the other one that says who died.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import runs
from tests.multinode.hosts import Host, two_hosts, why_not

MISSING = why_not()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"two hosts cannot be made here: {MISSING}")

TOLD = 60  # seconds: silence is taken for death after 30, and torchrun takes some to end
PORT = "29471"
SETTINGS = ["trainer.length=2000steps", "schedule.log=[20steps]", "schedule.report=[25%]", "schedule.checkpoint=[200steps]"]
SETTINGS += ["schedule.validate=[25%]", "data.train_samples=130", "logger.console=plain", "debug.batch_hashes=true"]


def static(hosts: tuple[Host, Host], host: Host) -> list[str]:
    """The rendezvous with a fixed place for each host."""
    return [f"--node-rank={host.number}", f"--master-addr={hosts[0].address}", f"--master-port={PORT}", f"--local-addr={host.address}"]


def c10d(hosts: tuple[Host, Host], host: Host) -> list[str]:
    """The rendezvous that gives places out, held by the first host."""
    endpoint = [f"--rdzv-endpoint={hosts[0].address}:{PORT}", f"--rdzv-conf=is_host={int(host.number == 0)}"]
    return ["--rdzv-backend=c10d", "--rdzv-id=proof", *endpoint, f"--local-addr={host.address}"]


Rendezvous = Callable[[tuple[Host, Host], Host], list[str]]


def start(
    hosts: tuple[Host, Host], root: Path, log: Path, rendezvous: Rendezvous, private: Path | None = None
) -> list[subprocess.Popen[str]]:
    """The same command on both hosts; they print to `log`.host0 and `log`.host1. At `private` the second has a disk of its own."""
    settings = ["main.py", "--config-dir", str(runs.VECTORS), *runs.overrides("vectors", root, *SETTINGS)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    commands = [[*torchrun, *rendezvous(hosts, host), *settings] for host in hosts]
    disks = (None, private)
    return [
        host.start(command, log.with_suffix(f".{host.name}"), runs.ROOT, private=disk)
        for host, command, disk in zip(hosts, commands, disks)
    ]


def ended(processes: list[subprocess.Popen[str]], seconds: float = 300) -> list[int]:
    end = time.monotonic() + seconds
    return [process.wait(max(0.1, end - time.monotonic())) for process in processes]


def text(log: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(log.parent.glob(f"{log.stem}.host*")))


def wait_for_step(run: Path, step: int, processes: list[subprocess.Popen[str]], seconds: float = 120) -> None:
    """Until the rows have come to `step`."""
    end, rows = time.monotonic() + seconds, run / "metrics.jsonl"
    while not rows.exists() or not re.search(rf'"global_step": ?{step}\b', rows.read_text()):
        assert time.monotonic() < end and all(process.poll() is None for process in processes), "the run does not get on"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run directory of the run on two hosts that nobody disturbed."""
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
    """`silently`: the cable is pulled before, so that no closed connection tells the other host."""
    root, run = tmp_path / "runs", tmp_path / "runs/vectors/run"
    with two_hosts() as hosts:
        processes = start(hosts, root, tmp_path / "first", rendezvous)
        wait_for_step(run, 700, processes)
        if silently:
            hosts[dying].cut_off()
        hosts[dying].kill()
        began = time.monotonic()
        assert ended([processes[1 - dying]], TOLD) != [0]
        took = time.monotonic() - began
        if silently:
            hosts[dying].connect()
        said = (tmp_path / f"first.host{1 - dying}").read_text()
        named = re.search(rf"^error.*?(process rank {dying} on {hosts[dying].name} \(pid \d+\).* at step \d+.*)", said, re.M)
        assert named, said
        print(f"\nhost{dying} dies{' silently' if silently else ''}, {took:.0f} s later the other one ends: {named[1]}")

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
    said = [line for line in text(tmp_path / "log").splitlines() if "rror: run.root: " in line]
    assert len(said) == 1 and str(root) in said[0] and "process rank 1 on host1" in said[0], text(tmp_path / "log")
