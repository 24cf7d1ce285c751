"""Rows that two runs can compare with cmp, also when one of them was killed and resumed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from linnaeus.logging import LogSinks, RowWriter
from linnaeus.logging.rows import format_row, read_rows


def row(step: int) -> dict[str, Any]:
    return {"train/loss": 1.0 / step, "a": step, "val/x": math.nan if step % 3 else math.inf}


def test_format() -> None:
    line = format_row(7, {"z": 0.1 + 0.2, "global_step": 99, "b": True, "a": None, "n": math.nan, "i": math.inf, "j": -math.inf, "t": 'q"'})
    assert line == ('{"global_step": 7, "a": null, "b": true, "i": 1e999, "j": -1e999, "n": null, "t": "q\\"", "z": 0.30000000000000004}')

    def no_extensions(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    back = json.loads(line, parse_constant=no_extensions)
    assert back["z"] == 0.1 + 0.2 and back["i"] == math.inf and back["j"] == -math.inf and next(iter(back)) == "global_step"


def test_a_tensor_is_refused() -> None:
    import torch

    with pytest.raises(AssertionError, match="loss is a Tensor"):
        format_row(1, {"loss": torch.tensor(1.0)})


def test_the_order_of_a_dict_does_not_matter() -> None:
    assert format_row(1, {"a": 1, "b": 2.0}) == format_row(1, {"b": 2.0, "a": 1})


@pytest.mark.parametrize("tail", [b"", b'{"global_step": 9, "tr', b"\n\n", b'{"global_step": 99}\n'])
def test_a_killed_and_resumed_file_is_the_file_of_the_whole_run(tmp_path: Path, tail: bytes) -> None:
    whole, cut = RowWriter(tmp_path / "whole.jsonl"), RowWriter(tmp_path / "cut.jsonl")
    for step in range(1, 11):
        whole.log(step, row(step))
        if step <= 8:
            cut.log(step, row(step))
        if step == 5:
            state = cut.state_dict()
            cut.sync()
    cut.path.write_bytes(cut.path.read_bytes() + tail)  # killed in the middle of a row, or after some more
    again = RowWriter(cut.path)
    again.load_state_dict(state)
    assert again.rows == 5
    for step in range(6, 11):
        again.log(step, row(step))
    assert cut.path.read_bytes() == whole.path.read_bytes() and again.rows == whole.rows == 10


def test_negative_control_without_truncation_the_files_differ(tmp_path: Path) -> None:
    a, b = RowWriter(tmp_path / "a"), RowWriter(tmp_path / "b")
    for step in (1, 2, 3):
        a.log(step, row(step))
    for step in (1, 2, 2, 3):
        b.log(step, row(step))
    assert a.path.read_bytes() != b.path.read_bytes()


def test_half_a_line_never_joins_the_next_row(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b'{"global_step": 1}\n{"global_st')
    writer = RowWriter(path)
    writer.log(2, {})
    assert [r["global_step"] for r in read_rows(path)] == [1, 2] and writer.rows == 2


def test_sinks_cut_metrics_by_rows_and_timings_by_step(tmp_path: Path) -> None:
    sinks = LogSinks(tmp_path)
    for step in (10, 20, 30):
        sinks.log(step, {"x": step})
        sinks.log(step, {"val": step})
        sinks.log_timings(step, {"t": step})
        if step == 20:
            state = sinks.state_dict()
    again = LogSinks(tmp_path)
    assert again.resume(state, 20) == []
    assert [r["global_step"] for r in read_rows(tmp_path / "metrics.jsonl")] == [10, 10, 20, 20]
    assert [r["global_step"] for r in read_rows(tmp_path / "timings.jsonl")] == [10, 20]
    assert again.state_dict() == {"rows": 4}
    assert again.resume({"rows": 6}, 30) == ["metrics.jsonl lacks 2 rows that the checkpoint counted"]
    again.resume({}, 0)  # anew
    assert read_rows(tmp_path / "metrics.jsonl") == read_rows(tmp_path / "timings.jsonl") == []


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    sinks = LogSinks(None)
    sinks.log(1, {"x": 1})
    sinks.log_timings(1, {"x": 1})
    sinks.sync()
    sinks.resume({"rows": 4}, 1)
    sinks.close()
    assert sinks.state_dict() == {"rows": 0} and not list(tmp_path.iterdir())


class Recorder:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int, int]] = []
        self.begun: list[int] = []

    def begin(self, global_step: int) -> None:
        self.begun.append(global_step)

    def log(self, global_step: int, row: Any, *, stream: str, position: int) -> None:
        self.got.append((stream, position, global_step))

    def sync(self) -> None: ...

    def close(self) -> None: ...


def test_a_replayed_row_has_the_position_it_had(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    sinks = LogSinks(tmp_path, [first])
    sinks.log(1, {})
    state = sinks.state_dict()
    for step in (2, 2, 3):
        sinks.log(step, {})
    sinks.log_timings(3, {})
    sinks = LogSinks(tmp_path, [second])
    sinks.resume(state, 1)
    for step in (2, 2, 3):
        sinks.log(step, {})
    assert second.begun == [1] and second.got == first.got[1:4] and first.got[-1] == ("timings", 1, 3)
