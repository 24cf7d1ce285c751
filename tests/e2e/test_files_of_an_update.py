"""Test the number of files of the package that one update of the taxonomy workload executes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from linnaeus.train import loop
from tests import runs

MOST = 26  # place_quantiles.py is one of them


def test_an_update_executes_few_files(tmp_path, monkeypatch):
    files: set[str] = set()
    train_one_step, end_step = loop.train_one_step, loop.end_step

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and "linnaeus" in (path := Path(frame.f_code.co_filename)).parts:
            files.add("/".join(path.parts[path.parts.index("linnaeus") + 1 :]))

    def step(t, window):
        if t.progress.global_step == 2:
            sys.setprofile(note)
        train_one_step(t, window)

    def end(t):
        end_step(t)
        sys.setprofile(None)

    monkeypatch.setattr(loop, "train_one_step", step)
    monkeypatch.setattr(loop, "end_step", end)
    with runs.killed(loop, "train_one_step", 5):
        runs.run(
            "biota",
            tmp_path,
            "trainer.length=20steps",
            "weighting=fixed",
            "weighting.conflict=[]",
            "schedule.log=[20steps]",
            "schedule.report=[]",
            "schedule.checkpoint=[]",
        )
    assert {"train/loop.py", "optim/update.py", "workloads/taxonomy/workload.py"} <= files and len(files) <= MOST, "\n".join(sorted(files))
