"""Laws that only a GPU can break; skipped where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from unittest import mock

import pytest
import torch

from linnaeus.train import loop
from tests.runs import ROOT, configuration, differences, overrides, resumed, run, run_path, start, summary

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]
CUDA = ["trainer.device=cuda", "schedule.log=[6steps]"]


def test_nothing_between_log_boundaries_waits_for_the_device(tmp_path):
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
        assert start(configuration("biota", tmp_path, *CUDA)) == 0
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
