"""Every section compared with expected texts and rows, the choice of sections, and the formats of values."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from linnaeus.config import CONF, compose
from linnaeus.errors import ConfigError
from linnaeus.reporting import formatting
from linnaeus.reporting.formatting import INDENT, WIDTH, layout, shorten
from linnaeus.reporting.terminal.progress_report import SECTIONS, ReportData, describe_report

DATA = ReportData(
    step=120,
    total_steps=1000,
    steps_per_epoch=100,
    tasks=("genus", "species"),
    row={
        "train/loss": 2.34567, "train/smoothed_loss": 2.5, "train/lr": 3e-4, "train/grad_norm": 0.81234, "train/skipped_updates": 0,
        "train/genus/loss": 1.5, "train/genus/weight": 0.75, "train/species/loss": 3.25, "train/species/weight": 1.25, "val/loss": 9.0,
    },
    samples=3840,
    units=("tokens", 3_932_160),
    batch=(8, 2, 2),
    parameters=804_096,
    active_parameters=512_000,
    more={
        "growth/density": 0.625, "growth/connected_now": 5, "phase": "roots", "phase/description": "what comes first",
        "phase/weight": 0.5, "phase/mixture/leaf": 0.75, "phase/mixture/twig": 0.25, "humus": 7,
    },
    validated=100,
    validation={"val/loss": 2.5, "val_mask_meta/loss": 3.25, "val/part/root/score": 0.125, "val/part/twig/score": 0.5},
    clocks={
        "time/wall_seconds": 61.0, "time/eta_seconds": 452.0, "time/eta_validation_seconds": 12.0, "time/eta_saving_seconds": 0.1,
        "recent/steps_per_second": 25.0, "recent/ms_per_step": 40.0, "recent/samples_per_second": 800.0,
        "recent/tokens_per_second": 819_200.0, "recent/waiting_for_data": 0.034, "recent/mfu": 0.3715, "memory/host_now_MiB": 812.0,
        "memory/host_MiB": 900.0, "memory/device_now_MiB": 2048.0, "memory/device_MiB": 3072.0, "memory/device_total_MiB": 142_336.0,
    },
)  # fmt: skip
TEXTS = {
    "progress": [" 12.0%", "step   120/1,000", "epoch 2/10"],
    "loss": ["loss 2.3457", "smoothed 2.5000"],
    "validation": ["val/loss 2.5000", "val_mask_meta/loss 3.2500", "val/part/score root 0.125, twig 0.5", "at step 100"],
    "tasks": ["genus 1.5 x 0.75", "species 3.25 x 1.25"],
    "update": ["lr 3.00e-04", "grad norm 0.812"],
    "time": ["elapsed 1m01s", "ETA 7m32s (validation 12s)"],
    "rates": ["25 steps/s", "40.0 ms/step", "800 samples/s", "819k tokens/s", "data wait 3%", "MFU 37.1%"],
    "memory": ["host 812 MiB", "device 2.0 GiB, peak 3.0 GiB of 139.0 GiB"],
    "samples": ["3,840 samples", "3,932,160 tokens", "batch 8 x 2 x 2 = 32"],
    "model": ["512,000 of 804,096 parameters active"],
    "growth": ["62.50% connected"],
    "phase": ["phase roots: what comes first", "weight 0.5", "mixture leaf 0.75, twig 0.25"],
    "workload": ["humus 7"],
}
ROW = {
    "progress/percent": 12.0, "progress/total_steps": 1000, "progress/epoch": 1.2, "progress/samples_seen": 3840,
    "progress/tokens_seen": 3_932_160, "batch/micro_batch_size": 8, "batch/accumulation": 2, "batch/processes": 2,
    "batch/global_batch_size": 32, "model/parameters": 804_096, "model/active_parameters": 512_000, "validation/step": 100,
    **DATA.row, **DATA.validation, **DATA.more,
}  # fmt: skip


@pytest.mark.parametrize("name", list(SECTIONS))
def test_the_texts_of_a_section(name: str) -> None:
    assert [part.text for part in SECTIONS[name](DATA) if part.text] == TEXTS[name]


def test_the_memory_of_other_processes_and_shared_memory() -> None:
    more = {
        "memory/host_now_most_MiB": 1000.0,
        "memory/host_now_most_rank": 2,
        "memory/device_most_MiB": 4096.0,
        "memory/device_most_rank": 3,
    }
    workers = {"memory/workers_MiB": 300.0, "memory/workers_now_MiB": 700.0, "memory/host_shm_MiB": 64.0, "memory/workers_shm_MiB": 128.0}
    texts = [part.text for part in SECTIONS["memory"](replace(DATA, clocks=DATA.clocks | more | workers))]
    assert texts == [
        *("host 812 MiB", "rank 2 1000 MiB", "workers 300 MiB", "shared memory 64 MiB", "device 2.0 GiB, peak 3.0 GiB of 139.0 GiB"),
        "rank 3 device peak 4.0 GiB",
    ]
    own = more | {"memory/host_now_most_rank": 0, "memory/device_most_rank": 0}  # this process
    assert [part.text for part in SECTIONS["memory"](replace(DATA, clocks=DATA.clocks | own))] == TEXTS["memory"]


def test_the_row_contains_no_times() -> None:
    assert describe_report([*SECTIONS], DATA)[1] == describe_report([*SECTIONS], replace(DATA, clocks={}))[1] == ROW


def test_sections_are_in_the_chosen_order() -> None:
    text, row = describe_report(["model", "loss"], DATA)
    assert text == "512,000 of 804,096 parameters active  loss 2.3457  smoothed 2.5000"
    assert list(row) == ["model/parameters", "model/active_parameters", "train/loss", "train/smoothed_loss"]


def test_values_that_are_not_available_are_left_out() -> None:
    text, row = describe_report([*SECTIONS], ReportData(7, 7, 7, parameters=3, active_parameters=3))
    assert text == "100.0%  step 7/7  epoch 1/1  0 samples  batch 1 x 1 x 1 = 1  3 parameters"
    assert not [name for name in row if name.startswith(("train", "val", "phase", "growth"))]
    assert describe_report(["loss"], replace(DATA, row={"train/loss": math.nan}))[0] == "loss nan"
    unknown = replace(DATA, clocks={"time/eta_seconds": 30.0})
    assert describe_report(["time"], unknown)[0] == "ETA 30s + validation", "without a timed validation the ETA does not include it"


def test_a_single_task_is_not_shown_and_skipped_updates_are() -> None:
    assert describe_report(["tasks"], replace(DATA, tasks=("species",))) == ("", {})
    assert describe_report(["update"], replace(DATA, row={"train/skipped_updates": 3}))[0] == "3 updates skipped"


def test_all_sections_are_chosen_by_default() -> None:
    assert tuple(compose().logger.report_sections) == tuple(SECTIONS)
    assert "report_sections" in (CONF / "logger" / "default.yaml").read_text()


@pytest.mark.parametrize(
    "sections, message",
    [("[loss,los]", "'los'; it must be one of progress, loss,"), ("[]", "schedule.report=[]"), ("[loss,time,loss]", "names loss twice")],
)
def test_a_wrong_choice_is_an_error_of_one_line(sections: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"logger\.report_sections") as error:
        compose([f"logger.report_sections={sections}"])
    assert message in str(error.value) and "\n" not in str(error.value)


# -- formatting -------------------------------------------------------------------------------------------------------------------

FORMATS: dict[Callable[[Any], str], dict[float | str, str]] = {
    formatting.format_duration: {
        0: "0s", 59.4: "59s", 59.6: "1m00s", 185: "3m05s", 3599.7: "1h00m", 7620: "2h07m", 86399.6: "1d00h", 273600: "3d04h",
        math.nan: "?", math.inf: "?", -1: "?",
    },
    formatting.format_rate: {0.5234: "0.523", 87.34: "87.3", 999.6: "1k", 1240: "1.24k", 2.5e6: "2.5M", math.inf: "?"},
    formatting.format_size: {999: "999 bytes", 1000: "1.00 kB", 24_521: "24.5 kB", 999_600: "1.00 MB", 4 * 10**10: "40.0 GB"},
    formatting.format_memory: {812.4: "812 MiB", 1024: "1.0 GiB", 142_336: "139.0 GiB"},
    formatting.format_value: {1234567: "1,234,567", 0.123456: "0.1235", "as it is": "as it is", math.nan: "nan"},
    formatting.format_tick: {0.5: "0.5", 1200: "1200", 25000: "25k", 3e6: "3M", -2e9: "-2G"},
}  # fmt: skip


@pytest.mark.parametrize("function", FORMATS, ids=lambda function: function.__name__)
def test_texts_of_values(function: Callable[[Any], str]) -> None:
    assert {value: function(value) for value in FORMATS[function]} == FORMATS[function]
    assert [shorten(text, 6) for text in ("sixsix", "seventh")] == ["sixsix", "seven…"]


def test_a_report_of_few_parts_is_one_line() -> None:
    assert layout([["12.0%", "step 12/100"], [], ["loss 2.0"]]) == "12.0%  step 12/100  loss 2.0"
    assert layout([]) == layout([[], []]) == ""


def test_lines_break_between_sections_and_within_long_ones() -> None:
    first, second, third = ["a" * 60, "b" * 40], ["c" * 40], ["d" * 70, "e" * 70]
    lines = layout([first, second, third]).split("\n")
    assert lines == ["  ".join(first), INDENT + "c" * 40 + "  " + "d" * 70, INDENT + "e" * 70]
    assert all(len(line) <= WIDTH for line in lines)
    assert layout([["x" * 200], ["y"]]).split("\n") == ["x" * 200, INDENT + "y"], "a single text is not broken"
