"""Law 5 on the CPU: between two rows of metrics no value is read from a tensor that would be on the device. On a GPU: `test_on_gpu.py`."""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from linnaeus.train import loop
from tests import runs
from tests.vectors.workload import VectorsWorkload

READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")
EVERY = 6  # updates between two rows and reports
SETTINGS = [f"schedule.log=[{EVERY}steps]", f"schedule.report=[{EVERY}steps]", "schedule.checkpoint=[]", "schedule.validate=[]"]
SETTINGS += ["trainer.length=14steps", "weighting=gradnorm", "trainer.ema_decay=0.9", "trainer.global_batch_size=16"]
COUNTED = 10  # updates 2 to 13 but 6 and 12
VALID = {("train/loop.py", name): COUNTED for name in ("update_on_window", "accumulate_gradients")}  # number of labels, on the host
BATCH = ("workloads/taxonomy/workload.py", "check_batch")  # a batch before it is copied to the device


@contextlib.contextmanager
def counted_reads() -> Iterator[Counter[tuple[str, str]]]:
    """Count the reads in the updates without a row, by the innermost function of the package. The first update may build constants."""
    found: Counter[tuple[str, str]] = Counter()
    counting = False

    def counted(name: str) -> Callable[..., Any]:
        read = getattr(torch.Tensor, name)

        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if counting:
                frame = [one for one in traceback.extract_stack() if "linnaeus/" in one.filename][-1]
                found[frame.filename.rpartition("linnaeus/")[2], frame.name] += 1
            return read(tensor, *args, **kwargs)

        return call

    def within(function: Callable[..., Any], ahead: int) -> Callable[..., Any]:
        def call(t: Any, *args: Any) -> Any:
            nonlocal counting
            step = t.progress.global_step + ahead
            counting = 1 < step < t.ops.resolved.last_step and step % EVERY != 0
            try:
                return function(t, *args)
            finally:
                counting = False

        return call

    with contextlib.ExitStack() as patches:
        for name in READS:
            patches.enter_context(mock.patch.object(torch.Tensor, name, counted(name)))
        patches.enter_context(mock.patch.object(loop, "train_one_step", within(loop.train_one_step, 1)))
        patches.enter_context(mock.patch.object(loop, "end_step", within(loop.end_step, 0)))
        yield found


@pytest.mark.parametrize("workload", ["vectors", "biota"])
def test_nothing_between_two_rows_reads_the_device(tmp_path: Path, workload: str) -> None:
    with counted_reads() as found:
        runs.run(workload, tmp_path, *SETTINGS)
    found.pop(BATCH, None)
    assert found == VALID


def test_negative_control_a_read_in_the_loss_is_seen(tmp_path: Path) -> None:
    original = VectorsWorkload.loss_sums

    def reading(self: Any, *args: Any) -> Any:
        result = original(self, *args)
        float(result[0].detach().sum())
        return result

    with mock.patch.object(VectorsWorkload, "loss_sums", reading), counted_reads() as found:
        runs.run("vectors", tmp_path, *SETTINGS)
    assert sum(found.values()) > sum(VALID.values())
