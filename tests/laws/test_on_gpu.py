"""Laws that only a GPU can break; skipped where there is none."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from linnaeus.train import loop
from tests.runs import configuration, differences, run_path, start

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


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_a_run_trains_and_continues_bit_for_bit_when_deterministic(tmp_path, precision):
    options = [*CUDA, f"trainer.precision={precision}", "trainer.deterministic=true", "schedule.log=[1steps]"]
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
