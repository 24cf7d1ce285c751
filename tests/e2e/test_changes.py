"""Whole runs that begin with other weights, go on with other settings, or lost a file after their end."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from linnaeus import train
from linnaeus.checkpoint import list_checkpoints
from linnaeus.checkpoint.choice import run_checkpoints
from linnaeus.checkpoint.format import step_name
from linnaeus.errors import ConfigError
from linnaeus.train import outputs
from tests import runs, watching
from tests.vectors.workload import VectorsWorkload


def log_of(run: Path) -> str:
    return (run / "train.log").read_text()


# -- another configuration -----------------------------------------------------------------------------------------------------


def test_a_longer_run_prints_what_moves(tmp_path: Path) -> None:
    run = runs.run("vectors", tmp_path, "trainer.length=2epochs")
    with pytest.raises(ConfigError, match=r"run\.allow=\[trainer\.length\]"):
        runs.run("vectors", tmp_path, "trainer.length=4epochs")
    rows = (run / "metrics.jsonl").read_text()
    runs.run("vectors", tmp_path, "trainer.length=4epochs", "run.allow=[trainer.length]", "schedule.keep_last=3")
    text = (run / "launches" / "2" / "moved.txt").read_text()
    assert 'trainer.length: "2epochs" -> "4epochs"' in text and "total steps" in text
    assert text in log_of(run) and "changed since the last start: schedule.keep_last: 2 -> 3" in log_of(run)
    changes = json.loads((run / "launches" / "2" / "launch.json").read_text())["changes"]
    assert changes[1:] == ["schedule.keep_last: 2 -> 3", 'trainer.length: "2epochs" -> "4epochs"']
    assert (run / "metrics.jsonl").read_text().startswith(rows[: rows.index('"global_step": 3')])
    assert not (run / "launches" / "1" / "moved.txt").exists()


def test_more_data_print_what_moves_too(tmp_path: Path) -> None:
    """The configuration is the same, and a run of three epochs becomes longer."""
    settings = ["trainer.length=3epochs", "run.allow=[data]"]
    text = runs.write_text(tmp_path)
    run = runs.interrupted(runs.configuration("language", tmp_path, *settings), watching.stopped_at(2))
    text.write_text(text.read_text() * 2)
    runs.run("language", tmp_path, *settings)
    moved = (run / "launches" / "2" / "moved.txt").read_text()
    assert moved.startswith("changes from step 2 with 85 -> 1") and "training samples" in moved and "total steps" in moved
    assert moved in log_of(run)


REFUSED = {
    "weighting=uncertainty run.allow=[weighting]": "saved state is of another weighting",
    "optimizer=sgd run.allow=[optimizer]": "the saved state is of adamw",
    "model.hidden=16 run.allow=[model]": "is of another model",
    "trainer.ema_decay=0.9 run.allow=[trainer,schedule]": "does not contain a state of ema",
    "lr_scheduler=plateau run.allow=[lr_scheduler]": "the saved state is of another schedule",
}


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def test_a_refused_change_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    command = ["trainer.length=2epochs", "weighting=gradnorm", "schedule.validate=[1epochs]"]
    config = runs.configuration("vectors", tmp_path, *command)
    with watching.stopped_at(3):
        assert runs.start(config) == 75
    before = contents(runs.run_path(config))
    for change, message in REFUSED.items():
        with pytest.raises(ConfigError, match=message):
            runs.start(runs.configuration("vectors", tmp_path, *command, *change.split()))
        assert contents(runs.run_path(config)) == before, change
    assert runs.start(config) == 0


def test_patience_may_be_set_later(tmp_path: Path) -> None:
    command = ["trainer.length=6epochs", "schedule.validate=[1epochs]"]
    config = runs.configuration("vectors", tmp_path, *command)
    with watching.stopped_at(4):
        assert runs.start(config) == 75
    patience = ["schedule.early_stop.patience=1", "schedule.early_stop.min_delta=1000", "run.allow=[schedule]"]
    config = runs.configuration("vectors", tmp_path, *command, *patience)
    assert runs.start(config) == 0
    assert runs.summary(runs.run_path(config))["status"] == "stopped_early"
    assert "schedule.early_stop.patience counts validations from step 4 on" in log_of(runs.run_path(config))


@pytest.mark.parametrize("other_run", [False, True])
def test_results_of_another_metric_are_not_compared(tmp_path: Path, other_run: bool) -> None:
    """From step 4 to step 9 the loss falls from 1.0 to 0.4 and r2 rises from 0.0 to 0.5. Compared with the best value of the other
    metric, neither would improve in the next three validations."""
    patience = ["schedule.early_stop.patience=3", "lr_scheduler=plateau", "lr_scheduler.patience=2", "schedule.validate=[1steps]"]
    monitors = [["monitor=val/loss", "mode=min"], ["monitor=val/r2", "mode=max"]]
    before, after = (
        [*patience, *(f"schedule.early_stop.{text}" for text in stop), *(f"lr_scheduler.{text}" for text in lr)]
        for stop, lr in (monitors, monitors[::-1])
    )
    run = runs.run("vectors", tmp_path / "a", *before, "trainer.length=4steps")
    change = [f"run.resume={run}"] if other_run else ["run.allow=[schedule,lr_scheduler,trainer.length]"]
    run = runs.run("vectors", tmp_path / ("b" if other_run else "a"), *after, "trainer.length=9steps", *change)
    assert (runs.summary(run)["status"], runs.summary(run)["global_step"]) == ("finished", 9)
    assert {row["train/lr"] for row in runs.rows(run / "metrics.jsonl") if "train/lr" in row} == {0.01}
    for key, metric in (("schedule.early_stop", "val/loss (min)"), ("lr_scheduler", "val/r2 (max)")):
        line = f"{key}.patience counts validations from step 4 on; the checkpoint was written for {metric}"
        assert log_of(run).count(line) == 1


def test_the_best_checkpoint_is_the_best_by_the_metric_of_now(tmp_path: Path) -> None:
    """At step 4 the loss is 0.86. Taken for an r2, it would be the best one: 0.63 at step 7 is the highest r2."""
    settings = ["schedule.validate=[1steps]", "schedule.keep_last=1", "schedule.keep_best=1", "optimizer.lr=0.05"]
    run = runs.run("vectors", tmp_path, *settings, "trainer.length=4steps")
    r2 = ["schedule.best_monitor=val/r2", "schedule.best_mode=max", "trainer.length=10steps", "run.allow=[schedule,trainer.length]"]
    run = runs.run("vectors", tmp_path, *settings, *r2)
    values = {row["global_step"]: row["val/r2"] for row in runs.rows(run / "metrics.jsonl") if "val/r2" in row}
    best = max(range(5, 11), key=lambda step: values[step])
    assert values[best] < runs.summary(run)["best"]["val/loss"]["value"] and best < 10
    assert [step for step, _ in list_checkpoints(run / "checkpoints")] == [best, 10]
    assert run_checkpoints(run, "best")[0][0].name == step_name(best)


def test_the_best_of_another_run_is_not_reported(tmp_path: Path) -> None:
    """A second run continues the first one with a learning rate that makes each of its results worse. Killed, it keeps its own best."""
    first = runs.run("vectors", tmp_path / "a", "schedule.validate=[1steps]", "trainer.length=3steps")
    settings = [f"run.resume={first}", "schedule.validate=[1steps]", "trainer.length=6steps", "optimizer.lr=3.0"]
    second = runs.resumed(runs.configuration("vectors", tmp_path / "b", *settings), (train.loop, "train_one_step", 3))
    losses = {row["global_step"]: row["val/loss"] for row in runs.rows(second / "metrics.jsonl") if "val/loss" in row}
    assert min(losses) == 4 and runs.summary(first)["best"]["val/loss"]["value"] < min(losses.values())
    step = min(losses, key=lambda step: losses[step])
    assert runs.summary(second)["best"] == {"val/loss": {"value": losses[step], "global_step": step}}


def test_the_results_of_another_run_are_not_those_of_this_one(tmp_path: Path) -> None:
    """Before its first validation a run that continues another one has no results."""
    first = runs.run("vectors", tmp_path / "a", "trainer.length=3steps")
    settings = [f"run.resume={first}", "trainer.length=9steps"]
    config = runs.configuration("vectors", tmp_path / "b", *settings)
    with watching.stopped_at(5):
        assert runs.start(config) == 75
    assert runs.summary(first)["final"] and runs.summary(runs.run_path(config))["final"] == {}
    again = runs.run("vectors", tmp_path / "c", f"run.resume={first}", "trainer.length=3steps")  # nothing is left to train
    assert runs.summary(again)["final"] == runs.summary(first)["final"]
    assert (again / "validation/step-00000003/val.json").exists()


def test_a_run_with_a_checkpoint_refuses_another_warm_start(tmp_path: Path) -> None:
    """Its configuration would name weights that it never had."""
    first = runs.run("vectors", tmp_path / "a", "trainer.length=2steps")
    run = runs.run("vectors", tmp_path / "b", "trainer.length=3steps")
    more = ["trainer.length=5steps", f"run.init_from={first}", "run.allow=[run.init_from,trainer.length]"]
    with pytest.raises(ConfigError, match=r"continues with the weights of its checkpoint.*no effect: run\.init_from: null"):
        runs.start(runs.configuration("vectors", tmp_path / "b", *more))
    assert list((run / "launches").iterdir()) == [run / "launches" / "1"]


def test_weights_that_moved_may_become_fixed(tmp_path: Path) -> None:
    """A run that is stopped between two rows of metrics has sums of weighted losses in its checkpoint."""
    command = ["trainer.length=2epochs", "schedule.log=[2steps]"]
    config = runs.configuration("vectors", tmp_path, *command, "weighting=gradnorm")
    with watching.stopped_at(3):
        assert runs.start(config) == 75
    run = runs.run("vectors", tmp_path, *command, "run.allow=[weighting]")
    assert [row["global_step"] for row in runs.rows(run / "metrics.jsonl") if "train/loss" in row] == [2, 4, 6]


def test_results_of_other_samples_are_not_used(tmp_path: Path) -> None:
    """A run is killed between two passes of a step. All passes of the step are then run with the samples of the next launch."""
    fewer = ["trainer.limit_validation_samples=5", "run.allow=[trainer.limit_validation_samples]"]
    whole = runs.run("masked", tmp_path / "whole", fewer[0])
    with runs.killed(sys.modules["linnaeus.train.validation"], "measure_pass", 2):
        runs.run("masked", tmp_path / "killed")
    assert (tmp_path / "killed/masked/run/validation/step-00000009/val.json").exists()
    again = runs.run("masked", tmp_path / "killed", *fewer)
    assert runs.summary(again)["final"] == runs.summary(whole)["final"]


def fail_by_exception(t: Any) -> None:
    raise RuntimeError("the start fails")


def fail_by_watchdog(t: Any) -> None:
    t.output.fail("the start fails", t.watchdog.step)  # then the watchdog ends the process
    raise runs.Killed


@pytest.mark.parametrize("fail", [fail_by_exception, fail_by_watchdog])
@pytest.mark.parametrize("place", ["load_checkpoint_into", "log_changes"])
def test_a_failed_start_keeps_the_step_in_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: Any, place: str) -> None:
    config = runs.configuration("vectors", tmp_path)
    with watching.stopped_at(3):
        assert runs.start(config) == 75
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["linnaeus.train.restore"], place, lambda t, *more: fail(t))
        if fail is fail_by_watchdog:
            patch.setattr(train, "record_failure", lambda *_: None)
        with pytest.raises((RuntimeError, runs.Killed)):
            runs.start(config)
    summary = json.loads((runs.run_path(config) / "summary.json").read_text())
    assert (summary["status"], summary["global_step"]) == ("failed", 3) and "the start fails" in summary["error"]
    assert runs.start(config) == 0


# -- weights alone -------------------------------------------------------------------------------------------------------------


def first_rows(run: Path) -> Any:
    return [row["train/loss"] for row in runs.rows(run / "metrics.jsonl") if "train/loss" in row][:2]


def test_a_run_begins_with_the_weights_of_another(tmp_path: Path) -> None:
    source = runs.run("vectors", tmp_path / "source", "trainer.ema_decay=0.9")
    more = [
        f"run.init_from={source}",
        "trainer.ema_decay=0.9",
        "trainer.length=2epochs",
        "schedule.checkpoint=[1steps]",
        "schedule.keep_last=9",
    ]
    whole = runs.run("vectors", tmp_path / "whole", *more)
    plain = runs.run("vectors", tmp_path / "plain", *more[1:])
    assert first_rows(whole) != first_rows(plain) and first_rows(whole)[0] < 0.5 * first_rows(plain)[0], "it has learnt already"
    report = (whole / "launches" / "1" / "init_from.txt").read_text()
    assert "the run validates the averaged ones" in report and report.splitlines()[0] in log_of(whole)
    assert len(json.loads((whole / "run.json").read_text())["initial_weights"]) == 64
    for call in (1, 4):  # killed before its first checkpoint and after it
        with runs.killed(train.loop, "train_one_step", call):
            runs.run("vectors", tmp_path / f"killed{call}", *more)
        again = runs.run("vectors", tmp_path / f"killed{call}", *more)
        assert runs.differences(whole, again) == []
        assert (again / "launches" / "2" / "init_from.txt").exists() is (call == 1)
    for file in again.glob("checkpoints/*/model.safetensors"):
        file.write_bytes(b"damaged")
    assert runs.run("vectors", tmp_path / "killed4", *more) == again
    assert runs.differences(whole, again) == [] and "was skipped" in log_of(again)


def test_weights_that_do_not_fit_leave_nothing_behind(tmp_path: Path) -> None:
    source = runs.run("vectors", tmp_path / "source")
    with pytest.raises(ConfigError, match=r"run\.init_from: .* does not fit"):
        runs.run("vectors", tmp_path / "new", f"run.init_from={source}", "model.hidden=16")
    assert not (tmp_path / "new").exists()


def test_weights_that_changed_before_the_first_checkpoint(tmp_path: Path) -> None:
    source = runs.run("vectors", tmp_path / "source")
    with runs.killed(train.loop, "train_one_step", 1):
        runs.run("vectors", tmp_path / "new", f"run.init_from={source}")
    runs.run("vectors", tmp_path / "source", "trainer.length=6epochs", "run.allow=[trainer.length]")
    with pytest.raises(ConfigError, match="contains other weights"):
        runs.run("vectors", tmp_path / "new", f"run.init_from={source}")


def test_two_processes_begin_alike(tmp_path: Path) -> None:
    source = runs.run("vectors", tmp_path / "source")
    more = [f"run.init_from={source}", "trainer.length=2epochs", "trainer.precision=float64"]
    runs.run_group(2, [runs.job("vectors", tmp_path / "two", *more)], tmp_path)
    one, two = runs.run("vectors", tmp_path / "one", *more), tmp_path / "two" / "vectors" / "run"
    a, b = runs.newest(one).model_state, runs.newest(two).model_state
    assert all(torch.allclose(a[name], b[name], rtol=0, atol=1e-10) for name in a)


# -- a finished run that lost something ----------------------------------------------------------------------------------------


STOPS = ["schedule.early_stop.max_steps=5", "schedule.early_stop.metric_bound=1000"]
LOST = ["report.html", "validation", "checkpoint"]


def finished_settings(stops: str) -> list[str]:
    return ["logger.report=true", "schedule.checkpoint=[3steps]", "schedule.validate=[4steps,100%]", *([stops] if stops else [])]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from one of `STOPS`, or "", to the directory of a finished run, which no test changes."""
    return functools.cache(lambda stops: runs.run("vectors", tmp_path_factory.mktemp("whole"), *finished_settings(stops)))


@pytest.mark.parametrize(
    "lost, stops",
    [
        *((lost, "") for lost in LOST),
        ("checkpoint", STOPS[0]),
        *(
            pytest.param(lost, stops, marks=pytest.mark.slow)
            for lost in LOST
            for stops in STOPS
            if (lost, stops) != ("checkpoint", STOPS[0])
        ),
    ],
)
def test_only_what_is_missing_is_made(
    finished: Callable[[str], Path], lost: str, stops: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, whole = finished_settings(stops), finished(stops)
    shutil.copytree(whole.parents[1], tmp_path / "again")
    run = tmp_path / "again" / "vectors" / "run"
    last = list_checkpoints(run / "checkpoints")[-1][1]
    if lost == "report.html":
        (run / "report.html").unlink()
    elif lost == "validation":
        for file in run.glob("validation/*/*.json"):
            file.unlink()
    else:
        (last / "model.safetensors").write_bytes(b"damaged")
    steps: list[int] = []
    real = train.loop.train_one_step
    monkeypatch.setattr(train.loop, "train_one_step", lambda *a, **k: (steps.append(1), real(*a, **k))[1])
    assert runs.run("vectors", tmp_path / "again", *more) == run
    assert bool(steps) is (lost == "checkpoint")
    assert (run / "report.html").exists()
    earlier = {str(p.relative_to(whole)) for p in whole.glob("validation/*/*.json") if not p.parent.name.endswith(last.name[4:])}
    assert set(runs.differences(whole, run)) == (earlier if lost == "validation" else set()), "rows alone tell of earlier steps"
    assert "was finished, but lacks" in log_of(run)
    launches = len(list((run / "launches").iterdir()))
    runs.run("vectors", tmp_path / "again", *more)
    assert len(list((run / "launches").iterdir())) == launches == 2


@pytest.mark.parametrize(("owner", "name"), [(VectorsWorkload, "save_examples"), (outputs, "write_report")])
def test_an_error_in_the_examples_or_the_report_does_not_mark_the_run_as_failed(owner: Any, name: str, tmp_path: Path) -> None:
    with mock.patch.object(owner, name, side_effect=RuntimeError("out of memory")):
        run = runs.run("vectors", tmp_path, "logger.report=true")
    assert runs.summary(run)["status"] == "finished"
    assert "is not complete (RuntimeError: out of memory); the results of the run are not affected" in log_of(run)
    assert (run / "report.html").exists() is (name == "save_examples")
