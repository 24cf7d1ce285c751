"""A bar fails when it is missed for certain, and at no other time."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.interleaved import ROUNDS, Bar, conclude, measure, ratio, report, verdict

BAR = Bar("ours", "theirs", 1.1)


def rounds(factor: float, noise: float, count: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds of two variants on a machine that is up to three times slower in some rounds."""
    generator = np.random.default_rng(1)
    theirs = generator.uniform(1, 3, count)
    ours = theirs * factor * generator.lognormal(0, noise, count)
    return {"ours": ours.tolist(), "theirs": theirs.tolist()}


def said(factor: float, noise: float, count: int = ROUNDS) -> str:
    return verdict(ratio(rounds(factor, noise, count), "ours", "theirs"), BAR, count)


def test_a_ratio_is_taken_within_rounds():
    found = ratio(rounds(1.05, 0.0), "ours", "theirs")
    assert abs(found.median - 1.05) < 1e-9 and found.high - found.low < 1e-9  # a slow round slows both: no spread at all


def test_verdicts():
    assert said(1.0, 0.01) == "held"
    assert said(1.2, 0.01) == "MISSED"
    assert said(1.1, 0.1).startswith("open")
    assert said(1.2, 0.01, ROUNDS - 1).startswith("no verdict")


def test_only_a_missed_bar_sets_the_exit_status(tmp_path):
    for factor, status in ((1.0, 0), (1.2, 1)):
        table = report("table", rounds(factor, 0.01), "theirs", [BAR], (1000, "ms"), {"ours": "a note"})
        assert conclude([table], tmp_path / "found.json") == status
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["tables"][0]["bars"][0]["verdict"] == "MISSED"
    assert {"date", "command", "commit", "cpu", "load"} <= written["machine"].keys()


def test_every_variant_runs_once_a_round_and_none_is_always_first():
    order: list[str] = []
    variants = {name: lambda number, name=name: order.append(name) or float(number) for name in "abc"}
    seconds = measure(variants, 3)
    assert seconds == {name: [1.0, 2.0, 3.0] for name in "abc"}  # round 0 is not kept
    assert [order[3 * number] for number in range(4)] == ["a", "b", "c", "a"]
    assert measure(variants, 2, slices=3) == {name: [3.0, 4.0, 5.0, 6.0, 7.0, 8.0] for name in "abc"}


def test_a_task_that_always_falls_into_the_same_slice_counts():
    """The median over all slices does not see it."""
    theirs = np.random.default_rng(1).uniform(1, 3, (ROUNDS, 4))
    ours = theirs * [1.0, 1.0, 1.0, 1.4]
    seconds = {"ours": ours.ravel().tolist(), "theirs": theirs.ravel().tolist()}
    assert abs(ratio(seconds, "ours", "theirs", slices=4).median - 1.1) < 1e-9 and abs(ratio(seconds, "ours", "theirs").median - 1) < 1e-9
    assert report("table", seconds, "theirs", [BAR], (1, "s"), {}, 4)["bars"][0]["verdict"].startswith(("held", "open"))
