"""Memory of processes, and series of readings that look like a leak or do not."""

import math
import mmap
import os
import random
from collections.abc import Callable

import pytest

from linnaeus.reporting.performance.memory_use import MemoryGrowth, memory_of, private_of, shared_memory_of, together

LAST = 1000


def first_line(memory: Callable[[int], float], noise: float = 5.0, seed: int = 0) -> tuple[int, str] | None:
    """Return the step and the line of the first alarm in a run with a report every 10 steps. `memory`: MiB at a step."""
    watch, rng = MemoryGrowth("private memory"), random.Random(seed)
    lines = [(step, watch.report(step, memory(step) + rng.uniform(0, noise), LAST)) for step in range(10, LAST + 1, 10)]
    said = [(step, line) for step, line in lines if line is not None]
    assert len(said) <= 1, "said once"
    return said[0] if said else None


def test_a_leak_is_named_with_numbers() -> None:
    found = first_line(lambda step: 800 + 1.0 * step)
    assert found is not None and found[0] <= 200
    assert found[1].startswith("private memory grows steadily, as in a leak: from 84") and "more until the end of the run" in found[1]
    slow = first_line(lambda step: 800 + 0.15 * step)
    assert slow is not None and 400 < slow[0] < 700, "64 MiB first"


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_a_fast_leak_is_named_in_the_eleventh_report_at_the_latest(share: float, seed: int) -> None:
    found = first_line(lambda step: 800 * (1 + share * step / 10), seed=seed)
    assert found is not None and found[0] <= 110


@pytest.mark.parametrize("begin", [100, 105, 300, 777])
@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_leak_that_begins_in_a_run_is_named_in_its_second_or_third_report(begin: int, share: float, seed: int) -> None:
    found = first_line(lambda step: 800 * (1 + share * max(0, step - begin) / 10), seed=seed)
    second = 10 * (begin // 10 + 2)
    assert found is not None and found[0] <= second + 10 * (begin % 10 > 0)


@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_leak_from_the_first_update_that_adds_a_quarter_per_report_is_named_in_the_fourth_report(share: float, seed: int) -> None:
    found = first_line(lambda step: 800 * (1 + share * (step - 10) / 10), seed=seed)
    assert found is not None and found[0] <= 40, "the first report is before the first update"


def test_a_sawtooth_that_rises_is_a_leak() -> None:
    assert first_line(lambda step: 800 + step + 40 * (step // 10 % 3)) is not None


@pytest.mark.parametrize(
    "memory",
    [
        lambda step: 800.0,
        lambda step: 800 + 600 * (1 - math.exp(-step / 30)),  # a heap that settles
        lambda step: 800 + 600 * (1 - math.exp(-step / 120)),
        lambda step: 800 + min(step, 60) * 10,  # a cache that fills in the first reports
        lambda step: 800 + 1200 * (1 - math.exp(-step / 120)),  # fast at first
        lambda step: 800 + 2000 * (1 - math.exp(-step / 60)),
        lambda step: 800 + min(step, 90) * 10,
        lambda step: 800 + 150 * min(step // 60, 2),  # a buffer at each of two validations
        lambda step: 800 + 300 * (step > 500),  # validation allocates once
        lambda step: 800 + 1200 * (step > 500) + 600 * (step > 510),  # a second pass less
        lambda step: 800 + 600 * (step > 500) * (1 - math.exp(-(step - 500) / 8)),  # a heap that settles again
        lambda step: 800 + 1200 * (step > 10),  # in the second update
        lambda step: 800 + 200 * (step // 10 % 5 == 0),
        lambda step: 1500 - step,
        lambda step: 800 + 0.04 * step,  # 40 MiB in the whole run
    ],
)
def test_healthy_memory_raises_no_alarm(memory: Callable[[int], float]) -> None:
    assert first_line(memory) is None


def test_the_memory_of_this_process_is_read() -> None:
    own = memory_of()
    assert own is not None and 0 < own.shared < own.resident and own.private > 5
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as ballast:  # not from the heap, which may have room
        for _ in range(64):  # in small parts: the heap may keep the memory of one large part
            ballast.write(b"x" * 2**20)
        grown = memory_of(os.getpid())
        assert grown is not None and 55 < grown.private - own.private < 90
        assert private_of([os.getpid(), 2**22 + 1]) == pytest.approx(grown.private, abs=5), "a process that has ended is left out"


def test_shared_memory_is_told_apart_from_files_and_private_memory() -> None:
    before, (resident, shared) = shared_memory_of(), together([os.getpid()])
    assert before is not None and shared == before and resident > 50, "the interpreter and its files are not in shared memory"
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) as ballast:
        for _ in range(64):
            ballast.write(b"x" * 2**20)
        assert shared_memory_of(os.getpid()) == pytest.approx(before + 64, abs=5)
        assert together([os.getpid(), os.getpid(), 2**22 + 1])[1] == pytest.approx(2 * (before + 64), abs=10), "one has ended"
