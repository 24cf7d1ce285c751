"""A run that is stopped by SIGTERM 100 times, and started on one host and on two hosts in turn, reads every sample once an epoch.

    python -m pytest tests/multinode/alternations.py -s       needs root; about 15 minutes on 2 cores; LAUNCHES=N: N launches instead

With `trainer.deterministic=anywhere`, so its last weights also equal those of a run of one process that was never stopped. SIGTERM goes to
torchrun on all hosts, or on one of them: the processes agree on the step at which they stop.
"""

from __future__ import annotations

import filecmp
import json
import os
import random
import signal
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

LAUNCHES = int(os.environ.get("LAUNCHES", "100"))
SAMPLES, BATCH, MICRO = 130, 32, 8  # an epoch is 4 updates of 32 samples and one of 2
PER_EPOCH = -(-SAMPLES // BATCH)
SETTINGS = [f"data.train_samples={SAMPLES}", f"trainer.global_batch_size={BATCH}", f"trainer.micro_batch_size={MICRO}"]
SETTINGS += ["trainer.deterministic=anywhere", "schedule.log=[1epochs]", "schedule.validate=[50epochs]", "schedule.checkpoint=[50epochs]"]
SETTINGS += [
    "trainer.length=1000000steps",
    "debug.batch_hashes=true",
    "model.dropout=0.2",
    "trainer.ema_decay=0.9",
    "logger.console=plain",
    "logger.report=false",
]
PORT = "29473"


def command(root: Path, *more: str) -> list[str]:
    return ["main.py", "--config-dir", str(runs.VECTORS), *runs.overrides("vectors", root, *SETTINGS, *more)]


def launch(hosts: tuple[Host, ...], root: Path) -> list[subprocess.Popen[str]]:
    """Start the run with one process on each of `hosts`."""
    nodes = ["--nproc-per-node=1", f"--nnodes={len(hosts)}", f"--master-addr={hosts[0].address}", f"--master-port={PORT}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *nodes]
    return [
        host.start(
            [*torchrun, f"--node-rank={host.number}", f"--local-addr={host.address}", *command(root)],
            root.parent / f"log.{host.name}",
            runs.ROOT,
        )
        for host in hosts
    ]


def terminate_torchrun(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to the torchrun below `process`, and to no other process."""
    below = [process.pid]
    for pid in below:
        below += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    words = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in below}
    [torchrun] = [pid for pid in below if words[pid][0] == sys.executable and "torch.distributed.run" in words[pid]]
    os.kill(torchrun, signal.SIGTERM)


def last_step(run: Path) -> int:
    path = run / "metrics.jsonl"
    rows = path.read_text().splitlines() if path.exists() else []
    return int(json.loads(rows[-1])["global_step"]) if rows else 0


def stopped_launch(hosts: tuple[Host, ...], signalled: list[int], root: Path, run: Path) -> None:
    """Start the run on `hosts`, send SIGTERM to `signalled` (indices) after its next row, and wait until all have ended."""
    before, deadline = last_step(run), time.monotonic() + 180
    processes = launch(hosts, root)
    while last_step(run) == before:
        assert time.monotonic() < deadline and all(p.poll() is None for p in processes), text(root)
        time.sleep(0.02)
    for number in signalled:
        terminate_torchrun(processes[number])
    for process in processes:
        process.wait(120)


def text(root: Path) -> str:
    return "\n".join(path.read_text()[-3000:] for path in sorted(root.parent.glob("log.host*")))


def real(row: dict[str, Any]) -> list[str]:
    """Return the samples of a micro-batch without the stand-ins after the last sample of an epoch."""
    first = (row["global_step"] - 1) % PER_EPOCH * BATCH + row["micro_batch"] * MICRO
    return list(row["samples"][: max(0, min(MICRO, SAMPLES - first))])


def incomplete(rows: list[dict[str, Any]], epochs: int) -> list[int]:
    """Return the numbers of the epochs, of the first `epochs`, in which some sample was not read exactly once."""
    seen: list[list[str]] = [[] for _ in range(epochs + 1)]
    for row in rows:
        seen[(row["global_step"] - 1) // PER_EPOCH] += real(row)
    everything = sorted({sample for samples in seen for sample in samples})
    assert len(everything) == SAMPLES
    return [number for number in range(epochs) if sorted(seen[number]) != everything]


def test_one_and_two_hosts_in_turn(tmp_path):
    root = tmp_path / "runs"
    run, draw = root / "vectors/run", random.Random(0)
    with two_hosts() as hosts:
        for number in range(LAUNCHES):
            used = hosts[: 1 + number % 2]
            signalled = draw.choice([[0], [1], [0, 1]]) if len(used) == 2 else [0]
            stopped_launch(used, signalled, root, run)
            step = runs.newest(run).step
            print(f"\rlaunch {number + 1}, {len(used)} processes, stopped at step {step}", end="", flush=True)
    print()
    changes = [line for line in (run / "train.log").read_text().splitlines() if "when the checkpoint was written" in line]
    assert len(changes) == LAUNCHES - 1 == len(list((run / "launches").iterdir())) - 1

    rows = [row for path in sorted(run.glob("batches-rank*.jsonl")) for row in runs.rows(path)]
    epochs = step // PER_EPOCH
    assert epochs >= LAUNCHES and incomplete(rows, epochs) == []
    assert incomplete(rows[1:], epochs) == [0], "negative control: a micro-batch is missing"
    print(f"{epochs} epochs, {step} updates: each of {SAMPLES} samples once an epoch")

    never = tmp_path / "never"
    subprocess.run(
        [sys.executable, *command(never, f"schedule.early_stop.max_steps={step}")], cwd=runs.ROOT, check=True, capture_output=True
    )
    files = [next((folder / "checkpoints").glob(f"step-{step:08}")) / "model.safetensors" for folder in (run, never / "vectors/run")]
    assert filecmp.cmp(*files, shallow=False)
