"""Sweeps through their command line: every trial runs once, in spite of kills, crashes and stop requests."""

import json
import signal

import pytest

from linnaeus.rundir.lock import RunLock
from tests.runs import wait_until
from tests.sweep.conftest import Sweep, alive, started

GRID = ("optimizer.lr=1e-3,1e-2", "seed=0,1")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A sweep that was not interrupted, and its output."""
    sweep = Sweep(tmp_path_factory.mktemp("whole"), *GRID, "sweep.parallel=2")
    status, out, err = sweep.run()
    assert (status, err) == (0, "")
    return sweep, out


def test_every_combination_runs_and_the_best_is_first(uninterrupted):
    sweep, out = uninterrupted
    lines = sweep.text("trials.csv").splitlines()
    assert lines[0] == "trial,optimizer.lr,seed,status,val/loss,step,directory"
    assert [line.split(",")[1:4] for line in lines[1:]] == [[lr, seed, "finished"] for lr in ("0.001", "0.01") for seed in ("0", "1")]
    values = [float(line.split(",")[4]) for line in lines[1:]]
    table = sweep.text("table.txt").splitlines()
    assert table[1].split()[:4] == ["*", "1", "0.001", "0"] and values[0] == min(values)
    assert [line.split()[-4] for line in table[2:]] == [f"{value:.6g}" for value in sorted(values)[1:]]
    assert table[1] in out
    assert len({line.split(",")[-1] for line in lines[1:]}) == 4 == len(list((sweep.root / "biota").iterdir()))
    assert "<svg" in sweep.text("sweep.svg") and sweep.text("sweep.svg").count("<circle") == 8
    assert json.loads(sweep.text("sweep.json"))["parameters"] == {"optimizer.lr": "1e-3,1e-2", "seed": "0,1"}


def test_at_most_sweep_parallel_trials_run_at_once(uninterrupted):
    spans = []
    for path in uninterrupted[0].root.glob("biota/*/updates"):
        times = [float(line.split()[1]) for line in path.read_text().splitlines()]
        spans.append((min(times), max(times)))
    assert max(sum(a <= start <= b for a, b in spans) for start, _ in spans) <= 2


def test_a_crashed_trial_does_not_stop_the_others(sweep):
    one = sweep("crash", "seed=0,13,1")
    status, out, err = one.run()
    assert (status, err) == (1, "")
    assert one.statuses() == ["finished", "failed", "finished"]
    (line,) = (line for line in out.splitlines() if " failed " in line and "trial 2/3" in line)
    assert "RuntimeError: seed 13 always crashes" in line and line.endswith("trial-02.log")
    assert "Traceback" in one.text("trial-02.log") and "Traceback" not in out
    assert json.loads(one.text("sweep.json"))["trials"][1]["error"] == "RuntimeError: seed 13 always crashes"
    heading, mean = one.text("means.txt").splitlines()
    assert heading.split() == ["runs", "val/loss"] and mean.split()[0] == "2", "of the trials that finished"
    status, out, _ = one.run()  # runs only the failed one again
    assert status == 1 and len(started(out)) == 1


def test_the_last_lines_name_the_files_that_exist(sweep, uninterrupted):
    assert f"{uninterrupted[0].directory}: table.txt, means.txt, trials.csv, sweep.svg\n" in uninterrupted[1]
    alone = sweep("alone", "seed=13")  # no trial has a value of the metric
    _, out, _ = alone.run()
    assert f"{alone.directory}: table.txt, trials.csv\n" in out and not (alone.directory / "sweep.svg").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=lambda s: s.name)
def test_after_a_signal_trials_save_and_no_trial_starts(sweep, uninterrupted, number):
    cut = sweep("signal", *GRID, "sweep.parallel=2")
    process = cut.start(0.5)  # an update: the signal arrives before the trials end
    wait_until(lambda: len(list(cut.root.glob("biota/*/updates"))) >= 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (75, "")
    assert cut.statuses().count("interrupted") >= 1 and "waiting" in cut.statuses() and "running" not in cut.statuses()
    assert cut.text("table.txt").splitlines()[-1] in out
    assert not any(alive(pid) for pid in started(out))
    if number is signal.SIGTERM:
        assert cut.run()[0] == 0
        assert cut.text("trials.csv") == uninterrupted[0].text("trials.csv")


def test_a_second_signal_kills_the_trials(sweep):
    cut = sweep("twice", "seed=0,1")
    process = cut.start(600)  # longer than the test: the first signal has no effect
    wait_until(lambda: list(cut.root.glob("biota/*/config.yaml")))
    process.send_signal(signal.SIGTERM)
    with pytest.raises(Exception, match="timed out"):
        process.wait(timeout=2.5)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 75 and cut.statuses() == ["interrupted", "waiting"]
    assert not any(alive(pid) for pid in started(out))


def test_trials_of_a_named_run_are_numbered(sweep):
    named = sweep("named", "seed=0,1", "run.name=study", "sweep.name=mine", "sweep.metric=val/r2", "sweep.mode=max")
    assert named.run()[0] == 0
    assert {path.name for path in (named.root / "biota").iterdir()} == {"study-1", "study-2"}
    assert named.directory.name == "mine"
    rows = [line.split(",") for line in named.text("trials.csv").splitlines()]
    assert rows[0][3] == "val/r2" and named.text("table.txt").splitlines()[1].split()[1] == "1"
    other = sweep("named", "seed=2,1", "run.name=study", "sweep.name=mine")
    status, _, err = other.run()
    assert status == 2 and "trial 1 (seed=2)" in err and "study-1 was started with another configuration" in err


def test_an_unknown_metric_stops_the_sweep_after_the_first_trial(sweep):
    unknown = sweep("metric", "seed=0,1", "sweep.metric=val/r3", "sweep.mode=max")
    status, out, err = unknown.run()
    assert status == 2 and len(started(out)) == 1
    assert err.endswith("has no val/r3; did you mean val/r2?\n") and err.count("\n") == 1


def test_two_parents_cannot_run_one_sweep(sweep):
    both = sweep("both", "seed=0", "sweep.name=mine")
    (both.root / "sweeps/mine").mkdir(parents=True)
    lock = RunLock(both.root / "sweeps/mine/lock")
    lock.acquire()
    try:
        status, out, err = both.run()
    finally:
        lock.release()
    assert status == 2 and not started(out) and "sweep.name: " in err and "sweeps/mine is in use by process" in err


def test_columns_of_the_table_and_means_over_seeds(sweep):
    """NaN and missing values are empty cells; a column that no run has gives a warning; trials.csv has no clock times."""
    columns = "sweep.columns=[val/r2,val/few,time/ms_per_step,val/r3]"
    wide = sweep("columns", "optimizer.lr=3e-3,3e-2", "seed=0,1,13", columns, "sweep.parallel=3")
    status, out, _ = wide.run()
    assert status == 1 and "sweep.columns: no trial has val/r3; " in out and "no trial has val/few" not in out
    rows = [line.split(",") for line in wide.text("trials.csv").splitlines()]
    assert rows[0] == ["trial", "optimizer.lr", "seed", "status", "val/loss", "val/r2", "val/few", "val/r3", "step", "directory"]
    good = [row for row in rows[1:] if row[3] == "finished"]
    assert len(good) == 4 and all(float(row[4]) + float(row[5]) == pytest.approx(1) and row[6:8] == ["", ""] for row in good)
    table = [line.split() for line in wide.text("table.txt").splitlines()]
    assert table[0][4:9] == ["r2", "few", "ms_per_step", "r3", "step"] and table[1][:2] == ["*", "1"]
    assert table[1][6] == "-" and float(table[1][7]) > 0 and table[1][8] == "-" and table[-1][3:8] == ["-"] * 5
    means = [line.split("  ") for line in wide.text("means.txt").splitlines()]
    assert [line[0] for line in means[1:]] == ["0.003", "0.03"] and wide.text("means.txt").splitlines()[1] in out
    numbers = [float(row[4]) for row in good if row[1] == "0.003"]
    assert [cell.strip() for cell in means[1] if cell.strip()][1:3] == ["2", f"{sum(numbers) / 2:.4g} +- {0.01 / 2**0.5:.4g}"]
