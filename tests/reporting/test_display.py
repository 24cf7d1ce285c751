"""Test the panel of a run on a terminal, the short report elsewhere, and the last lines of a run."""

import dataclasses
import io
import logging
import math
import os
import sys
from pathlib import Path
from unittest import mock

import pytest
from rich.console import Console

from linnaeus.reporting.formatting import format_seconds, pass_words, sparkline
from linnaeus.reporting.terminal.brief_report import brief_report, brief_validation
from linnaeus.reporting.terminal.display import ProgressDisplay, View
from linnaeus.reporting.terminal.ending import describe_end
from linnaeus.reporting.terminal.panel import render
from linnaeus.reporting.terminal.progress_report import ReportData
from tests import runs

TASKS = ("order", "family", "genus", "species")
ROW = {f"train/{task}/{name}": value for task in TASKS for name, value in (("loss", 2.5), ("weight", 0.25))}
ROW |= {"train/loss": 2.5, "train/smoothed_loss": 2.75, "train/lr": 0.0005, "train/grad_norm": 1.5}
CLOCKS = {"recent/samples_per_second": 640.0, "recent/ms_per_step": 1380.0, "recent/waiting_for_data": 0.25, "time/eta_seconds": 185.0}
REPORT = ReportData(110, 400, 40, TASKS, ROW, 3520, None, (32, 1, 1), 503_492, 503_492, 100, {"val/loss": 2.4}, {"phase": "late"}, CLOCKS)


def panel(width: int, view: View) -> list[str]:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 (closed with the process)
    console.print(render(view, width))
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("tasks", [("tokens",), TASKS, tuple(f"task{i}" for i in range(40))])
def test_the_panel_has_at_most_ten_rows_of_the_given_width(width: int, tasks: tuple[str, ...]) -> None:
    row = {"train/loss": 2.0} | {f"train/{task}/{name}": 1.0 for task in tasks for name in ("loss", "weight")}
    report = dataclasses.replace(REPORT, tasks=tasks, row=row)
    running = ("without spatial and temporal, averaged weights", 12, 40, 12.0)
    view = View(400, 110, 185.0, True, running, report, dict.fromkeys(tasks, 0.5), "stopping after this update and saving")
    lines = panel(width, view)
    assert len(lines) <= 10 and all(len(line) <= width for line in lines)
    head = next(i for i, line in enumerate(lines) if line.startswith("task"))
    names, losses = lines[head].split()[1:], lines[head + 1].split()[1:]
    left_out = int(names.pop()) if names[-1].startswith("+") else 0
    assert len(names) == len(losses) == len(tasks) - left_out and set(losses) == {"1.0000"}, "no column is cut"


def test_the_panel_shows_one_remaining_time_of_the_run_and_one_of_the_pass() -> None:
    lines = panel(80, View(400, 110, 185.0, False, ("without metadata", 12, 40, 12.0), REPORT, {"species": 0.885}))
    assert "27 %" in lines[0] and "110 of 400, 3m05s left" in lines[0]
    assert "30 %" in lines[1] and "without metadata, 12s left" in lines[1]
    assert "75 %" in lines[2] and "training waits 25 % of the time" in lines[2]
    assert "loss 2.5000  640 samples/s" in lines[3]
    assert lines[4].split() == ["task", "species", "genus", "family", "order"]
    assert [line.split()[:2] for line in lines[5:]] == [["loss", "2.5000"], ["top-1", "88.5"], ["weight", "0.25"]]
    assert sum("left" in line for line in lines) == 2
    assert "110 of 400, 3m05s + validation left" in panel(80, View(400, 110, 185.0, True))[0]


def test_the_panel_draws_losses_and_shows_an_alarm_without_further_rows() -> None:
    even = {f"train/{task}/weight": 1.0 for task in TASKS}
    losses = {"train/loss": [4.0, 3.0, 2.0, 1.0], "train/species/loss": [1.0, 8.0]}
    report = dataclasses.replace(REPORT, row={**ROW, **even})
    before = panel(80, View(400, 110, 185.0, report=REPORT, accuracy={"species": 0.5}))  # the weights differ: shown, as a row
    view = View(400, 110, 185.0, report=report, accuracy={"species": 0.5}, curves=losses, validated=(100, "loss 2.4"))
    after = panel(80, dataclasses.replace(view, alarm="step 103: the loss is 9.1, 3.8 x the usual 2.4"))
    assert after[1].split() == ["loss", "█▆▃▁", "validation:", "step", "100:", "loss", "2.4"]
    assert after[3].split() == ["alarm", "step", "103:", "the", "loss", "is", "9.1,", "3.8", "x", "the", "usual", "2.4"]
    assert after[6].split() == ["trend", "▁█"] and len(after) == len(before)
    assert "weight" in panel(80, dataclasses.replace(view, report=REPORT))[-1], "weights that differ are shown instead"
    assert "1 alarm" in " ".join(panel(120, dataclasses.replace(view, report=dataclasses.replace(report, row={**ROW, "train/alarms": 1}))))


def test_charts_of_the_gradient_and_the_alarms_are_in_the_row_of_numbers() -> None:
    report = dataclasses.replace(REPORT, row={**ROW, "train/alarms": 2.0})
    view = View(400, 110, 185.0, report=report, curves={"train/grad_norm": [1.0, 8.0, 1.5], "train/alarms": [0.0, 0.0, 2.0]})
    lines = panel(80, view)
    assert lines[3].strip() == "loss 2.5000  640 samples/s  2 alarms ▁▁█  gradient 1.5 ▁█▁"
    assert len(lines) == len(panel(80, dataclasses.replace(view, curves={})))
    assert "lr 0.0005" in panel(120, view)[3]


def test_the_panel_shows_an_alarm_for_a_few_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    display = ProgressDisplay(400)
    display.alarm("step 103: spike")
    shown = []
    for _ in range(7):
        display.report(REPORT)
        shown.append(bool(display._view.alarm))
    assert shown == [True] * 5 + [False] * 2 and display._view.curves["train/loss"] == [2.5] * 7


def test_sparkline() -> None:
    assert sparkline([], 5) == sparkline([1.0], 0) == sparkline([math.nan], 3) == ""
    assert sparkline([1.0, 1.0], 5) == "▁▁" and sparkline([0.0, math.inf, 7.0], 5) == "▁█"
    assert sparkline([0, 0, 7, 7, 3, 3], 3) == "▁█▄" and len(sparkline(range(100), 7)) == 7


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace stdout, which pytest sets again before each test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    return terminal


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Clock of the display, which a test sets."""
    monkeypatch.setattr("linnaeus.reporting.terminal.display.time.monotonic", lambda: now[0])
    now = [0.0]
    return now


def test_the_panel_is_drawn_before_the_first_update_and_shows_the_newest_report_and_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    display = ProgressDisplay(400)
    display.report(dataclasses.replace(REPORT, step=0, row={"train/lr": 0.0005}, clocks={}))
    display.start(100)
    with display:
        assert "100 of 400" in terminal.getvalue() and "none yet" in terminal.getvalue() and "task" not in terminal.getvalue()
        monkeypatch.setattr("linnaeus.reporting.terminal.display.REDRAW", 0.0)
        display.results(100, {"val/loss": 2.25, "val/species/top1": 0.25}, TASKS)
        display.results(100, {"val_mask_meta/loss": 9.0, "val_mask_meta/species/top1": 0.125}, TASKS)
        display.report(REPORT)
        display.update(110, 185.0, True)
        last = terminal.getvalue().rpartition("110 of 400, 3m05s left")[2]
        assert "step 100: loss 2.2500" in last and "loss 2.5000" in last and "25.0 %" in last and "9.0" not in last


def test_the_panel_moves_during_a_validation_pass(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    terminal = on_terminal(monkeypatch)
    with (display := ProgressDisplay(400)), display.validation(100, "val_mask_meta", 40, 90.0) as show:
        now[0] = 30.0
        show(10)
        rows = terminal.getvalue().splitlines()
        assert "100 of 400, 3m00s left" in rows[-2] and "25 %" in rows[-1] and "without metadata, 1m30s left" in rows[-1]
        now[0] = 90.0
        show(30)
        assert "75 %" in terminal.getvalue().splitlines()[-1] and "without metadata, 30s left" in terminal.getvalue()
    now[0] = 120.0
    with display:
        display.update(101, 80.0, True)
        assert "without metadata" not in terminal.getvalue().rpartition("101 of 400")[2], "the pass has ended"


def test_a_request_to_stop_stays_in_the_panel(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(os, "write", lambda descriptor, content: terminal.write(content.decode()))
    with ProgressDisplay(400) as display:
        display.notice("stopping after this update and saving")
        assert terminal.getvalue().endswith("\x1b[2Kstopping after this update and saving")
        display.update(110, 185.0, True)
        assert "stopping after this update and saving" in terminal.getvalue().rpartition("110 of 400")[2]


def test_a_short_report_is_one_line_and_a_second_one_for_what_changed() -> None:
    first = brief_report(REPORT, None).splitlines()
    assert first == [
        " 27.5%  step 110/400  loss 2.5000  wait 25%  640 samples/s  3m05s left",
        "        phase late  batch 32 x 1 x 1 = 32  503,492 parameters",
    ]
    assert brief_report(REPORT, REPORT).splitlines() == first[:1]
    skipped = dataclasses.replace(REPORT, row=ROW | {"train/skipped_updates": 2.0})
    assert brief_report(skipped, REPORT).splitlines()[1:] == ["        2 updates skipped as non-finite"]
    large = dataclasses.replace(REPORT, step=1_100_000, total_steps=4_000_000)
    assert all(len(line) <= 70 for line in (*first, *brief_report(large, REPORT).splitlines()))
    assert "wait 25%" in brief_report(large, REPORT), "the wait for data is on every line"


def test_a_validation_is_one_line_in_words() -> None:
    results = {"val_mask_meta/loss": 2.6, "val_mask_meta/species/top1": 0.131, "val_mask_meta/genus/top1": 0.22}
    text = brief_validation(40, "val_mask_meta", results, ("genus", "species"))
    assert text == "validation at step 40, without metadata:  loss 2.6000  species 13.1 %"
    assert brief_validation(1, "val", {"val/mae": 0.25}, ("x",)) == "validation at step 1:  mae 0.25"
    words = {key: pass_words(key) for key in ("val", "val_ema", "val_mask_SPATIAL_TEMPORAL", "val_ema_mask_meta")}
    assert list(words.values()) == [
        "all metadata",
        "all metadata, averaged weights",
        "without spatial and temporal",
        "without metadata, averaged weights",
    ]


@pytest.mark.parametrize(
    "seconds, text", [(1.38, "1.38 s"), (0.0402, "40.2 ms"), (0.9999, "1.00 s"), (123.4, "123 s"), (3.12e-4, "312 us")]
)
def test_short_times_have_three_digits_and_a_fitting_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_long_pass_without_a_panel_is_logged_with_its_time_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, now: list[float]
) -> None:
    monkeypatch.setattr(logging.getLogger("linnaeus"), "propagate", True)
    with caplog.at_level(logging.INFO), ProgressDisplay(10).validation(7, "val_mask_meta", 40, None) as show:
        for done in range(40):
            show(done)
            now[0] += 5
    assert [record.getMessage() for record in caplog.records] == [
        "without metadata: batch 12 of 40, 2m20s left",
        "without metadata: batch 24 of 40, 1m20s left",
        "without metadata: batch 36 of 40, 20s left",
    ]


def test_a_report_is_a_line_only_without_a_panel(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("linnaeus"), "propagate", True)
    display = ProgressDisplay(400)
    with caplog.at_level(logging.INFO):
        for live in (False, True):
            display.live = live
            display.report(REPORT)
    assert [message.split("\n")[0] for message in caplog.messages] == [brief_report(REPORT, REPORT)]


def test_only_rank_0_draws_a_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", mock.Mock(isatty=lambda: True))
    monkeypatch.setenv("TERM", "xterm")
    assert [ProgressDisplay(10, "live", is_master).live for is_master in (True, False)] == [True, False]


def test_the_panel_is_drawn_four_times_a_second(now: list[float]) -> None:
    display = ProgressDisplay(640)
    display._live = drawn = mock.Mock()
    for step in range(640):
        if display.due():
            display.update(step, None, True)
        now[0] += 1 / 64
    assert drawn.refresh.call_count == 40


def test_a_run_shows_each_update_and_each_batch_of_a_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = []
    monkeypatch.setattr(ProgressDisplay, "due", lambda self: True)
    monkeypatch.setattr(ProgressDisplay, "_redraw", lambda self: shown.append((self._view.step, (self._view.running or ())[:3])))
    runs.run("vectors", tmp_path, "trainer.length=2steps", "data.validation_samples=13", "data.validation_batch=4")
    batches = [(2, ("all metadata", done, 4)) for done in (0, 0, 1, 2, 3)]
    assert [entry for entry in shown if entry[1]] == batches
    assert {step for step, running in shown if not running} == {1, 2}


def test_the_last_lines_begin_with_the_result_and_fit_80_columns() -> None:
    timings = {"time/wall_seconds": 200.0, "time/validation_seconds": 72.0, "time/saving_seconds": 4.0, "time/samples_per_second": 640.0}
    timings |= {"memory/host_MiB": 886.0, "memory/device_MiB": 20_000.0}
    files = {"report": Path("outputs/biota/a/report.html")}
    lines = describe_end(["species 88.5 % [87.0, 90.0] of 97.7 possible"], {}, timings, files, ["linnaeus generate a"], 2000)
    assert lines == [
        "species 88.5 % [87.0, 90.0] of 97.7 possible",
        "2,000 updates in 3m20s (validation 1m12s, saving 4s)  640 samples/s",
        "report  outputs/biota/a/report.html",
        "next    linnaeus generate a",
    ]
    other = describe_end([], {"val/loss": 1.25, "val_mask_meta/loss": 1.5, "val/x/loss": 9.0}, timings, {}, [], 1)
    assert other[0] == "validation: loss 1.2500  without metadata: loss 1.5000"
    assert all(len(line) <= 79 for line in lines + other)
    long = "outputs/" + "a_long_name/" * 6 + "report.html"
    assert describe_end([], {}, timings, {"report": Path(long)}, [], 1)[-2:] == ["report", long], "the path is one line"
