"""A run on a simulated clock: the time of each activity, of single updates, and the time left, also over resumes."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from linnaeus.checkpoint import CheckpointWriter
from linnaeus.reporting.performance.throughput import Costs, expected_seconds
from linnaeus.reporting.terminal.run_reports import RunReports
from linnaeus.train import loop, validation
from linnaeus.train.measuring import clock
from linnaeus.train.measuring.clock import Clock, UpdateTimes
from tests import runs

UPDATE, FIRST, SLOWEST, PASS, SAVE = 0.1, 7.0, 0.5, 2.0, 0.3  # seconds of an update, more of the first in a launch, of every 20th, ...
LENGTH = ["trainer.length=200steps", "schedule.report=[1%]", "schedule.validate=[5%]", "schedule.checkpoint=[14steps]"]
LENGTH += ["trainer.micro_batch_size=32"]  # the clock is simulated; one micro-batch in an update is faster


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A clock that only updates, validation passes and checkpoints move."""
    time = {"now": 0.0}
    monkeypatch.setattr(Clock, "now", staticmethod(lambda: time["now"]))

    def slow(owner: Any, name: str, seconds: Any) -> None:
        original = getattr(owner, name)

        def call(first: Any, *args: Any, **kwargs: Any) -> Any:
            time["now"] += seconds(first)
            return original(first, *args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    def update(t: Any) -> float:
        step = t.progress.global_step
        return UPDATE + FIRST * (step == t.first_step) + (SLOWEST - UPDATE) * (step % 20 == 19)

    slow(loop, "train_one_step", update)
    slow(validation, "measure_pass", lambda t: PASS)
    slow(CheckpointWriter, "save", lambda writer: SAVE)
    return time


def timings(run: Path) -> dict[int, dict[str, float]]:
    """Return the row of each report, without the row of the end."""
    rows: dict[int, dict[str, float]] = {}
    for row in runs.rows(run / "timings.jsonl"):
        if "time/eta_seconds" in row:
            rows[row["global_step"]] = row
    return rows


def check_time_left(rows: dict[int, dict[str, float]], end: float, first: int) -> None:
    """Check that the time left is right within 10 % in each report from step `first` on. `end`: wall time of the whole run."""
    left = {step: (row["time/eta_seconds"], end - row["time/wall_seconds"]) for step, row in rows.items()}
    assert all(eta >= 0 for eta, _ in left.values())
    wrong = {step: pair for step, pair in left.items() if step >= first and not math.isclose(*pair, rel_tol=0.1, abs_tol=0.5)}
    assert wrong == {}


def test_the_parts_of_a_start_add_up_from_the_start_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 11.5, 14.0, 15.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(clock.processes, "process_age", lambda: 2.0)
    times = clock.StartTimes()
    times.end_of("data")
    times.end_of("model")
    expected = (
        "first update 7.0 s after the start of the process: imports 2.0, data 1.5, model 2.5, first update 1.0, of which compiling 0.8"
    )
    assert times.line(0.8) == expected


def test_the_age_of_this_process_includes_the_time_before_python() -> None:
    command = (
        "import time; start = time.time(); from linnaeus.distributed.processes import process_age as age; print(age(), time.time() - start)"
    )
    started = time.time()
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    age, inside = map(float, done.stdout.split())
    assert inside - 0.02 <= age <= time.time() - started + 0.02


def test_each_activity_has_its_time_and_the_time_left_is_right(tmp_path: Path, now: dict[str, float]) -> None:
    run = runs.run("vectors", tmp_path, *LENGTH)
    rows, last = timings(run), runs.summary(run)["timings"]
    assert len(rows) == 100 and set(rows) == set(range(2, 201, 2))
    assert last["time/validation_seconds"] == pytest.approx(20 * PASS)
    assert last["time/saving_seconds"] == pytest.approx(SAVE * (40 + 12), rel=0.01), "2 of 14 are due with a validation"
    assert last["time/training_seconds"] == pytest.approx(190 * UPDATE + 10 * SLOWEST + FIRST)
    assert last["time/compiling_seconds"] == 0 and last["time/startup_seconds"] < 60
    names = ("startup", "compiling", "training", "validation", "saving")
    assert last["time/wall_seconds"] == pytest.approx(sum(last[f"time/{name}_seconds"] for name in names))
    check_time_left(rows, last["time/wall_seconds"], first=20)
    assert rows[100]["recent/median_ms_per_step"] == pytest.approx(1000 * UPDATE)
    assert rows[100]["recent/p95_ms_per_step"] in (pytest.approx(1000 * UPDATE), pytest.approx(1000 * SLOWEST))
    assert rows[100]["recent/steps"] == 20 and rows[100]["recent/seconds"] == pytest.approx(19 * UPDATE + SLOWEST)


def test_three_resumes_keep_the_time_left_and_each_report_once(tmp_path: Path, now: dict[str, float]) -> None:
    config = runs.configuration("vectors", tmp_path, *LENGTH)
    run = runs.resumed(config, *((loop, "train_one_step", call) for call in (60, 30, 50)))
    rows, end = timings(run), runs.summary(run)["timings"]["time/wall_seconds"]
    reports = [row["global_step"] for row in runs.rows(run / "reports.jsonl")]
    assert reports == list(range(0, 201, 2)), "min(100, steps) + 1, each once"
    resumed = next(step for step, row in sorted(rows.items(), reverse=True) if row["time/training_seconds"] < FIRST + 3 * UPDATE)
    assert 60 < resumed < 150, "of the last launch"
    check_time_left(rows, end, first=resumed)
    assert rows[resumed]["time/eta_validation_seconds"] > 0, "from the launch before"


def test_negative_control_without_the_costs_of_the_launch_before(tmp_path: Path, now: dict[str, float], monkeypatch: Any) -> None:
    monkeypatch.setattr(RunReports, "costs", lambda self, *args: Costs())
    config = runs.configuration("vectors", tmp_path, *LENGTH, "schedule.validate=[25%]")
    with runs.killed(loop, "train_one_step", 60):
        runs.start(config)
    assert runs.start(config) == 0
    with pytest.raises(AssertionError):
        check_time_left(timings(runs.run_path(config)), runs.summary(runs.run_path(config))["timings"]["time/wall_seconds"], first=58)


def test_costs_of_another_number_of_processes() -> None:
    assert Costs(0.2, 12.0, 3.0, 2).on(4) == Costs(0.1, 6.0, 3.0, 4) and Costs().on(8) == Costs(processes=8)
    assert expected_seconds([10, 20, 30], 10, 0.0, 0, earlier=4.0) == 12.0
    assert expected_seconds([10, 20, 30], 11, 8.0, 1, earlier=4.0) == 12.0, "the mean of both"


def test_compiling_is_no_training_and_no_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    time, compiled = {"now": 100.0}, {"total_wall_time": 30.0}
    monkeypatch.setattr(Clock, "now", staticmethod(lambda: time["now"]))
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(calculate_time_spent=lambda: dict(compiled)))
    measured = Clock(before=5.0)
    time["now"] += 10.0
    measured.start_training()
    for seconds, compiling in ((8.0, 6.0), (1.0, 0.0)):  # the first update compiles
        time["now"] += seconds
        compiled["total_wall_time"] += compiling
    with measured.measure("validating"):  # so does the first validation
        time["now"] += 4.0
        compiled["total_wall_time"] += 3.0
    found = measured.starting, measured.compiling, measured.validating, measured.training(), measured.wall()
    assert found == (15.0, 6.0, 4.0, 3.0, 28.0) and clock.compile_seconds() == 39.0


def test_updates_with_validation_have_no_time() -> None:
    moments = itertools.count(0.0, 1.0)
    times = UpdateTimes(lambda: next(moments))
    for _ in range(3):
        times.moments.append(times.now())
    assert times.take() == [1.0, 1.0] and times.take() == []
    times.moments.append(times.now())
    times.interrupt()
    times.interrupt()
    times.moments.append(times.now())
    times.moments.append(times.now())
    assert times.take() == [1.0, 1.0], "from before the interruption, and after it"


class Event:
    """In place of a CUDA event, at `time` milliseconds; reached by the device if `done`."""

    def __init__(self, time: float, done: bool = True) -> None:
        self.time, self.done = time, done

    def query(self) -> bool:
        return self.done

    def elapsed_time(self, other: Event) -> float:
        return other.time - self.time


def test_events_that_the_gpu_has_not_reached_wait_for_the_next_report() -> None:
    events = [Event(0.0), Event(10.0), Event(25.0, done=False)]
    order = iter(events)
    times = UpdateTimes(lambda: next(order))
    for _ in events:
        times.moments.append(times.now())
    assert times.take() == [0.01]
    events[2].done = True
    assert times.take() == [0.015]
