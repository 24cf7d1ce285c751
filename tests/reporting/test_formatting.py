import math
from collections.abc import Callable
from typing import Any

import pytest

from linnaeus.reporting import formatting
from linnaeus.reporting.formatting import INDENT, WIDTH, layout, shorten

TEXTS: dict[Callable[[Any], str], dict[float | str, str]] = {
    formatting.format_duration: {
        0: "0s", 59.4: "59s", 59.6: "1m00s", 185: "3m05s", 3599.7: "1h00m", 7620: "2h07m", 86399.6: "1d00h", 273600: "3d04h",
        math.nan: "?", math.inf: "?", -1: "?",
    },
    formatting.format_rate: {0.5234: "0.523", 87.34: "87.3", 1240: "1.24k", 2.5e6: "2.5M", math.inf: "?"},
    formatting.format_memory: {812.4: "812 MiB", 1024: "1.0 GiB", 142_336: "139.0 GiB"},
    formatting.format_value: {1234567: "1,234,567", 0.123456: "0.1235", "as it is": "as it is", math.nan: "nan"},
    formatting.format_tick: {0.5: "0.5", 1200: "1200", 25000: "25k", 3e6: "3M", -2e9: "-2G"},
}  # fmt: skip


@pytest.mark.parametrize("function", TEXTS, ids=lambda function: function.__name__)
def test_texts_of_values(function: Callable[[Any], str]) -> None:
    assert {value: function(value) for value in TEXTS[function]} == TEXTS[function]
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
