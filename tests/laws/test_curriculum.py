"""Law 2 with a curriculum: a run killed where two phases overlap ends bit for bit as the one that was not, reports included; and what its
reports tell is what the schedule says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from linnaeus.checkpoint import CheckpointWriter
from linnaeus.errors import ConfigError
from linnaeus.schedule.phases import Phases
from linnaeus.train import loop, resolve_schedule
from linnaeus.train.outputs import Outputs
from linnaeus.workloads import build_workload
from tests import runs, watching
from tests.vectors.workload import VectorsWorkload

STEPS = 20
PHASES = (
    "schedule.phases={early: {start: 0%, end: 60%, lr: 1.5, description: what comes first, data: {near: 1, far: 3}},"
    " late: {start: 5steps, end: 100%, lr: 0.25, dimensions: {tall: 3}}}"
)
SETTINGS = [PHASES, f"trainer.length={STEPS}steps", "schedule.report=[1steps]", "schedule.log=[3steps]", "schedule.validate=[4steps]"]
SETTINGS += ["schedule.checkpoint=[2steps]", "lr_scheduler=plateau", "lr_scheduler.warmup=4steps", "lr_scheduler.patience=0"]
SETTINGS += ["lr_scheduler.min_delta=9", "lr_scheduler.factor=0.5"]
PARTS = {"sources": ("near", "far"), "source_sizes": (30, 10), "dimensions": ("wide", "tall"), "report_metrics": ("r2", "first/mse")}


@pytest.fixture(scope="module", autouse=True)
def named_parts() -> Iterator[None]:
    """The vectors workload with sources and dimensions to name."""
    with mock.patch.multiple(VectorsWorkload, create=True, **PARTS):
        yield


def phases(root: Path) -> Phases:
    found = Phases.resolve(runs.configuration("vectors", root, *SETTINGS).schedule.phases or {}, STEPS, 3)
    assert found is not None
    return found


KILLS: dict[str, Any] = {
    "before the ninth update": (loop, "train_one_step", 9, False),
    "after it": (loop, "train_one_step", 9, True),
    "before a checkpoint in the overlap is begun": (CheckpointWriter, "save", 6, False),
    "when a validation in the overlap was written": (Outputs, "write_validation", 2, True),
    "where the overlap ends": (loop, "train_one_step", 12, True),
}


@pytest.mark.parametrize("when", KILLS)
def test_killed_where_two_phases_overlap(whole: Path, tmp_path: Path, when: str) -> None:
    config = runs.configuration("vectors", tmp_path, *SETTINGS)
    with runs.killed(*KILLS[when]):
        runs.start(config)
    begun = runs.newest(runs.run_path(config)).step
    assert 0 < phases(tmp_path).shares(np.array([begun]))[0, 1] < 1, "it goes on inside the overlap"
    assert runs.differences(whole, runs.resumed(config)) == []


def test_stopped_after_each_update_of_the_overlap(whole: Path, tmp_path: Path) -> None:
    config = runs.configuration("vectors", tmp_path, *SETTINGS)
    for step in range(5, 13):
        runs.interrupted(config, watching.stopped_at(step))
    assert runs.differences(whole, runs.resumed(config)) == []


def test_negative_control_a_resume_without_phases_is_another_run(whole: Path, tmp_path: Path) -> None:
    with runs.killed(loop, "train_one_step", 9):
        runs.start(runs.configuration("vectors", tmp_path, *SETTINGS))
    plain = [*SETTINGS[1:], "schedule.phases=null", "run.allow=[schedule.phases]"]
    run = runs.run("vectors", tmp_path, *plain)
    assert {"metrics.jsonl", "reports.jsonl"} < set(runs.differences(whole, run))
    moved = next(run.glob("launches/*/moved.txt")).read_text()
    assert "steps of late" in moved and "phase at step 8 (now)" in moved


def test_the_reported_rate_is_the_multiplied_one(whole: Path, tmp_path: Path) -> None:
    """Warm-up x phases x plateau, at each update; half of it after each of the validations at 8, 12 and 16, of which none is better."""
    base = runs.configuration("vectors", tmp_path).optimizer.lr
    for report in runs.rows(whole / "reports.jsonl"):
        step = max(0, report["global_step"] - 1)  # before the update the row tells of
        share = min(max(0, step - 5) / 7, 1.0)
        multiplier = 1.5 * (1 - share) + 0.25 * share
        reduced = 0.5 ** sum(step >= validated for validated in (8, 12, 16))
        assert report["phase/lr_multiplier"] == pytest.approx(multiplier, abs=1e-12)
        assert report["train/lr"] == pytest.approx(base * min(1, (step + 1) / 4) * multiplier * reduced, rel=1e-12)
    rows = {row["global_step"]: row["train/lr"] for row in runs.rows(whole / "metrics.jsonl") if "train/lr" in row}
    assert len(rows) > 5 and all(
        rows[r["global_step"]] == r["train/lr"] for r in runs.rows(whole / "reports.jsonl") if r["global_step"] in rows
    )


def test_reports_say_where_the_curriculum_stands(whole: Path) -> None:
    reports = runs.rows(whole / "reports.jsonl")
    assert [report["phase"] for report in reports] == ["early"] * 10 + ["late"] * 11
    assert reports[0]["phase/description"] == "what comes first" and reports[-1]["phase/description"] == ""
    first, middle, last = (
        [report[f"phase/{name}"] for name in ("mixture/near", "mixture/far", "dimension/wide", "dimension/tall")]
        for report in (reports[0], reports[10], reports[-1])
    )
    share = 4 / 7  # at step 9, of 5 to 12
    assert first == [0.25, 0.75, 0.5, 0.5] and last == [0.75, 0.25, 0.25, 0.75], "late draws by size"
    assert middle == pytest.approx([(1 - share) * a + share * b for a, b in zip(first, last, strict=True)])
    text = (whole / "train.log").read_text()
    assert "phase early: what comes first" in text and "mixture near 0.75, far 0.25" in text and "dimension wide 0.25, tall 0.75" in text


def test_rows_of_metrics_have_the_numbers_of_the_curriculum(whole: Path) -> None:
    """For loggers to draw; those that the report of the same step has."""
    reports = {row["global_step"]: row for row in runs.rows(whole / "reports.jsonl")}
    rows = [row for row in runs.rows(whole / "metrics.jsonl") if "train/loss" in row]
    assert [row["global_step"] for row in rows] == [3, 6, 9, 12, 15, 18]
    for row in rows:
        numbers = {name: value for name, value in reports[row["global_step"]].items() if name.startswith("phase/")}
        assert isinstance(numbers.pop("phase/description"), str) and len(numbers) == 5
        assert {name: value for name, value in row.items() if name.startswith("phase")} == numbers


def test_the_plan_of_a_workload_without_metadata_names_none(whole: Path) -> None:
    plan = (whole / "schedule.txt").read_text()
    assert "phases\n" in plan and not [word for word in ("mask", "mixup_prob", "probabilities") if word in plan]


def test_reports_hold_the_newest_validation(whole: Path) -> None:
    validated = {row["global_step"]: row for row in runs.rows(whole / "metrics.jsonl") if "val/loss" in row}
    assert [*validated] == [4, 8, 12, 16, 20]
    for report in runs.rows(whole / "reports.jsonl"):
        newest = max((step for step in validated if step < report["global_step"] or report["global_step"] == STEPS), default=None)
        names = ("val/loss", "val/r2", "val/first/mse")
        if newest is None:
            assert not [name for name in report if name.startswith("val")]
        else:
            assert report["validation/step"] == newest and [report[n] for n in names] == [validated[newest][n] for n in names]
            assert "val/second/mse" not in report, "nobody asked for it"


@pytest.mark.parametrize(
    "given, message",
    [
        ("data: {near: 1, fra: 1}", "schedule.phases.only.data names fra, which is not a source; choose from near, far"),
        ("dimensions: {deep: 2}", "schedule.phases.only.dimensions names deep, which is not a dimension; choose from wide, tall"),
    ],
)
def test_names_the_workload_has_not_are_refused(tmp_path: Path, given: str, message: str) -> None:
    config = runs.configuration("vectors", tmp_path, f"schedule.phases={{only: {{start: 0%, end: 100%, {given}}}}}")
    with pytest.raises(ConfigError) as error:
        resolve_schedule(config, build_workload(config), mock.Mock(world_size=1))
    assert str(error.value) == message
    nothing = mock.patch.multiple(VectorsWorkload, sources=(), dimensions=())
    with (
        nothing,
        pytest.raises(ConfigError, match=r"but this (data|model) has no (named sources|dimensions); remove schedule\.phases\.only"),
    ):
        resolve_schedule(config, build_workload(config), mock.Mock(world_size=1))
