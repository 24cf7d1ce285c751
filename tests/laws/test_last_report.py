"""Law 2 at the end of a run: the last report comes after the validation of its step and shows its results; it is there once, the same
to the byte, wherever a kill or a signal falls between the last update and the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from linnaeus import train
from linnaeus.checkpoint import CheckpointWriter
from linnaeus.reporting.formatting import INDENT
from linnaeus.reporting.terminal.run_reports import RunReports
from linnaeus.train import validation
from linnaeus.train.measuring import readings
from linnaeus.train.outputs import Outputs
from tests import runs, watching

STEPS = 10
END = [f"trainer.length={STEPS}steps", "schedule.report=[1%]", "schedule.validate=[4steps]", "schedule.checkpoint=[4steps]"]
SETTINGS = {
    "a row before the last step": ("vectors", [*END, "schedule.log=[3steps]"]),
    "a row at the last step": ("vectors", [*END, "schedule.log=[5steps]"]),
    "several passes": ("masked", [*END, "schedule.validate=[100%]", "trainer.length=4steps", "schedule.checkpoint=[]"]),
}
ROW_BEFORE, ROW_AT, SEVERAL = SETTINGS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the directories of the runs that were not stopped."""
    return {name: runs.run(workload, tmp_path_factory.mktemp("whole"), *settings) for name, (workload, settings) in SETTINGS.items()}


def configuration(name: str, root: Path, *more: str) -> Any:
    workload, settings = SETTINGS[name]
    return runs.configuration(workload, root, *settings, *more)


def reports(run: Path) -> list[dict[str, Any]]:
    return runs.rows(run / "reports.jsonl")


@pytest.mark.parametrize("name", SETTINGS)
def test_the_last_report_shows_the_results_of_the_end(whole: dict[str, Path], name: str) -> None:
    found = reports(whole[name])
    last, step = found[-1], len(found) - 1
    assert [row["global_step"] for row in found] == list(range(step + 1)) and last["progress/percent"] == 100
    results = [json.loads(path.read_text()) for path in (whole[name] / f"validation/step-{step:08d}").glob("*.json")]
    assert len(results) == (5 if name == SEVERAL else 1)
    for result in results:
        assert last[f"{result['pass']}/loss"] == result["metrics"][f"{result['pass']}/loss"]
    assert last["validation/step"] == step and found[-2].get("validation/step") == (None if name == SEVERAL else 8)
    first, *lines = (whole[name] / "train.log").read_text().partition("100.0%  step")[2].splitlines()
    shown = "  ".join([first, *takewhile(lambda line: line.startswith(INDENT), lines)])
    assert f"val/loss {last['val/loss']:.4f}" in shown and f"at step {step}" in shown
    training = {row["global_step"]: row for row in runs.rows(whole[name] / "metrics.jsonl") if "train/loss" in row}
    assert (step in training) == (name != ROW_BEFORE) and {"train/loss", "train/smoothed_loss", "train/grad_norm"} <= set(last)
    assert all(last[key] == value for key, value in training.get(step, {}).items() if key in last and not key.startswith("val"))


# -- kills -----------------------------------------------------------------------------------------------------------------------

KILLS: dict[str, tuple[Any, str, int, bool]] = {  # two checkpoints and one pass at each of the steps 4, 8 and 10
    "before the checkpoint with the pending pass": (CheckpointWriter, "save", 5, False),
    "behind it": (CheckpointWriter, "save", 5, True),
    "before the pass": (validation, "_run_batches", 3, False),
    "after the pass": (validation, "_run_batches", 3, True),
    "its result is written": (Outputs, "write_validation", 3, True),
    "its row is written": (Outputs, "show_validation", 3, False),
    "before the results are taken": (validation, "apply_results", 3, False),
    "taken": (validation, "apply_results", 3, True),
    "before the report": (readings, "report_progress", STEPS, False),
    "the report is written, its clocks are not": (RunReports, "report", STEPS + 1, True),
    "after the report": (readings, "report_progress", STEPS, True),
    "before the last checkpoint": (CheckpointWriter, "save", 6, False),
    "behind the last checkpoint": (CheckpointWriter, "save", 6, True),
    "training is done": (train, "final_validations", 1, False),
    "before the end is written": (train, "finish", 1, False),
    "all is written": (train, "finish", 1, True),
}


# between two quick ones, with the same checkpoint, results and rows on the disk as one of them
SLOW = {"before the pass", "its result is written", "before the results are taken", "before the report", "before the last checkpoint"}
SLOW |= {"training is done"}


@pytest.mark.parametrize("when", [pytest.param(when, marks=pytest.mark.slow if when in SLOW else ()) for when in KILLS])
def test_killed_at_the_end(whole: dict[str, Path], tmp_path: Path, when: str) -> None:
    assert runs.differences(whole[ROW_BEFORE], runs.resumed(configuration(ROW_BEFORE, tmp_path), KILLS[when])) == []


@pytest.mark.parametrize(
    "name, kills",
    [
        (ROW_AT, [KILLS["before the pass"]]),
        (ROW_AT, [KILLS["after the report"], (validation, "apply_results", 1, False), (readings, "report_progress", 1, True)]),
        (
            SEVERAL,
            [(validation, "_run_batches", 2, False), (Outputs, "write_validation", 2, True), (readings, "report_progress", 1, False)],
        ),
    ],
)
def test_killed_again_and_again(whole: dict[str, Path], tmp_path: Path, name: str, kills: list[Any]) -> None:
    assert runs.differences(whole[name], runs.resumed(configuration(name, tmp_path), *kills)) == []


# -- signals ---------------------------------------------------------------------------------------------------------------------


Stop = Callable[[int], AbstractContextManager[None]]


@pytest.mark.parametrize("name, stop, when", [(ROW_BEFORE, watching.stopped_at, STEPS), (ROW_AT, watching.signalled_in_validation, 17)])
def test_stopped_in_the_last_update_or_in_its_validation(whole: dict[str, Path], tmp_path: Path, name: str, stop: Stop, when: int) -> None:
    """The report waits for the restart, as the validation does."""
    config = configuration(name, tmp_path)
    assert len(reports(runs.interrupted(config, stop(when)))) == STEPS
    assert runs.differences(whole[name], runs.resumed(config)) == []


def test_a_launch_without_an_update_has_no_throughput(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = configuration(ROW_BEFORE, tmp_path)
    run = runs.interrupted(config, watching.stopped_at(STEPS))
    capsys.readouterr()
    runs.resumed(config)
    assert "0 updates in" in (shown := capsys.readouterr().out) and "samples/s" not in shown.partition("0 updates in")[2]
    assert runs.summary(run)["samples_per_second"] is None and "time/ms_per_step" not in runs.summary(run)["timings"]


def test_a_later_limit_continues_after_the_pending_report(tmp_path: Path) -> None:
    config = configuration(ROW_BEFORE, tmp_path, "schedule.early_stop.max_steps=7")
    runs.interrupted(config, watching.stopped_at(7))
    allowed = "run.allow=[schedule.early_stop.max_steps]"
    found = reports(runs.resumed(configuration(ROW_BEFORE, tmp_path, "schedule.early_stop.max_steps=9", allowed)))
    assert [row["global_step"] for row in found] == list(range(10))
    assert [row.get("validation/step") for row in found[6:]] == [4, 7, 7, 9]


# -- early stops -----------------------------------------------------------------------------------------------------------------

PATIENCE = ["schedule.validate=[2steps]", "schedule.early_stop.patience=2", "schedule.early_stop.min_delta=1000"]


@pytest.mark.parametrize(
    "more, step, validated",
    [
        (PATIENCE, 6, 4),  # nobody foresaw that this would be the last step: its report came before its validation
        ([*PATIENCE, "trainer.length=6steps"], 6, 6),
        (["schedule.early_stop.max_steps=7"], 7, 7),
        (["schedule.validate_at_end=false"], 10, 8),
    ],
)
def test_runs_that_end_otherwise(tmp_path: Path, more: list[str], step: int, validated: int) -> None:
    run = runs.resumed(configuration(ROW_BEFORE, tmp_path / "whole", *more))
    found = reports(run)
    assert [row["global_step"] for row in found] == list(range(step + 1)) and found[-1]["validation/step"] == validated
    cut = configuration(ROW_BEFORE, tmp_path / "cut", *more)
    assert runs.differences(run, runs.resumed(cut, (readings, "report_progress", step, True))) == []


# -- negative controls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forgotten", [None, {}], ids=["that there is one", "what was trained"])
def test_negative_control_the_comparison_sees_a_forgotten_pending_report(whole: dict[str, Path], tmp_path: Path, forgotten: Any) -> None:
    config, begin = configuration(ROW_BEFORE, tmp_path), RunReports.resume
    with runs.killed(*KILLS["before the pass"]):
        runs.start(config)
    with mock.patch.object(RunReports, "resume", lambda self, step, saved: begin(self, step, {**saved, "pending_report": forgotten})):
        assert runs.differences(whole[ROW_BEFORE], runs.resumed(config)) == ["reports.jsonl"]
