"""Acceptance: a real sweep of six trainings that is killed and started again ends with the table of one that was not killed."""

import json

import pytest

from tests import runs
from tests.sweep.conftest import Sweep, kill_when, started

TRAINING = (
    *["--config-dir", str(runs.VECTORS), "experiment=vectors", "optimizer.lr=3e-3,3e-2", "seed=0,1,2", "sweep.parallel=2"],
    *["trainer.length=200steps", "trainer.threads=1", "trainer.device=cpu", "logger.report=false", "schedule.report=[]"],
    *["schedule.validate=[50steps]", "schedule.checkpoint=[25steps]", "lr_scheduler.warmup=0steps"],
)


def real(folder):
    return Sweep(folder, *TRAINING, program=("main.py",))


@pytest.mark.slow
def test_six_trainings_are_killed_and_continue(tmp_path):
    whole, cut = real(tmp_path / "whole"), real(tmp_path / "cut")
    status, _, err = whole.run()
    assert (status, err) == (0, ""), err
    process = cut.start()

    def in_the_middle() -> bool:
        started_runs = [path for path in cut.root.glob("vectors/*/checkpoints") if len(list(path.glob("step-*"))) >= 2]
        return "finished" in cut.statuses() and any(not ended(path.parent) for path in started_runs)

    kill_when(in_the_middle, process)
    paths = list(cut.root.glob("vectors/*"))
    unfinished = [path for path in paths if not ended(path) and list(path.glob("checkpoints/step-*"))]
    finished = [path for path in paths if ended(path)]
    assert unfinished and finished and len(finished) < 6
    status, out, err = cut.run()
    assert (status, err) == (0, ""), err
    assert len(started(out)) == 6 - len(finished)
    assert all(len(list((path / "launches").iterdir())) == (1 if path in finished else 2) for path in [*finished, *unfinished])
    for name in ("trials.csv", "table.txt"):
        assert cut.text(name) == whole.text(name)
    rows = [line.split(",") for line in whole.text("trials.csv").splitlines()[1:]]
    for row in rows:
        best = json.loads((whole.root / row[-1] / "summary.json").read_text())["best"]["val/loss"]
        assert (float(row[4]), int(row[5])) == (best["value"], best["global_step"])
    assert len({row[4] for row in rows}) == 6


def ended(path) -> bool:
    summary = path / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["status"] == "finished"
