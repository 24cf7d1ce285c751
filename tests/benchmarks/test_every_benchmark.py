"""Every benchmark runs, in its quickest form. Figures are not judged here: tests are never timed."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from linnaeus.workloads.taxonomy.biota.__main__ import biota_config, export
from tests import fork_server

ROOT = Path(__file__).resolve().parents[2]
QUICKEST: dict[str, str | list[str]] = {
    "anywhere": "--rounds 1 --updates 1",
    "checkpoint": "--quick --bar --rounds 1",
    "data": "--quick",
    "dictionary": "--quick",
    "dictionary_recovery": "--sets easy large --seeds 0 --variants topk --samples 1024 --tested 99 --results {photos}.jsonl --controls PCA",
    "doctor": "--quick",
    "gradnorm": ["--quick", "--rounds", "1", "--updates", "1", "--variants", "GradNorm, last shared layer"],
    "guarantee": "--synthetic --draws 2 --size 300 --photographs 600",
    "larger_than_memory": "--quick",
    "language": "--quick --only cpu --rounds 1 --updates 2",
    "loadout": "--quick --rounds 1 --updates 2",
    "plants480": "{photos} data.group_column=null trainer.length=1steps data.image_size=32 model.size=micro --splits 0",
    "places": "--species 4 --observations 64 --epochs 1 --sides 100 --worlds wide parks",
    "predict": "--quick",
    "prepare_many": "--quick --processes 1",
    "reporting": "--updates 20",
    "start_up": "--rounds 1",
    "vision": "--device cpu --networks test --compile false --rounds 1 --updates 1",
    "state_precision": "--quick",
    "vocabulary_loss": "--quick --tokens 8 --vocabulary 50 --no-compile",
    "tree_scale": "--leaves 1000 --heads marginal --losses cross_entropy --rounds 1",
}
FAST = {"checkpoint", "places", "plants480", "vocabulary_loss"}  # at most 2 s of CPU time each; the others are slow
ELSEWHERE = {"data_accuracy", "heads", "predicted_path", "recipes"}  # they need whole runs, so test_<name>.py tests their parts
ELSEWHERE |= {"loop_overhead"}  # test_benchmarks.py
ELSEWHERE |= {"on_gpu"}  # test_gpu_steps.py
REAL = {"predict"}  # they start processes while they have threads
PARTS = {
    "__init__",
    "big_trees",
    "data_peers",
    "drivers",
    "first_step",
    "interleaved",
    "loadout_trials",
    "machine",
    "peer_processes",
    "pillow_pixels",
    "tree_step",
}  # without a command of their own


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    export(biota_config(train=60, validation=30), folder)
    return folder / "manifest.csv"


def test_no_benchmark_is_left_out():
    folder = ROOT / "benchmarks"
    commands = {path.stem for path in folder.glob("*.py")} - PARTS | {path.parent.name for path in folder.glob("*/__main__.py")}
    assert commands == {*QUICKEST, *ELSEWHERE}


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in QUICKEST])
def test_it_runs(name: str, photos: Path):
    words = QUICKEST[name]
    words = words.format(photos=photos).split() if isinstance(words, str) else words
    command = [sys.executable, "-m", f"benchmarks.{name}", *words]
    real = functools.partial(subprocess.run, capture_output=True, text=True, check=False)
    done = (real if name in REAL else fork_server.run)(command, cwd=ROOT)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr[-3000:]  # 1: a bar is missed
    assert len(done.stdout.splitlines()) > 2
