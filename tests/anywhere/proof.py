"""Runs of 1, 2, 4 and 8 processes, and a run that goes 1 -> 4 -> 2 -> 8 under kills, end with the same files. `make test-anywhere`.

`trainer.deterministic=anywhere` with real processes of torchrun. The kills: SIGKILL, SIGTERM, SIGKILL. On 2 cores about 10 minutes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import runs
from tests.faults.settings import COMMON, GEAR, PLATEAU

STEPS = 12
ANYWHERE = ["trainer.deterministic=anywhere", f"trainer.length={STEPS}steps", "trainer.global_batch_size=32", "trainer.threads=null"]
ANYWHERE += ["debug.batch_hashes=false", "schedule.log=[1steps]"]
UNWEIGHTED = [text for text in COMMON if not text.startswith("weighting")]
# Dropout, drop-path, mixing, masking, null labels, GradNorm over the trunk, EMA; a last window of 21 samples in 8 micro-batches of 4.
BIOTA = ["weighting.place=trunk", "augment=standard", "head.nulls=phase_in", "schedule.null_mask_prob.start=0.5"]
BIOTA += ["schedule.meta_mask_prob={start: 0.1, end: 0.5, begin: 0%, until: 100%}", "schedule.partial_meta_mask_prob.start=0.4"]
BIOTA += ["schedule.validate_mask_meta=[3steps]", "schedule.validate_partial_mask_meta=[3steps]"]
BIOTA += ["schedule.partial_combinations=[[SPATIAL], [TEMPORAL, ELEVATION]]"]
WORKLOADS = {
    "biota": [*COMMON, *BIOTA, *ANYWHERE],
    "vectors": [*COMMON, *PLATEAU, "model.dropout=0.2", "trainer.precision=fp16", *ANYWHERE],
    "language": [*UNWEIGHTED, *ANYWHERE],
    "loadout": [*UNWEIGHTED, *GEAR, *ANYWHERE],
    "planted": [*UNWEIGHTED, *ANYWHERE, "model=batch_topk"],
}
CHAIN = [
    (1, signal.SIGKILL, 2),
    (4, signal.SIGTERM, 5),
    (2, signal.SIGKILL, 8),
    (8, None, STEPS),
]  # processes, the signal that ends them, after which row
FILES = ("metrics.jsonl", "reports.jsonl", "alarms.jsonl", "validation/*/*.json")
FILES += tuple(f"checkpoints/*/{name}" for name in ("model.safetensors", "ema.safetensors", "training_state.pt"))


def start(workload: str, root: Path, processes: int, *more: str) -> subprocess.Popen[str]:
    """Start a run with torchrun. Its output goes to log.txt beside `root`."""
    settings = runs.overrides(workload, root, *WORKLOADS[workload], *more)
    config_dir = ["--config-dir", str(runs.VECTORS)] if workload == "vectors" else []
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # torchrun sets 1 only for several
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "log.txt", "a") as log:
        command = [sys.executable, *(torchrun if processes > 1 else []), "main.py", *config_dir, *settings]
        return subprocess.Popen(command, cwd=runs.ROOT, env=environment, stdout=log, stderr=log, text=True)


def finished(workload: str, root: Path, processes: int, *more: str) -> Path:
    """Run to the end without interruption. Return the run directory."""
    begin = time.monotonic()
    assert start(workload, root, processes, *more).wait(900) == 0, (root / "log.txt").read_text()[-4000:]
    print(f"{workload} on {processes}: {time.monotonic() - begin:.0f} s", flush=True)
    return runs.run_path(runs.configuration(workload, root, *WORKLOADS[workload], *more))


def changed(workload: str, root: Path) -> Path:
    """Run the chain of `CHAIN`. Return the run directory."""
    run = runs.run_path(runs.configuration(workload, root, *WORKLOADS[workload]))
    for processes, number, step in CHAIN:
        process = start(workload, root, processes)
        if number is None:
            assert process.wait(900) == 0, (root / "log.txt").read_text()[-4000:]
            continue
        wait_for_row(run / "metrics.jsonl", step, process, root / "log.txt")
        process.send_signal(number)
        assert process.wait(120) != 0, "the run ended before the signal"
        time.sleep(2)  # the processes of a killed torchrun die with it
        print(f"{workload} on {processes}: {number.name} after the row of step {step}", flush=True)
    return run


def wait_for_row(path: Path, step: int, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + 900
    while not path.exists() or not re.search(rf'"global_step": ?{step}\b', path.read_text()):
        assert time.monotonic() < deadline and process.poll() is None, log.read_text()[-4000:]
        time.sleep(0.02)


def different(a: Path, b: Path) -> list[str]:
    """Return the names of the files that `cmp` would report."""
    names = {str(path.relative_to(run)) for run in (a, b) for pattern in FILES for path in run.glob(pattern)}
    assert any(name.startswith("validation") for name in names) and any(name.endswith(".pt") for name in names)
    same = {name for name in names if runs.bytes_of(a / name) == runs.bytes_of(b / name)}
    print(f"{b.parents[0].name}, {b.parents[1].name}: {len(same)} of {len(names)} files are the same as on one process", flush=True)
    return sorted(names - same)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_any_number_of_processes_and_any_change_of_it_gives_the_same_files(tmp_path, workload):
    print()
    one = finished(workload, tmp_path / "one", 1)
    for processes in (2, 4, 8) if workload == "biota" else (4,):
        assert different(one, finished(workload, tmp_path / f"on-{processes}", processes)) == []
    chain = changed(workload, tmp_path / "changed")
    assert different(one, chain) == []
    assert len(list((chain / "launches").iterdir())) == len(CHAIN)


def test_negative_control_the_ordinary_reduction_differs(tmp_path):
    print()
    one, two = (finished("biota", tmp_path / f"ordinary-on-{n}", n, "trainer.deterministic=true", "trainer.threads=1") for n in (1, 2))
    found = different(one, two)
    assert {"metrics.jsonl", f"checkpoints/step-{STEPS:08}/model.safetensors", f"checkpoints/step-{STEPS:08}/training_state.pt"} <= {*found}
