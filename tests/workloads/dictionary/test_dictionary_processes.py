"""Validate dictionaries from disk on one and two processes: all metrics and the table of samples are equal to the last digit."""

import json

import pytest

from tests import runs

AGAIN = ["run.init_checkpoint=newest", "trainer.length=1steps", "optimizer.lr=1e-30", "lr_scheduler=constant", "lr_scheduler.warmup=0steps"]


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["planted", "dictionary", "computed"])
def test_metrics_are_equal_on_any_number_of_processes(tmp_path, workload):
    first = runs.run(workload, tmp_path / "first")
    for processes in (1, 2):
        job = runs.job(workload, tmp_path / str(processes), *AGAIN, f"run.init_from={first}")
        runs.run_jobs(processes, [job], tmp_path)
    one, two = (runs.run_path(runs.configuration(workload, tmp_path / str(processes))) for processes in (1, 2))
    states = [json.loads((run / "validation/step-00000001/val.json").read_text()) for run in (one, two)]
    assert states[0]["weights"] == states[1]["weights"], "the update has changed the dictionaries differently"
    ends = [{name.partition("/")[2]: value for name, value in runs.summary(run)["final"].items()} for run in (one, two)]
    names = {"l0", "explained_variance", "sparse_gain", "nmse", "cosine", "dead", "dense", "decoder_cosine", "density/0"}
    names = {f"{task}/{name}" for task in ("k2", "k5") for name in names} if workload == "dictionary" else names
    more = {"planted": "mcc", "dictionary": "k5/loss_recovered", "computed": "loss_recovered"}[workload]
    assert names | {more} <= {name for name, value in ends[0].items() if value is not None}
    assert ends[0] == ends[1]
    tables = [(run / "validation/step-00000001/val-samples.csv").read_bytes() for run in (one, two)]
    assert tables[0] == tables[1]
