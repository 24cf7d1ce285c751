"""Test the notice of clipping: in a run whose gradients are clipped, once, and not in others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from linnaeus.train.measuring.clipped_updates import ROWS, ClippedUpdates
from tests import runs

LINE = "% of the logged updates are clipped"


@pytest.mark.parametrize("limit, count", [("1.0e-6", 1), ("1.0e+6", 0), ("null", 0), ("0", 0)])
def test_a_run_logs_the_notice_once_if_most_updates_are_clipped(limit: str, count: int, tmp_path: Path) -> None:
    run = runs.run("vectors", tmp_path, f"trainer.max_grad_norm={limit}", "trainer.length=60steps", "schedule.log=[1steps]")
    log = (run / "train.log").read_text()
    assert log.count(LINE) == count
    assert ("trainer.max_grad_norm=1e-06; " in log) == bool(count)
    rows = [row for row in runs.rows(run / "metrics.jsonl") if "train/loss" in row]
    assert rows and all(("train/clip_rate" in row) == (limit not in ("null", "0")) for row in rows)


HALF, SKIPPED = [0.5, 2.0] * ROWS, [math.inf, math.nan, math.inf] * ROWS + [0.5] * ROWS


@pytest.mark.parametrize("norms", [HALF, SKIPPED], ids=["half", "not finite"])
def test_half_of_the_updates_are_not_most_and_a_norm_that_is_not_finite_is_not_clipped(
    norms: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "linnaeus")
    updates = ClippedUpdates()
    for norm in norms:
        updates.add(norm, 1.0)
    assert LINE not in caplog.text
