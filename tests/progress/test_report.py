import math

import pytest

from linnaeus.progress import format_duration, report_line
from linnaeus.progress.report import eta_seconds, format_rate


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (185, "3m05s"), (3599.7, "1h00m"), (7620, "2h07m"), (86399.6, "1d00h"),
        (273600, "3d04h"), (math.nan, "?"), (math.inf, "?"), (-1, "?"),
    ],
)  # fmt: skip
def test_durations_a_person_reads(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("rate, text", [(0.5234, "0.523"), (87.34, "87.3"), (1240, "1.24k"), (2.5e6, "2.5M"), (math.inf, "?")])
def test_rates(rate: float, text: str) -> None:
    assert format_rate(rate) == text


def test_the_whole_line() -> None:
    line = report_line(
        {
            "step": 120, "total_steps": 1000, "epoch": 1, "epochs": 10, "loss": 2.34567, "smoothed_loss": 2.5, "lr": 3e-4,
            "samples_per_second": 812.3, "wait_fraction": 0.034, "elapsed_seconds": 61, "eta_seconds": 452, "species/top1": 0.4321,
        }
    )  # fmt: skip
    assert line == (
        " 12.0%  step  120/1000  epoch 2/10  loss 2.3457  smooth 2.5000  lr 3.00e-04  812 samples/s  data wait 3%  elapsed 1m01s"
        "  ETA 7m32s  species/top1 0.4321"
    )


def test_what_is_not_known_is_left_out() -> None:
    assert report_line({"step": 7, "total_steps": 7}) == "100.0%  step 7/7"
    assert "loss nan" in report_line({"step": 1, "total_steps": 7, "loss": math.nan})


def test_time_left() -> None:
    assert eta_seconds(25, 100, 0.1, 5.0) == pytest.approx(12.5)
    assert eta_seconds(100, 100, 0.1) == 0.0
