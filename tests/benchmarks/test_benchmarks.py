"""The benchmarks run, and what they compare does the same job."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import reporting
from benchmarks.drivers import FusedAndClipped, Ours, Plain
from benchmarks.loop_overhead import SLICES, configure
from linnaeus.distributed import DistributedContext
from tests import fork_server

# From 0.1 s (pyarrow) to 1 s (torch._dynamo) each; none is needed to train on the embedded data.
SLOW_TO_IMPORT = {"torch._dynamo", "sympy", "torchvision", "timm", "wandb", "pyarrow", "rich", "tensorboard", "pandas"}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def drivers(tmp_path):
    threads = torch.get_num_threads()
    context = DistributedContext().initialize(device="cpu")
    # No decay: ours leaves biases out of it, torch's default does not.
    ours = Ours(configure(["optimizer.weight_decay=0"], 16, 20, 2, str(tmp_path)), context)
    peers = [kind(ours.config, context, ours.workload, ours.plan) for kind in (FusedAndClipped, Plain)]
    for peer in peers:
        peer.optimizer.param_groups[0]["weight_decay"] = 0.0
    yield ours, *peers
    ours.close()
    torch.set_num_threads(threads)


def test_our_loop_and_the_well_made_one_make_the_same_updates(drivers):
    def largest_difference(a, b):
        return max((p - q).abs().max().item() for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True))

    ours, fused, plain = drivers
    assert largest_difference(ours, fused) == 0
    for epoch in range(2):
        assert all(driver(epoch) > 0 for driver in drivers)
    assert largest_difference(ours, fused) < 1e-5
    assert largest_difference(ours, plain) > 1e-4  # negative control: without clipping it is another training
    assert ours.training.progress.global_step == 40


@pytest.mark.slow
def test_loop_overhead_writes_every_number(tmp_path):
    words = ["--model", "mlp", "--rounds", "2", "--updates", "4", "--json", str(tmp_path / "x")]
    done = fork_server.run([sys.executable, "-m", "benchmarks.loop_overhead", *words], cwd=ROOT)
    assert done.returncode == 0 and len(done.stdout.splitlines()) > 2, done.stderr
    table = json.loads((tmp_path / "x").read_text())["tables"][0]
    assert {"linnaeus", "plain loop", "fused, clipped, metrics"} <= table["variants"].keys()
    assert all(len(row["seconds"]) == 2 * SLICES for row in table["variants"].values())
    assert [bar["at_most"] for bar in table["bars"]] == [0.90, 1.12]


@pytest.mark.slow
def test_start_up_times_main_to_its_first_update(tmp_path):
    start = time.time()
    arguments = ["trainer.num_workers=0", "trainer.threads=1", "data.train_samples=128", f"run.root={tmp_path}"]
    command = [sys.executable, "-X", "importtime", "benchmarks/first_step.py", "main", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "first step at" in done.stdout.splitlines()[-1]
    assert start < float(done.stdout.split()[-1]) <= time.time()
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "torch" in imported
    assert not imported & SLOW_TO_IMPORT
    (directory,) = (tmp_path / "biota").iterdir()
    assert not (directory / "metrics.jsonl").exists()  # it ended right there


@pytest.mark.slow
def test_reporting_compares_everything_on_with_everything_off(monkeypatch):
    monkeypatch.setitem(reporting.MODELS, "mlp", (8, 60, []))
    table = reporting.overhead("mlp", rounds=1, pairs=2)
    assert set(table["seconds"]) == {"on0", "off0", "on1", "off1"} and len(table["pairs"]) == 2
    assert table["bars"][0]["at_most"] == 1.03 and table["bars"][0]["low"] <= table["bars"][0]["median"] <= table["bars"][0]["high"]
