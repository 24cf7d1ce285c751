"""Files of rows are equal byte for byte in two runs, also if one of them was killed and resumed."""

import contextlib
import errno
import json
import logging
import math
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock, call

import pytest

from linnaeus.health import Alarm
from linnaeus.reporting import LogSinks, RowWriter
from linnaeus.reporting.jsonl import row_writer
from linnaeus.reporting.jsonl.alarm_log import AlarmLog
from linnaeus.reporting.jsonl.rows import format_row, read_rows


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


def log_rows(writer: RowWriter, *steps: int) -> RowWriter:
    for step in steps:
        writer.log(step, row(step))
    return writer


def steps_in(path: Path) -> list[int]:
    return [found["global_step"] for found in read_rows(path)]


@pytest.mark.parametrize("tail", [b"", b'{"global_step": 9, "tr', b"\n\n", b'{"global_step": 99}\n'])
def test_a_killed_and_resumed_file_is_the_file_of_the_whole_run(tmp_path: Path, tail: bytes) -> None:
    whole, cut = log_rows(RowWriter(tmp_path / "whole.jsonl"), *range(1, 11)), RowWriter(tmp_path / "cut.jsonl")
    rows_saved = log_rows(cut, *range(1, 6)).rows
    cut.sync()
    log_rows(cut, 6, 7, 8)
    cut.path.write_bytes(cut.path.read_bytes() + tail)  # killed within a row, or after further rows
    again = RowWriter(cut.path)
    assert cut.path.read_bytes() != whole.path.read_bytes()
    again.truncate(5, rows_saved)
    assert again.rows == rows_saved == 5
    log_rows(again, *range(6, 11))
    assert cut.path.read_bytes() == whole.path.read_bytes() and again.rows == whole.rows == 10


def test_an_incomplete_line_is_removed_before_the_next_row(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b'{"global_step": 1}\n{"global_st')
    writer = log_rows(RowWriter(path), 2)
    assert steps_in(path) == [1, 2] and writer.rows == 2


# -- a disk that refuses writes ------------------------------------------------------------------------------------------------


def refusing(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC, room: int = 0) -> Callable[[int], None]:
    """Make `os.write` fail after `room` more bytes. Return a function that sets the number of bytes again."""
    real, left = os.write, [room]

    def write(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(code, os.strerror(code))
        written = real(descriptor, memoryview(data)[: left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    return lambda more: left.__setitem__(0, more)


def lines_of(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


@pytest.mark.parametrize("room", [0, 1, 30, 500])
def test_rows_wait_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    """A full disk at the end of a row or within one: no row is lost or torn, and the error is logged once."""
    whole, full = log_rows(RowWriter(tmp_path / "whole"), *range(1, 21)), RowWriter(tmp_path / "full")
    with monkeypatch.context() as patch:
        make_room = refusing(patch, room=room)
        log_rows(full, *range(1, 11))
        assert full.rows == 10
        for _ in range(2):
            with pytest.raises(OSError, match=r"No space left on device.*full"):
                full.sync()
        assert len(lines_of(caplog, logging.ERROR)) == 1 and "can NOT be written" in lines_of(caplog, logging.ERROR)[0]
        assert full.path.stat().st_size == room
        make_room(7)  # less than a row
        log_rows(full, 11)
    if room == 1:
        full.sync()  # `sync` writes pending rows too
        assert steps_in(full.path) == list(range(1, 12))
    log_rows(full, 12)
    assert "are written to" in lines_of(caplog, logging.WARNING)[-1]
    log_rows(full, *range(13, 21))
    assert full.path.read_bytes() == whole.path.read_bytes()


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_file_is_opened_again_after_its_disk_was_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, deleted: bool
) -> None:
    """The descriptor from before stays unusable. A row was torn, and another file in place of this one is refused."""
    whole, writer, real = log_rows(RowWriter(tmp_path / "whole"), *range(1, 7)), log_rows(RowWriter(tmp_path / "rows"), 1), os.write
    stale, room = writer._descriptor, [10]

    def write(descriptor: int, data: bytes) -> int:
        if descriptor == stale and not room[0]:
            raise OSError(code, os.strerror(code))
        written = real(descriptor, data[: room.pop(0)] if descriptor == stale else data)
        room.append(0)
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        patch.setattr(os, "close", lambda descriptor: None)  # so that the number of the descriptor is not used again
        log_rows(writer, 2)
        if deleted:
            writer.path.unlink()
        log_rows(writer, 3, 4, 5, 6)
        with pytest.raises(FileNotFoundError, match="its rows were deleted") if deleted else contextlib.nullcontext():
            writer.sync()
    assert not writer.path.exists() if deleted else writer.path.read_bytes() == whole.path.read_bytes()


def test_a_kill_while_rows_are_pending_leaves_complete_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        refusing(patch, room=80)
        log_rows(RowWriter(tmp_path / "rows"), 1, 2, 3)
    again = RowWriter(tmp_path / "rows")  # the pending rows were lost with their process
    assert again.rows == 1
    log_rows(again, 2)
    assert steps_in(again.path) == [1, 2]


def test_too_many_pending_rows_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_writer, "MAX_PENDING_BYTES", 1000)
    writer = RowWriter(tmp_path / "rows")
    with monkeypatch.context() as patch:
        refusing(patch, errno.EROFS)
        with pytest.raises(OSError, match=r"Read-only file system; .* wait to be written") as caught:
            for step in range(1, 100):
                writer.log(step, row(step))
    assert 10 < step < 30 and caught.value.errno == errno.EROFS
    writer.close()
    assert len(read_rows(writer.path)) == step


def test_rows_lost_at_the_end_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    writer = RowWriter(tmp_path / "rows")
    with monkeypatch.context() as patch:
        refusing(patch)
        writer.log(1, row(1))
        writer.close()
    assert "bytes of rows are lost" in lines_of(caplog, logging.ERROR)[-1]


@pytest.mark.parametrize("how", ["deleted", "replaced", "directory deleted", "directory moved", "deleted before the first row"])
def test_a_deleted_or_replaced_file_is_an_error(tmp_path: Path, how: str) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "metrics.jsonl"
    writer = log_rows(RowWriter(path), 1)
    writer.sync()
    if how == "deleted before the first row":
        writer.close()
        writer = RowWriter(path)
        writer.sync()
    if how.startswith("directory"):
        shutil.rmtree(path.parent) if how == "directory deleted" else path.parent.rename(tmp_path / "elsewhere")
    else:
        path.unlink()
    if how == "replaced":
        path.write_bytes(b"of another\n")
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl"):
        writer.sync()
    assert not path.exists() or how == "replaced"


def test_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    writer = RowWriter(tmp_path / "run" / "rows")
    writer.log(1, row(1))
    with pytest.raises(FileNotFoundError):
        writer.sync()
    (tmp_path / "run").mkdir()
    writer.sync()
    assert writer.rows == len(read_rows(writer.path)) == 1


def test_a_flush_in_another_thread_does_not_block_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a slow flush rows are logged, and closing the file does not disturb the flush."""
    writer, flushing, done = log_rows(RowWriter(tmp_path / "rows"), 1), threading.Event(), threading.Event()
    real = os.fsync

    def slow(descriptor: int) -> None:
        flushing.set()
        assert done.wait(30)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(writer.sync)
        assert flushing.wait(30)
        log_rows(writer, 2, 3)  # a lock held during the flush would block here
        writer.close()
        done.set()
        flush.result(30)
    assert steps_in(writer.path) == [1, 2, 3]


# -- all sinks -----------------------------------------------------------------------------------------------------------------


def test_sinks_cut_metrics_by_rows_and_timings_by_step(tmp_path: Path) -> None:
    sinks = LogSinks(tmp_path)
    for step in (10, 20, 30):
        sinks.log(step, {"x": step})
        sinks.log(step, {"val": step})
        sinks.log(step, {"t": step}, "timings")
        if step == 20:
            state = sinks.state_dict()
    again = LogSinks(tmp_path)
    assert again.resume(state, 20) == []
    assert steps_in(tmp_path / "metrics.jsonl") == [10, 10, 20, 20]
    assert steps_in(tmp_path / "timings.jsonl") == [10, 20]
    assert again.state_dict() == state == {"rows": 4, "of_step": 2, "lost": 0}
    assert again.resume({"rows": 6}, 30) == ["metrics.jsonl lacks 2 rows that the checkpoint counted"]
    again.resume({}, 0)  # a new run
    assert read_rows(tmp_path / "metrics.jsonl") == read_rows(tmp_path / "timings.jsonl") == []


def test_lost_alarms_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alarms = AlarmLog(tmp_path)
    for step in (10, 20):
        alarms.log(step, Alarm("not_finite", step, "the loss is not finite"))
    saved = alarms.counters()
    alarms.close()
    AlarmLog(tmp_path).resume(20, saved)
    assert caplog.text == ""
    (tmp_path / "alarms.jsonl").unlink()
    AlarmLog(tmp_path).resume(20, saved)
    assert "alarms.jsonl lacks 2 rows that the checkpoint counted" in caplog.text


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    sinks = LogSinks(None)
    sinks.log(1, {"x": 1})
    sinks.log(1, {"x": 1}, "timings")
    sinks.sync()
    sinks.resume({"rows": 4}, 1)
    sinks.close()
    assert sinks.state_dict() == {"rows": 0} and not list(tmp_path.iterdir())


def test_a_row_logged_again_has_the_same_position(tmp_path: Path) -> None:
    first, second = Mock(), Mock()
    sinks = LogSinks(tmp_path, [first])
    sinks.log(1, {})
    state = sinks.state_dict()
    for step in (2, 2, 3):
        sinks.log(step, {})
    sinks.log(3, {}, "timings")
    sinks = LogSinks(tmp_path, [second])
    sinks.resume(state, 1)
    for step in (2, 2, 3):
        sinks.log(step, {})
    logged = [call(step, {}, stream="metrics", position=position) for step, position in ((1, 1), (2, 2), (2, 3), (3, 4))]
    assert first.log.mock_calls == [*logged, call(3, {}, stream="timings", position=1)]
    assert second.mock_calls == [call.start(1, ANY), *(call.log(*c.args, **c.kwargs) for c in logged[1:])]
