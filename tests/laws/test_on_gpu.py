"""Laws that only a GPU can break; skipped where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from unittest import mock

import pytest
import torch
import yaml

from linnaeus.train import loop
from linnaeus.train.building import micro_batch, trial_update
from tests.runs import ROOT, configuration, differences, overrides, resumed, run, run_path, start, summary

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]
CUDA = ["trainer.device=cuda", "schedule.log=[6steps]"]


@pytest.mark.parametrize("moments", ["float32", "bf16"])
def test_nothing_between_log_boundaries_waits_for_the_device(tmp_path, moments):
    """Law 5: every step runs with synchronising calls made errors; the first one may still build constants."""
    step, calls = loop.train_one_step, []

    def guarded(*args):
        calls.append(1)
        torch.cuda.set_sync_debug_mode("error" if len(calls) > 2 else "default")
        try:
            step(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    with mock.patch.object(loop, "train_one_step", guarded):
        assert start(configuration("biota", tmp_path, *CUDA, f"optimizer.state_precision={moments}")) == 0
    assert len(calls) == 9


def test_the_guard_can_fail(tmp_path):
    tensor = torch.ones(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError):
            tensor.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision, value", [("float32", "true"), ("bf16", "true"), ("fp16", "true"), ("bf16", "anywhere")])
def test_a_run_trains_and_continues_bit_for_bit_when_deterministic(tmp_path, precision, value):
    options = [*CUDA, f"trainer.precision={precision}", f"trainer.deterministic={value}", "schedule.log=[1steps]"]
    whole = configuration("biota", tmp_path / "whole", *options)
    assert start(whole) == 0
    cut = configuration("biota", tmp_path / "cut", *options)
    boundary, seen = loop.end_step, []

    def stop_at_four(t):
        seen.append(1)
        t.stop.signal = "SIGTERM" if len(seen) == 4 else t.stop.signal
        boundary(t)

    with mock.patch.object(loop, "end_step", stop_at_four):
        assert start(cut) == 75
    assert start(cut) == 0
    assert differences(run_path(whole), run_path(cut)) == []


def test_moments_in_bf16_continue_bit_for_bit(tmp_path):
    options = [*CUDA, "optimizer.state_precision=bf16", "trainer.deterministic=true", "schedule.checkpoint=[2steps]"]
    whole = run("biota", tmp_path / "whole", *options)
    assert differences(whole, resumed(configuration("biota", tmp_path / "cut", *options), (loop, "train_one_step", 4))) == []


@pytest.mark.parametrize("choice", ["none", "blocks"])
def test_compiled_blocks_continue_bit_for_bit(tmp_path, choice):
    """With dropout and drop-path drawn inside the graphs, and drawn again where activations are recomputed."""
    options = [*CUDA, "trainer.compile=blocks", f"trainer.activation_checkpointing={choice}", "trainer.precision=bf16"]
    options += ["trainer.deterministic=true", "schedule.checkpoint=[2steps]"]
    whole = run("biota", tmp_path / "whole", *options)
    assert differences(whole, resumed(configuration("biota", tmp_path / "cut", *options), (loop, "train_one_step", 4))) == []


def test_the_second_launch_compiles_in_less_time(tmp_path):
    """Each launch has an empty folder for torch's own caches, as on another machine. The second one has the cache of the first run."""
    found = []
    for name in ("first", "second"):
        root = tmp_path / name
        if found:
            shutil.copytree(tmp_path / "first/biota/run/compile_cache", root / "biota/run/compile_cache")
        options = overrides("biota", root, *CUDA, "trainer.compile=blocks")
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(root / "torch")}
        subprocess.run([sys.executable, "main.py", *options], cwd=ROOT, env=environment, check=True, capture_output=True)
        found.append(summary(root / "biota" / "run"))
    assert [launch["compiled"]["cached"] for launch in found] == [False, True]
    seconds = [launch["timings"]["time/compiling_seconds"] for launch in found]
    assert seconds[1] < 0.6 * seconds[0], seconds


def test_the_largest_micro_batch_that_fits(tmp_path, monkeypatch):
    """First every size fits; then the memory is limited to the middle between what two sizes have used."""
    limit, peaks = [float("inf")], []

    class Memory(trial_update.DeviceMemory):
        def __init__(self, device):
            super().__init__(device)
            self.limit = min(self.limit, limit[0])

        def peak(self):
            peaks.append(super().peak())
            return peaks[-1]

    monkeypatch.setattr(micro_batch, "device_memory", Memory)
    options = [*CUDA, "trainer.deterministic=true", "trainer.global_batch_size=512", "data.train_samples=512", "data.image_size=64"]
    options += ["trainer.length=2steps", "schedule.validate=[100%]", "data.validation_batch=null"]

    def found(name):
        run_directory = run("biota", tmp_path / name, *options, "trainer.micro_batch_size=auto")
        return run_directory, yaml.safe_load((run_directory / "config.yaml").read_text())["trainer"]["micro_batch_size"]

    assert found("all")[1] == 512
    sizes = dict(zip([2**i for i in range(1, 10)], peaks, strict=True))
    below = max(size for size, peak in sizes.items() if peak < 0.8 * sizes[512])
    limit[0] = (sizes[below] + sizes[512]) / 2
    directory, size = found("limited")
    assert below <= size < 512, (size, sizes)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    given = run("biota", tmp_path / "given", *options, f"trainer.micro_batch_size={size}")
    assert differences(directory, given) == []
    assert torch.cuda.max_memory_reserved() < 1.1 * limit[0]


def test_what_a_failed_trial_has_allocated_is_freed(tmp_path):
    device = torch.device("cuda")
    memory = trial_update.DeviceMemory(device)
    memory.limit = torch.cuda.memory_reserved(device) + 64 * 2**20
    before = torch.cuda.memory_allocated(device)

    def work():
        held = [torch.empty(16 * 2**20, dtype=torch.uint8, device=device) for _ in range(8)]
        return len(held)

    with memory.limited():
        assert trial_update.fits(work) == (None, False)
        memory.release()
        assert torch.cuda.memory_allocated(device) == before
    assert trial_update.fits(work) == (8, True), "the limit ends with the trials"
