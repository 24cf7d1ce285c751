"""Under torchrun, stopped and killed three times: one run directory, one log, one W&B folder with every row once."""

from __future__ import annotations

import json
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import runs
from tests.e2e.test_launches import TORCHRUN, begin, wait_in
from tests.e2e.test_launches import mark as mark  # the fixture
from tests.faults.spec import processes, signal_to
from tests.vectors.workload import PAUSE

LENGTH = 400
SETTINGS = [f"trainer.length={LENGTH}steps", "schedule.log=[5steps]", "schedule.report=[]", "schedule.checkpoint=[20steps]"]
SETTINGS += ["trainer.max_time=${oc.env:LINNAEUS_LIMIT}", "logger.wandb=offline", "schedule.validate=[100%]", "logger.report=false"]

BLOCK = 32768


def sent(run: Path) -> Iterator[tuple[str, int, dict]]:
    """(run id, W&B's own step, row) of every row in the folders of W&B, in the order of the starts."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted((run / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda p: p.parent.name):
        for data in stored(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                yield path.stem.removeprefix("run-"), record.history.step.num, items


def stored(content: bytes) -> Iterator[bytes]:
    """Return the records of an offline file: blocks of 32 KiB after 7 bytes at the start, of pieces with a checksum (4 bytes), a length
    (2) and a type (1: whole, first, middle, last); a kill may cut the end off."""
    at, parts = 7, b""
    while at + 7 <= len(content):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        if kind not in (1, 2, 3, 4) or at + 7 + length > len(content):
            return
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


@pytest.mark.slow
def test_three_restarts_make_one_run(tmp_path, mark, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("LINNAEUS_LIMIT", "8765min")
    monkeypatch.setenv(PAUSE, "0.03")  # so that it is not over before it is stopped, however late that is
    run = tmp_path / "vectors/run"
    for stop in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        already = len(runs.rows(run / "metrics.jsonl")) if (run / "metrics.jsonl").exists() else 0
        launch = begin(mark, tmp_path, *SETTINGS, launcher=TORCHRUN)
        wait_in(launch, mark, lambda count=already: (run / "metrics.jsonl").exists() and len(runs.rows(run / "metrics.jsonl")) > count + 8)
        if stop == signal.SIGTERM:
            launch.terminate()
        else:
            for pid in processes(mark):
                signal_to(pid, signal.SIGKILL)
        launch.communicate(timeout=120)
        runs.wait_until(lambda: processes(mark) == [])
    monkeypatch.delenv(PAUSE)
    launch = begin(mark, tmp_path, *SETTINGS, launcher=TORCHRUN)
    text, _ = launch.communicate(timeout=180)
    assert launch.returncode == 0, text

    assert [path.name for path in (tmp_path / "vectors").iterdir()] == ["run"]
    assert sorted(path.name for path in (run / "launches").iterdir()) == ["1", "2", "3", "4"]
    lines = [line for line in (run / "train.log").read_text().splitlines() if "continuing at step" in line]
    assert len(lines) == 3
    assert len(list((run / "wandb").glob("offline-run-*"))) == 1, "wandb sync does not join the folders of several launches"
    rows = list(sent(run))
    assert {run_id for run_id, *_ in rows} == {json.loads((run / "run.json").read_text())["run_id"]}
    assert [step for _, step, _ in rows] == list(range(1, len(rows) + 1)), "W&B's own step went back"
    found = [sorted((key, value) for key, value in row.items() if not key.startswith("_")) for _, _, row in rows]
    logged = [sorted(row.items()) for name in ("metrics", "timings") for row in runs.rows(run / f"{name}.jsonl")]
    assert sorted(map(repr, map(numbers, found))) == sorted(map(repr, map(numbers, logged))) and len(found) >= LENGTH // 5
    assert [path for path in run.rglob("*") if path.is_file() and b"8765min" in path.read_bytes()] == [], "a value of the environment"


def numbers(row: list) -> list:
    """The row with whole numbers as floats: W&B writes 0 for 0.0."""
    return [(key, float(value) if isinstance(value, int) else value) for key, value in row]
