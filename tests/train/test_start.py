"""Test the start of a run: the warning of busy cores, and the limit on open files."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from linnaeus.data.loader import allow_open_files
from linnaeus.distributed.processes import CoreSeconds, core_seconds
from linnaeus.errors import ConfigError
from linnaeus.train import start
from tests import fork_server, runs

CPU = SimpleNamespace(device=torch.device("cpu"))


@pytest.mark.parametrize(
    "others, own, threads, processes, expected",
    [
        (20.0, 10.0, 4, 1, "try trainer.threads=2"),  # two of four cores are free
        (39.0, 1.0, 2, 1, "try trainer.threads=1"),
        (20.0, 10.0, 2, 1, None),  # the threads fit
        (2.0, 10.0, 4, 1, None),  # a fifth of a core
        (20.0, 10.0, 2, 2, "try trainer.threads=1"),  # another process of this run needs the other free core
    ],
)
def test_busy_cores_are_named_with_a_number_of_threads(monkeypatch, caplog, others, own, threads, processes, expected):
    readings = iter([CoreSeconds(100.0, 5.0, 0.0), CoreSeconds(100.0 + others + processes * own, 5.0 + own, 0.0)])
    times = iter([0.0, 10.0])
    monkeypatch.setattr(start, "core_seconds", lambda: next(readings))
    monkeypatch.setattr(start.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    with caplog.at_level("WARNING", logger="linnaeus"):
        start.CoreUse().warn_if_busy(CPU)
    assert (expected in caplog.text) if expected else not caplog.text


def test_core_seconds_contain_this_process():
    before = core_seconds()
    if before is None:
        pytest.skip("needs /proc/stat of Linux")
    while core_seconds().own - before.own < 0.2:
        sum(range(10_000))
    busy, own, disk = (after - old for after, old in zip(core_seconds(), before, strict=True))
    assert own >= 0.2 and busy >= 0.5 * own and disk >= 0


def test_workers_without_enough_open_files_are_refused_before_anything_is_written(monkeypatch, tmp_path):
    """Such a run would wait forever for the batch that a worker has lost."""
    config = runs.configuration("vectors", tmp_path, "trainer.num_workers=2", "trainer.prefetch=4")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (24, 24))
    with pytest.raises(ConfigError, match=r"trainer\.num_workers=2 needs up to 72 open files, more than the limit of 24: .*num_workers=0"):
        runs.start(config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limits, changed", [((24, 4096), [(72, 4096)]), ((24, -1), [(72, -1)]), ((72, 72), []), ((-1, -1), [])])
def test_the_limit_on_open_files_is_raised_as_far_as_the_workers_need(monkeypatch, limits, changed):
    made = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, new: made.append(new))
    allow_open_files(2)
    allow_open_files(0)
    assert made == changed


COUNT_FAULTS = """
import resource, sys, torch
from linnaeus.distributed.processes import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
for block in range(60):  # of 64 MiB; the first few do not fit where the one before lay
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt if block in (0, 30) else before
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_the_memory_of_a_batch_is_used_again():
    def faults(kind: str) -> int:  # in a process of its own: where blocks lie depends on all that was allocated before
        command = [sys.executable, "-c", COUNT_FAULTS, kind]
        return int(fork_server.Popen(command, stdout=subprocess.PIPE, text=True).communicate()[0])

    assert faults("kept") * 4 < faults("returned")
