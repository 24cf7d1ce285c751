"""The best checkpoint, validated again from disk on one, two and four processes: the recorded numbers to the last digit."""

import json

import pytest

from tests import runs

# the highest loss is that of the first validation, and the last weights are others
FIRST = ["schedule.validate=[1epochs]", "schedule.best_monitor=val/loss", "schedule.best_mode=max", "schedule.checkpoint=[1epochs]"]
# the update changes no bit of the weights
AGAIN = ["run.init_checkpoint=best", "trainer.length=1steps", "optimizer.lr=1e-30", "lr_scheduler.warmup=0steps", "model.dropout=0.1"]


def validated(run, step):
    return json.loads((run / "validation" / f"step-{step:08d}" / "val.json").read_text())


@pytest.mark.slow
def test_the_best_weights_give_the_recorded_numbers_on_any_number_of_processes(tmp_path):
    run = runs.run("loadout", tmp_path / "first", *FIRST, "schedule.keep_best=1")
    (best,) = runs.summary(run)["best"].values()
    first, last = validated(run, best["global_step"]), validated(run, runs.summary(run)["global_step"])
    assert best["global_step"] < last["global_step"] and first["metrics"] != last["metrics"]
    found = {1: runs.run("loadout", tmp_path / "1", *AGAIN, f"run.init_from={run}")}
    for processes in (2, 4):
        jobs = [runs.job("loadout", tmp_path / str(processes), *AGAIN, f"run.init_from={run}")]
        runs.run_group(processes, jobs, tmp_path)
        found[processes] = runs.run_path(runs.configuration("loadout", tmp_path / str(processes)))
    ends = [validated(again, 1) for again in found.values()]
    assert all(end["weights"] == first["weights"] for end in ends)
    whole = [runs.summary(again)["final"] for again in found.values()]
    assert whole[0] == whole[1] == whole[2] and "val/margin_1" in whole[0]
    tables = {(again / "validation/step-00000001/val-samples.csv").read_bytes() for again in found.values()}
    assert len(tables) == 1, "the table of samples differs between numbers of processes"
    shared = first["metrics"].keys() & ends[0]["metrics"].keys()
    assert "val/slots_1" in shared and all(end["metrics"][name] == first["metrics"][name] for end in ends for name in shared)
