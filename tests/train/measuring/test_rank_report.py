"""Facts of all processes at each report: a slow one is named, with its section, by runs of two processes."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from linnaeus.health import Alarm
from linnaeus.reporting.jsonl.alarm_log import read_alarms
from linnaeus.train.measuring import rank_report
from linnaeus.train.measuring.rank_report import GPU, GPU_MEMORY, RankReport
from tests import runs

SETTINGS = ["trainer.length=20steps", "schedule.report=[2steps]", "trainer.global_batch_size=16", "trainer.micro_batch_size=8"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes: `slow`, where forward of rank 1 takes a quarter longer, `leak`, where rank 1 leaks memory from update 15 on,
    `loader`, where rank 1 waits for data (`tests.watching.slow_loader`), and `apart`, see `tests.watching.waits_apart`."""
    root = tmp_path_factory.mktemp("ranks")
    jobs = []
    for name, watch in (("slow", "slow_forward"), ("leak", "leak"), ("apart", "waits_apart")):
        (root / name).mkdir()
        jobs.append(runs.job("vectors", root / name, *SETTINGS, watch=[watch]))
    (root / "loader").mkdir()
    jobs.append(
        runs.job("vectors", root / "loader", *SETTINGS, "trainer.length=42steps", "schedule.report=[5steps]", watch=["slow_loader"])
    )
    runs.run_group(2, jobs, root)
    return root


def test_a_rank_that_is_a_quarter_slower_is_named_within_two_reports(root: Path) -> None:
    log = (root / "slow" / "vectors" / "run" / "train.log").read_text()
    found = re.findall(r"WARNING process rank (\d) takes ([\d.]+) x as long as the others at step (\d+): (.*)", log)
    assert len(found) == 1, "said once"
    rank, ratio, step, rest = found[0]
    assert (rank, step) == ("1", "4") and "more per update in forward and backward" in rest
    assert ratio == "1.25"
    alarms = named(root / "slow" / "vectors" / "run", "slow_rank")
    assert [(alarm.kind, alarm.step, alarm.process_rank) for alarm in alarms] == [("slow_rank", 4, 1)]


def named(run: Path, kind: str) -> list[Alarm]:
    """Return the alarms of a kind in alarms.jsonl; they are counted in summary.json, but not in the rows of metrics."""
    found = [alarm for alarm in read_alarms(run) if alarm.kind == kind]
    assert runs.summary(run)["alarms"]["kinds"].get(kind, 0) == len(found)
    assert {row.get("train/alarms", 0) for row in runs.rows(run / "metrics.jsonl")} == {0}
    return found


def test_a_process_that_waits_for_data_is_named(root: Path) -> None:
    (alarm,) = named(root / "loader" / "vectors" / "run", "data_wait")
    assert (alarm.step, alarm.process_rank, alarm.value) == (40, 1, 0.75)
    assert alarm.text.startswith("training waits for data 75 % of the time at step 40 on process rank 1; ")


def test_a_leak_that_begins_in_update_15_is_named_with_its_rank_in_the_second_report_after_it(root: Path) -> None:
    log = (root / "leak" / "vectors" / "run" / "train.log").read_text()
    found = re.findall(r"WARNING (.*) grows steadily, as in a leak: from .* at step (\d+) to .* at step (\d+);", log)
    assert found == [("private memory of process rank 1, with its workers,", "14", "18")]
    (alarm,) = named(root / "leak" / "vectors" / "run", "memory_growth")
    assert (alarm.step, alarm.process_rank) == (18, 1)
    assert "grows steadily" not in (root / "slow" / "vectors" / "run" / "train.log").read_text()


def test_the_times_and_memory_of_both_ranks_are_in_the_rows(root: Path) -> None:
    rows = [row for row in runs.rows(root / "slow" / "vectors" / "run" / "timings.jsonl") if "ranks/compute_ms_most" in row]
    assert len(rows) == 10
    assert all(row["ranks/compute_ms_most"] == pytest.approx(1.25 * row["ranks/compute_ms_least"]) for row in rows)
    assert rows[0]["ranks/compute_ms_least"] == pytest.approx(100.0), "one micro-batch"
    for row in rows:
        assert row["memory/host_now_most_rank"] in (0, 1) and row["memory/host_now_most_MiB"] >= row["memory/host_now_MiB"] > 50
        assert 0 < row["memory/host_private_MiB"] < row["memory/host_now_MiB"] and row["memory/workers_MiB"] == 0


def test_waiting_for_the_gradients_of_others_is_no_part_of_backward(root: Path) -> None:
    assert (root / "apart" / "waits-1").exists() and runs.summary(root / "apart" / "vectors" / "run")["status"] == "finished"


# -- one process -----------------------------------------------------------------------------------------------------------------


def report_of(facts: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the texts of the alarms at the reports of one process on a GPU that gives `facts`, at steps 10, 20, ..."""
    taken = iter(facts)
    training: Any = SimpleNamespace(
        context=SimpleNamespace(world_size=1, rank=0, all_reduce=lambda table: table), device=torch.device("cpu"), first_step=0,
        progress=SimpleNamespace(global_step=0), clock=SimpleNamespace(waiting=0.0, training=float),
    )  # fmt: skip
    monkeypatch.setattr(rank_report, "memory_facts", lambda t: next(taken))
    ranks, lines = RankReport(torch.device("cpu"), 1), []
    for _ in facts:
        training.progress.global_step += 10
        ranks.collect(training)
        lines.append([alarm.describe() for alarm in ranks.alarms(training.progress.global_step, 1000)])
    return lines


def test_a_throttled_gpu_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held = dict(zip(GPU, (0.9, 1100.0, 1980.0, 699.0, 84.0, float(0x24)), strict=True))
    lines = report_of([held | {"gpu/throttling": 0.0}, held, held, held], monkeypatch)
    assert lines == [[], [], ["the GPU is throttled at step 30 (power limit, temperature (software)): 1100 of 1980 MHz, 699 W, 84 °C"], []]
    normal = held | {"gpu/sm_clock_MHz": 1965.0}
    assert report_of([normal, normal, normal, held, normal], monkeypatch) == [[]] * 5, "the clock of a GPU at full load"
    unknown = normal | {"gpu/sm_clock_max_MHz": float("nan")}
    assert report_of([unknown, unknown], monkeypatch)[1][0].endswith("1965 MHz, 699 W, 84 °C")


def test_a_leak_on_the_gpu_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = report_of([{GPU_MEMORY[0]: 4000.0 + 30 * i} for i in range(60)], monkeypatch)
    said = [line for one in lines for line in one]
    assert len(said) == 1 and said[0].startswith("GPU memory grows steadily, as in a leak: from 4.0 GiB at step 40")
