"""reports.jsonl of real runs: the number of reports, each written once also after kills, and their values."""

import dataclasses
import json
import math
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from linnaeus.config.schema import Config
from linnaeus.train import loop
from linnaeus.train.measuring import readings
from tests import runs
from tests.vectors.workload import MLP, VectorsWorkload

SETTINGS = ["schedule.report=[1%]", "schedule.validate=[25%]", "schedule.checkpoint=[10steps]"]


def reports(path: Path) -> list[dict[str, Any]]:
    return runs.rows(path / "reports.jsonl")


def lines(path: Path) -> list[str]:
    return [line for line in (path / "train.log").read_text().splitlines() if "%  step " in line]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 130 steps, so that 1 % is 1.3 steps."""
    return runs.run("vectors", tmp_path_factory.mktemp("whole"), *SETTINGS, "trainer.length=130steps")


def test_a_report_every_percent_from_0_to_100(whole: Path) -> None:
    found = reports(whole)
    assert [row["global_step"] for row in found] == [math.ceil(1.3 * k - 1e-6) for k in range(101)]
    assert len(lines(whole)) == 101
    assert found[0]["progress/percent"] == 0.0 and found[-1]["progress/percent"] == 100.0
    assert [math.floor(row["progress/percent"]) for row in found] == list(range(101)), "each percent once"


@pytest.mark.parametrize(
    "length, cadence, steps", [("9steps", "1%", list(range(10))), ("9steps", "4steps", [0, 4, 8, 9]), ("3steps", "", [])]
)
def test_short_runs_and_other_intervals(tmp_path: Path, length: str, cadence: str, steps: list[int]) -> None:
    run = runs.run("vectors", tmp_path, f"trainer.length={length}", f"schedule.report=[{cadence}]")
    found = reports(run) if steps else []
    assert [row["global_step"] for row in found] == steps and (run / "reports.jsonl").exists() == bool(steps)


def test_reports_by_the_clock_are_shown_and_not_kept(tmp_path: Path) -> None:
    run = runs.run("vectors", tmp_path, "trainer.length=20steps", "schedule.report=[0.000001s]")
    assert [row["global_step"] for row in reports(run)] == [0, 20], "these two are due by steps"
    assert len(lines(run)) == 21


# -- values --------------------------------------------------------------------------------------------------------------------


def test_the_values_are_those_of_the_rows_and_of_the_saved_state(whole: Path) -> None:
    rows = {row["global_step"]: row for row in runs.rows(whole / "metrics.jsonl") if "train/loss" in row}
    for report in reports(whole)[1:]:
        row = rows[report["global_step"]]
        same = [name for name in report if name in row]
        assert {"train/loss", "train/smoothed_loss", "train/lr", "train/first/weight", "progress/samples_seen"} <= set(same)
        assert all(report[name] == row[name] for name in same)
    state, last = runs.newest(whole).state, reports(whole)[-1]
    assert last["progress/samples_seen"] == state["progress"]["samples_seen"]
    assert last["progress/total_steps"] == state["global_step"] == 130
    weights = sum(tensor.numel() for tensor in runs.newest(whole).model_state.values())
    assert last["model/parameters"] == last["model/active_parameters"] == weights
    assert [last[f"batch/{name}"] for name in ("micro_batch_size", "accumulation", "processes", "global_batch_size")] == [8, 4, 1, 32]


def test_times_are_in_timings_with_that_of_reporting(whole: Path) -> None:
    assert not [name for row in reports(whole) for name in row if name.startswith(("time/", "recent/", "memory/"))]
    timings = {row["global_step"]: row for row in runs.rows(whole / "timings.jsonl")}
    assert set(timings) == {row["global_step"] for row in reports(whole)[1:]}
    last = timings[130]
    assert 0 < last["time/reporting_seconds"] < last["time/wall_seconds"]
    assert timings[65]["recent/ms_per_step"] > 0 and timings[65]["time/eta_seconds"] > timings[65]["time/eta_validation_seconds"] > 0
    report = next(row for row in runs.rows(whole / "timings.jsonl") if row["global_step"] == 130)  # the next row is that of the end
    assert report["time/eta_seconds"] == 0 and report["time/validation_seconds"] > timings[129]["time/validation_seconds"]
    assert "recent/mfu" not in last, "the peak of a CPU is not known"


def test_the_memory_of_the_workers_is_in_timings(tmp_path: Path) -> None:
    run = runs.run("vectors", tmp_path, "trainer.length=4steps", "trainer.num_workers=2", "schedule.report=[2steps]")
    row = next(row for row in runs.rows(run / "timings.jsonl") if row["global_step"] == 2)
    assert row["memory/workers_now_MiB"] > row["memory/workers_MiB"] > 0 and row["memory/workers_now_MiB"] > row["memory/workers_shm_MiB"]
    assert 0 <= row["memory/host_shm_MiB"] < row["memory/host_now_MiB"]


def report_rows(self: Any, model: Any, global_step: int) -> dict[str, Any]:
    return {"phase": "late" if global_step > 5 else "early", "phase/description": "as it goes", "root/length": 0.5 * global_step}


def test_a_workload_and_a_model_add_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VectorsWorkload, "units", ("numbers", 8))
    monkeypatch.setattr(VectorsWorkload, "report_rows", report_rows)
    monkeypatch.setattr(MLP, "active_parameters", lambda model: 11)
    monkeypatch.setattr(MLP, "flops_per_sample", lambda model: 5000)
    run = runs.run("vectors", tmp_path, "trainer.length=10steps", "schedule.report=[1%]", "logger.peak_tflops=0.001")
    found = reports(run)
    assert [row["phase"] for row in found] == ["early"] * 6 + ["late"] * 5
    assert [row["root/length"] for row in found] == [0.5 * step for step in range(11)]
    assert [row["progress/numbers_seen"] for row in found] == [8 * row["progress/samples_seen"] for row in found]
    assert {row["model/active_parameters"] for row in found} == {11}
    clocks = runs.rows(run / "timings.jsonl")[5]
    assert clocks["recent/mfu"] == pytest.approx(5000 * clocks["recent/samples_per_second"] / 1e9)
    assert clocks["recent/numbers_per_second"] == pytest.approx(8 * clocks["recent/samples_per_second"])
    text = (run / "train.log").read_text()
    assert "phase late: as it goes" in text and "root/length 5" in text and "11 of 1,410 parameters active" in text and "MFU" in text


@pytest.mark.parametrize(
    ("device", "tf32", "peak", "line"),
    [
        ("cuda", False, None, "MFU unknown: no peak for GPU X at float32; set logger.peak_tflops"),
        ("cuda", True, None, "MFU unknown: no peak for GPU X at float32 with TF32; set logger.peak_tflops"),
        ("cuda", False, 3.0, None),
        ("cpu", False, None, None),
    ],
)
def test_the_log_says_once_that_the_peak_of_a_gpu_is_unknown(
    device: str, tf32: bool, peak: float | None, line: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU X")
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, tf32
    t = mock.MagicMock(device=torch.device(device))
    t.config.logger.peak_tflops, t.config.trainer.precision, t.config.profile = peak, "float32", None
    t.progress.global_step = 5
    with mock.patch.multiple(readings, _planned_steps=mock.Mock(), restart_throughput=mock.Mock()), caplog.at_level("INFO"):
        t.workload.validation_set, t.config.trainer.limit_validation_samples = [0], 1
        try:
            readings.start_reports(t)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
    assert [text for text in caplog.messages if "MFU" in text] == ([] if line is None else [line])


@pytest.mark.parametrize("killed", [False, True])
def test_the_language_workload_counts_its_tokens(tmp_path: Path, killed: bool) -> None:
    """Two epochs of 85 windows of 8 tokens. The text ends within the last window, whose padding is not counted."""
    seen: dict[int, int] = {}
    original = loop.train_one_step

    def train_one_step(t: Any, window: Any) -> None:
        original(t, window)
        seen[t.progress.global_step] = sum(int((batch["target"] >= 0).sum()) for batch, _ in window)

    more = ["trainer.length=6steps", "schedule.report=[1steps]", "schedule.checkpoint=[2steps]", "logger.peak_tflops=1"]
    config = runs.configuration("language", tmp_path, *more)
    with mock.patch.object(loop, "train_one_step", train_one_step):
        if killed:
            with runs.killed(loop, "train_one_step", 4):
                runs.start(config)
        assert runs.start(config) == 0
    run, begun = runs.run_path(config), 2 if killed else 0
    tokens, samples = list(accumulate([seen[step] for step in range(1, 7)], initial=0)), [0, 32, 64, 85, 117, 149, 170]
    assert 8 * 170 - 14 <= tokens[-1] < 8 * 170
    assert [row["progress/tokens_seen"] for row in reports(run)] == tokens
    assert [row["progress/samples_seen"] for row in reports(run)] == samples
    assert [row["progress/tokens_seen"] for row in runs.rows(run / "metrics.jsonl") if "train/loss" in row] == tokens[1:]
    timings = {row["global_step"]: row for row in runs.rows(run / "timings.jsonl")}
    for step in range(begun + 1, 7):
        each = (tokens[step] - tokens[begun]) / (samples[step] - samples[begun])
        assert timings[step]["time/tokens_per_second"] == pytest.approx(each * timings[step]["time/samples_per_second"])
    assert "recent/mfu" in timings[5] and " tokens/s" in (run / "train.log").read_text()
    timed = begun + 1  # the speed excludes the first update of a launch
    each = (tokens[5] - tokens[timed]) / (samples[5] - samples[timed])
    assert timings[5]["recent/tokens_per_second"] == pytest.approx(each * timings[5]["recent/samples_per_second"])
    assert json.loads((run / "summary.json").read_text())["timings"]["time/tokens_per_second"] > 0


# -- a constant loss -----------------------------------------------------------------------------------------------------------


def loss_sums(self: Any, outputs: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Return a loss of 2 for every label, with a gradient of 0."""
    return ((0 * outputs["y"] + 2) * batch["known"]).sum(0)


@pytest.mark.parametrize("log", ["1steps", "7steps", "100%", ""])
@pytest.mark.parametrize("micro_batch_size", [32, 8])
def test_a_constant_loss_of_2_is_reported_as_2(tmp_path: Path, micro_batch_size: int, log: str) -> None:
    """For any accumulation and log interval, in every report, also smoothed. 85 samples give partial windows."""
    more = ["schedule.report=[1steps]", f"schedule.log=[{log}]", f"trainer.micro_batch_size={micro_batch_size}"]
    with mock.patch.object(VectorsWorkload, "loss_sums", loss_sums):
        run = runs.run("vectors", tmp_path, "trainer.length=25steps", *more)
    found = reports(run)
    assert len(found) == 26 and "train/loss" not in found[0]
    for row in found[1:]:
        assert row["train/loss"] == row["train/first/loss"] == row["train/second/loss"] == 2.0
        assert row["train/smoothed_loss"] == pytest.approx(2.0, abs=1e-12)
    assert all("loss 2.0000  smoothed 2.0000" in line for line in lines(run)[1:])


def test_a_report_between_two_rows_does_not_change_them(tmp_path: Path) -> None:
    often, never = (
        runs.run("vectors", tmp_path / name, "trainer.length=25steps", "schedule.log=[7steps]", f"schedule.report=[{cadence}]")
        for name, cadence in (("often", "1steps"), ("never", ""))
    )
    assert (often / "metrics.jsonl").read_bytes() == (never / "metrics.jsonl").read_bytes()
    found = {row["global_step"]: row for row in reports(often)}
    assert found[8]["train/loss"] != found[7]["train/loss"] and found[8]["train/smoothed_loss"] != found[7]["train/smoothed_loss"]


# -- kills and processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def killed(tmp_path: Path) -> Config:
    """Configuration of a run that was killed between two checkpoints."""
    config = runs.configuration("vectors", tmp_path, *SETTINGS, "trainer.length=130steps")
    with runs.killed(loop, "train_one_step", 58):
        runs.start(config)
    assert 1 < len(reports(runs.run_path(config))) < 101
    return config


def test_each_report_is_written_once_across_a_kill(killed: Config, whole: Path) -> None:
    """reports.jsonl equals that of the run without a kill byte for byte. `tests/laws/test_last_report.py` kills at other places."""
    assert runs.start(killed) == 0
    assert (runs.run_path(killed) / "reports.jsonl").read_bytes() == (whole / "reports.jsonl").read_bytes()


def test_negative_control_without_the_cut_reports_are_written_twice(killed: Config) -> None:
    with mock.patch("linnaeus.reporting.jsonl.row_writer.RowWriter.truncate", lambda *args, **counts: 0):
        assert runs.start(killed) == 0
    assert len(reports(runs.run_path(killed))) > 101


def test_missing_rows_are_logged(killed: Config) -> None:
    path = runs.run_path(killed)
    (path / "reports.jsonl").write_text("".join((path / "reports.jsonl").read_text().splitlines(keepends=True)[:5]))
    assert runs.start(killed) == 0
    assert "reports.jsonl lacks" in (path / "train.log").read_text()


def test_two_processes_write_the_same_reports_once(tmp_path: Path, whole: Path) -> None:
    """Only the split of the batch and the last digits of sums differ from a run on one process."""
    more = [*SETTINGS, "trainer.length=20steps"]
    runs.run_group(2, [runs.job("vectors", tmp_path / "two", *more)], tmp_path)
    one = reports(runs.run("vectors", tmp_path / "one", *more))
    two = reports(runs.run_path(runs.configuration("vectors", tmp_path / "two", *more)))
    assert [row["global_step"] for row in two] == list(range(21))
    assert [row.get("validation/step") for row in two[18:]] == [15, 15, 20]
    for a, b in zip(one, two, strict=True):
        split = ("batch/accumulation", "batch/processes")
        assert [b[name] for name in split] == [2, 2] and [a[name] for name in split] == [4, 1]
        assert {k: v for k, v in b.items() if k not in split} == pytest.approx({k: v for k, v in a.items() if k not in split}, rel=1e-4)


def test_the_sections_may_change_between_launches(tmp_path: Path) -> None:
    config = runs.configuration("vectors", tmp_path, "trainer.length=12steps", "schedule.report=[1%]", "schedule.checkpoint=[3steps]")
    with runs.killed(loop, "train_one_step", 9):
        runs.start(config)
    fewer = dataclasses.replace(config, logger=dataclasses.replace(config.logger, report_sections=["loss"]))
    assert runs.start(fewer) == 0
    found = reports(runs.run_path(config))
    assert [row["global_step"] for row in found] == list(range(13))
    assert list(json.loads(json.dumps(found[-1]))) == ["global_step", "train/loss", "train/smoothed_loss"]
