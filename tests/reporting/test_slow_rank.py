"""A process that is slower than the others is named, with its section; noise of 5 % is not."""

import random

import pytest

from linnaeus.reporting.performance.slow_rank import COMPUTE, DATA, HOST, SECTIONS, SlowRank, slowest

USUAL = (0.010, 0.080, 0.010)  # seconds of an update


def table(ranks: int, slow: dict[int, str] | None = None, noise: float = 0.0, seed: int = 0, factor: float = 1.25) -> list[list[float]]:
    """Return the seconds of each rank, with noise; the update of rank r takes `factor` times as long, in section `slow[r]`."""
    rng = random.Random(seed)
    rows = [[seconds * (1 + rng.uniform(-noise, noise)) for seconds in USUAL] for _ in range(ranks)]
    for rank, section in (slow or {}).items():
        rows[rank][SECTIONS.index(section)] += (factor - 1) * sum(USUAL)
    return rows


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_that_is_a_quarter_slower_is_named_in_the_second_report(ranks: int, section: str) -> None:
    for seed in range(100):
        watch = SlowRank()
        lines = [watch.report(step, table(ranks, {1: section}, 0.05, 10 * seed + step)) for step in (1, 2, 3, 4)]
        assert lines[0] is None and lines[1] is not None and lines[2:] == [None, None], "said once"
        assert lines[1].startswith("process rank 1 takes 1.") and f"more per update in {section}" in lines[1] and "step 2" in lines[1]


def test_noise_of_5_percent_raises_no_alarm() -> None:
    for ranks in (2, 3, 8):
        watch = SlowRank()
        assert [watch.report(step, table(ranks, noise=0.05, seed=step)) for step in range(2000)] == [None] * 2000
    assert slowest(table(2, {0: HOST}, factor=1.11)) is None and slowest(table(2, {0: HOST}, factor=1.14)) is not None


def test_one_slow_report_is_not_named_and_a_recovered_rank_is() -> None:
    watch, plain, slow = SlowRank(), table(3), table(3, {2: COMPUTE})
    assert [watch.report(step, rows) for step, rows in enumerate([slow, plain, slow, plain])] == [None] * 4
    lines = [watch.report(step, rows) for step, rows in enumerate([slow, slow, plain, plain, slow, slow])]
    assert [line is not None for line in lines] == [False, True, False, True, False, True]
    assert "Its machine or GPU is slow" in lines[1] and lines[3] == "process rank 2 is as fast as the others again at step 3"


def test_a_wait_for_data_that_moves_is_that_of_the_data() -> None:
    watch = SlowRank()
    lines = [watch.report(step, table(4, {rank: DATA})) for step, rank in enumerate([1, 1, 1, 3, 3])]
    assert lines[1] is not None and "If later warnings name the same rank" in lines[1] and lines[2] is None
    assert lines[3] is not None and "The slowest rank changes (1, 3): the data or a shared disk is slow" in lines[3] and lines[4] is None
    fresh = SlowRank()
    assert [fresh.report(step, table(4, {rank: COMPUTE})) for step, rank in enumerate([1, 3, 1, 3])] == [None] * 4


def test_another_slow_rank_is_named_and_a_rank_that_waits_again_is_not() -> None:
    watch = SlowRank()
    lines = [watch.report(step, table(4, {rank: COMPUTE})) for step, rank in enumerate([1, 1, 2, 2, 2])]
    assert [None if line is None else line[:14] for line in lines] == [None, "process rank 1", None, "process rank 2", None]
    assert watch.report(5, table(4)) is None and "process rank 2 is as fast" in (watch.report(6, table(4)) or "")
    waits = SlowRank()
    lines = [waits.report(step, table(4, {rank: DATA})) for step, rank in enumerate([1, 1, 3, 1, 3, 2, 1])]
    assert [line is not None for line in lines] == [False, True, True, False, False, True, False]


def test_very_short_updates_are_not_compared() -> None:
    assert slowest([[0.0, 0.001, 0.0], [0.0, 0.0013, 0.0]]) is None and slowest([[1.0, 1.0, 1.0]]) is None
