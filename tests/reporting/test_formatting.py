import math

import pytest

from linnaeus.reporting.formatting import (
    INDENT,
    WIDTH,
    format_duration,
    format_memory,
    format_rate,
    format_tick,
    format_value,
    layout,
    shorten,
)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (185, "3m05s"), (3599.7, "1h00m"), (7620, "2h07m"), (86399.6, "1d00h"),
        (273600, "3d04h"), (math.nan, "?"), (math.inf, "?"), (-1, "?"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("rate, text", [(0.5234, "0.523"), (87.34, "87.3"), (1240, "1.24k"), (2.5e6, "2.5M"), (math.inf, "?")])
def test_rates(rate: float, text: str) -> None:
    assert format_rate(rate) == text


def test_memory_and_values() -> None:
    assert [format_memory(m) for m in (812.4, 1024, 142_336)] == ["812 MiB", "1.0 GiB", "139.0 GiB"]
    assert [format_value(v) for v in (1234567, 0.123456, "as it is", math.nan)] == ["1,234,567", "0.1235", "as it is", "nan"]


def test_ticks_shares_and_long_texts() -> None:
    assert [format_tick(v) for v in (0.5, 1200, 25000, 3e6, -2e9)] == ["0.5", "1200", "25k", "3M", "-2G"]
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
