"""Raise an alarm if training waits too long for data, with advice: a setting that shortens the wait, and the speed expected from it.

The wait is the time that the training process waits for the loader. On a GPU it counts only if the device has nothing left to compute at
the end of the wait. All figures are estimates from measurements of this launch, without its first update.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable

from linnaeus.distributed.processes import CoreSeconds, core_seconds
from linnaeus.errors import counted
from linnaeus.health import Alarm

log = logging.getLogger("linnaeus")

LIMIT = 0.05  # share of the training time above which training waits too long for its loader workers
# The same without loader workers: the training process loads the data itself, so that some of its time is loading in every run. On busy
# cores two healthy runs of tests/faults/healthy.py had shares of 0.39 and 0.49.
LIMIT_ALONE = 0.6
# Training of this launch before the first report that counts: the workers start, and the first epoch fills the cache of photographs. A run
# of a few seconds never raises the alarm.
MIN_SECONDS, MIN_UPDATES = 60.0, 10
LASTING = 2  # successive reports above `LIMIT` before the alarm, and not above it before another one: one slow file is not enough
WORTHWHILE = 1.05  # least speed-up for which more workers are proposed


def speed_without_waiting(share: float) -> float:
    """Return the factor by which training would be faster without waiting for data.

    `share`: part of the training time spent waiting, 0 to 1."""
    return 1 / max(1 - share, 0.001)


def more_workers(share: float, workers: int, idle: float) -> tuple[int, float]:
    """Return (proposed number of loader workers, factor by which training would then be faster). Each added worker needs an idle core.

    Return (`workers`, 1.0) if more workers do not help. `share`: part of the training time spent waiting. `workers`: present number of
    workers. `idle`: idle cores per process.

    With `workers=0` the training process itself loads the data, during `share` of its time. The estimate assumes that the present workers
    are always busy and that loading divides evenly among workers."""
    loading = workers or share
    number = min(math.ceil(loading * speed_without_waiting(share)), workers + int(idle))
    return (number, min(speed_without_waiting(share), number / loading)) if number > workers else (workers, 1.0)


def advice(share: float, workers: int, idle: float, disk: float, faster_data: Callable[[bool], str | None], place: str = "") -> str:
    """Return the line of advice for the log.

    `share`: part of the training time spent waiting. `workers`: loader workers per process. `idle`: idle cores per process. `disk`: cores
    per process that wait for the disk. `faster_data`: the method `Workload.faster_data`, which returns advice about the data, or None.
    `place`: step and process rank, such as ` at step 10`."""
    gain = f"{speed_without_waiting(share):.1f} x as fast"
    slow_disk = disk > (workers or share) / 2
    number, speed = more_workers(share, workers, 0.0 if slow_disk else idle)
    choices = []
    if speed >= WORTHWHILE:
        cores = counted(int(idle), "idle core")
        choices.append(f"trainer.num_workers={number} (now {workers}, {cores}) makes it about {speed:.1f} x as fast")
    if setting := faster_data(slow_disk):
        choices.append(setting)
    if not choices:
        choices.append("the disk is too slow" if slow_disk else "all cores are busy: give the run more cores")
    return f"training waits for data {100 * share:.0f} % of the time{place}; without waiting it would be {gain}: {', or '.join(choices)}"


class DataWait:
    """Detector of a wait for data, and the source of the alarm `data_wait`.

    The alarm is raised by the second (`LASTING`) of successive reports with a share above the limit: `LIMIT`, without loader workers
    `LIMIT_ALONE`. Reports before `MIN_SECONDS` of training and `MIN_UPDATES` updates do not count. Another alarm requires two successive
    reports that are not above the limit. Without loader workers, a share between the two limits is a line of advice in the log, once in a
    launch."""

    def __init__(self) -> None:
        self._start: tuple[float, int, float, CoreSeconds | None] | None = None
        self._above = self._below = 0  # successive reports until now
        self._said = self._advised = False

    def start(self, seconds: float, step: int) -> None:
        """Start the measurement. `seconds`: training time of this launch so far. `step`: the current step."""
        self._start = seconds, step, time.monotonic(), core_seconds()

    def report(
        self, share: float, rank: int | None, seconds: float, step: int, workers: int, faster_data: Callable[[bool], str | None]
    ) -> Alarm | None:
        """Return the alarm if the conditions in the class docstring are met, otherwise None. Before `start`, return None.

        `share`: largest part of the training time since the last report that a process has waited for data, 0 to 1. `rank`: rank of this
        process; None in a run of one process. `seconds`: training time of this launch so far. `step`: the current step. `workers`,
        `faster_data`: as in `advice`."""
        if self._start is None:
            return None
        first_seconds, first_step, began, before = self._start
        if seconds - first_seconds < MIN_SECONDS or step - first_step < MIN_UPDATES:
            return None
        limit = LIMIT if workers else LIMIT_ALONE
        self._above, self._below = (self._above + 1, 0) if share > limit else (0, self._below + 1)
        self._said &= self._below < LASTING
        raised, advised = not self._said and self._above >= LASTING, not self._advised and share > LIMIT
        if not raised and (not advised or share > limit):
            return None
        self._said, self._advised = self._said or raised, True
        idle, disk = idle_cores(before, core_seconds(), time.monotonic() - began)
        place = f" at step {step:,}" + ("" if rank is None else f" on process rank {rank}")
        line = advice(share, workers, idle, disk, faster_data, place)
        if raised:
            return Alarm("data_wait", step, line, rank or 0, value=share, usual=limit)
        log.info(line)
        return None


def idle_cores(before: CoreSeconds | None, after: CoreSeconds | None, seconds: float) -> tuple[float, float]:
    """Return (idle cores, cores that waited for the disk): averages over the measurement, divided by the processes of the run on this
    machine.

    `before`, `after`: results of `core_seconds` at the start and the end of the measurement. `seconds`: length of the measurement. Return
    (0, 0) if `before` or `after` is None."""
    if before is None or after is None:
        return 0.0, 0.0
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    disk = (after.disk - before.disk) / seconds
    idle = len(os.sched_getaffinity(0)) - (after.busy - before.busy) / seconds - disk
    return max(0.0, idle) / processes, disk / processes
