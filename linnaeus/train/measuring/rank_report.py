"""Compare the processes of a run at each report: times of their updates, memory, and state of their GPUs. The processes exchange these
values with one all-reduce of a table [W, len(`FACTS`)] for W processes.

`Sections` times only the first `SAMPLES` updates after each report, so later updates are not slowed. Waiting for data is measured over all
updates, because a slow file may be in any update."""

from __future__ import annotations

import logging
import math
from statistics import median
from typing import TYPE_CHECKING

import torch

from linnaeus.health import Alarm
from linnaeus.reporting.performance.gpu_state import GpuState, open_gpu, throttling_reasons
from linnaeus.reporting.performance.memory_use import MemoryGrowth, memory_of, private_of
from linnaeus.reporting.performance.slow_rank import SlowRank
from linnaeus.train.measuring.sections import Marks, part_seconds

if TYPE_CHECKING:
    from linnaeus.train.state import Training

log = logging.getLogger("linnaeus")

SAMPLES = 8  # timed updates after each report
# "weighting" and "step end" are left out: they contain collectives, in which each process waits for the others.
COMPUTE, HOST = ("forward", "loss", "backward"), ("inputs", "update", "rest")
TIMES = ("data", "compute", "host")  # seconds of an update; NaN before the first timed update
WAITING = "waiting"  # share of the training time since the last report that the process has waited for data, 0 to 1
MEMORY = ("memory/host_now_MiB", "memory/host_private_MiB", "memory/workers_MiB")
GPU_MEMORY = ("memory/device_now_MiB", "memory/device_reserved_MiB", "memory/device_MiB")
GPU = ("gpu/utilisation", "gpu/sm_clock_MHz", "gpu/sm_clock_max_MHz", "gpu/power_W", "gpu/temperature_C", "gpu/throttling")
SLOW_CLOCK = 0.9  # of the maximum; an H200 at full load, at its power limit, had 0.99
FACTS = (*TIMES, WAITING, *MEMORY, *GPU_MEMORY, *GPU)


class SampledTimes:
    """Collector of the times of the first `SAMPLES` updates after each report, only in runs of several processes. `Sections` calls its
    methods `wants`, `add` and `close`."""

    def __init__(self) -> None:
        self._marks: list[Marks] = []

    def wants(self, step: int) -> bool:
        """Return True if fewer than `SAMPLES` updates have been timed since the last report."""
        return len(self._marks) < SAMPLES

    def add(self, t: Training, step: int, marks: Marks) -> None:
        """Keep `marks`, the marks of one update."""
        self._marks.append(marks)

    def close(self) -> None:
        """Do nothing: no measurement outlasts its update."""

    def take(self) -> tuple[float, float]:
        """Return (median seconds of the parts `COMPUTE` together, median seconds of the parts `HOST` together) over the updates timed since
        the last call; (NaN, NaN) if there are none."""
        parts, self._marks = [part_seconds(marks) for marks in self._marks], []
        if not parts:
            return math.nan, math.nan
        compute, host = (median(sum(one[name] for name in names) for one in parts) for names in (COMPUTE, HOST))
        return compute, host


class RankReport:
    """Values of all processes at a report. Call `collect` on all ranks, then `rows`, `waiting` and `alarms` on rank 0.

    table: a dict for each rank: name in `FACTS` -> value; NaN if the process does not have the value."""

    def __init__(self, device: torch.device, world_size: int) -> None:
        self.sampled = SampledTimes() if world_size > 1 else None
        self.table = [dict.fromkeys(FACTS, math.nan) for _ in range(world_size)]  # NaN before the first `collect`
        self._before = (0, 0.0, 0.0)  # at the last report: step, seconds spent waiting for data, seconds of training
        self._of = [f" of process rank {rank}" if world_size > 1 else "" for rank in range(world_size)]
        self._slow = SlowRank()
        self._growth = [MemoryGrowth(f"private memory{of}, with its workers,") for of in self._of]
        self._growth_on_gpu = [MemoryGrowth(f"GPU memory{of}") for of in self._of]
        self._gpu: GpuState | None = None
        self._throttled = [0, False]  # reports in a row with a throttled GPU; True: an alarm was raised
        if device.type == "cuda":
            self._gpu = open_gpu(str(getattr(torch.cuda.get_device_properties(device), "uuid", "")))

    def collect(self, t: Training) -> None:
        """Gather the values of this report from all ranks. All ranks must call this."""
        own = dict.fromkeys(FACTS, math.nan) | self._own(t)
        if len(self.table) == 1:
            self.table = [own]
            return
        table = torch.zeros(len(self.table), len(FACTS), dtype=torch.float64)
        table[t.context.rank] = torch.tensor(list(own.values()), dtype=torch.float64)
        t.context.all_reduce(table)
        self.table = [dict(zip(FACTS, row, strict=True)) for row in table.tolist()]

    def _own(self, t: Training) -> dict[str, float]:
        step, waiting, training = t.progress.global_step, t.clock.waiting, t.clock.training()
        (first, waited, trained), self._before = self._before, (step, waiting, training)
        updates = step - max(first, t.first_step)
        facts = memory_facts(t) | (self._gpu.read() if self._gpu is not None else {})
        facts[WAITING] = (waiting - waited) / (training - trained) if training > trained else math.nan
        if self.sampled is not None:
            facts["compute"], facts["host"] = self.sampled.take()
            facts["data"] = (waiting - waited) / updates if updates else math.nan
        return facts

    def rows(self) -> dict[str, float]:
        """Return the values for timings.jsonl: metric key -> value, without NaN.

        The values are the memory and GPU state of rank 0. With several processes, add the largest memory of any process and the rank of
        that process. Also add, for each of `TIMES`, the smallest and the largest value among the processes, in ms per update."""
        found = {name: self.table[0][name] for name in (*MEMORY, *GPU_MEMORY, *GPU)}
        if len(self.table) > 1:
            for name in (MEMORY[0], GPU_MEMORY[2]):
                values = [row[name] for row in self.table]
                if not math.isnan(values[0]):
                    start = name.removesuffix("_MiB")
                    found |= {f"{start}_most_MiB": max(values), f"{start}_most_rank": values.index(max(values))}
            for name in TIMES:
                times = [1000 * row[name] for row in self.table]
                found |= {f"ranks/{name}_ms_least": min(times), f"ranks/{name}_ms_most": max(times)}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def waiting(self) -> tuple[float, int]:
        """Return (largest share of the training time since the last report that a process has waited for data, rank of this process)."""
        shares = [(row[WAITING], -rank) for rank, row in enumerate(self.table) if not math.isnan(row[WAITING])]
        share, rank = max(shares, default=(0.0, 0))
        return share, -rank

    def alarms(self, step: int, last_step: int) -> list[Alarm]:
        """Return the alarms at this report about slow processes, memory growth and throttled GPUs; [] if there are none. Log a line if a
        process that was slow is as fast as the others again.

        step: current step. last_step: last step of the run. Call this once per report, after `collect`."""
        found = list[Alarm | None]()
        if len(self.table) > 1 and not any(math.isnan(row[name]) for row in self.table for name in TIMES):
            found.append(self._slowness(step))
        for rank, (row, growth, on_gpu) in enumerate(zip(self.table, self._growth, self._growth_on_gpu, strict=True)):
            for detector, mebibytes in ((growth, row[MEMORY[1]] + row[MEMORY[2]]), (on_gpu, row[GPU_MEMORY[0]])):
                line = detector.report(step, mebibytes, last_step) if not math.isnan(mebibytes) else None
                found.append(Alarm("memory_growth", step, line, rank, value=mebibytes) if line is not None else None)
        return [alarm for alarm in (*found, self._throttling(step)) if alarm is not None]

    def _slowness(self, step: int) -> Alarm | None:
        """Return the alarm of `SlowRank` at this report; None if there is none."""
        line = self._slow.report(step, [[row[name] for name in TIMES] for row in self.table])
        slow = self._slow.said
        if line is not None and slow is None:
            log.warning(line)  # the process is as fast as the others again
        return Alarm("slow_rank", step, line, slow.rank, value=slow.ratio, usual=1.0) if line is not None and slow is not None else None

    def _throttling(self, step: int) -> Alarm | None:
        """Return an alarm if each of the last two reports has a GPU that is throttled to less than `SLOW_CLOCK`, not necessarily the same
        one; otherwise None. A launch has at most one such alarm."""
        held = [(rank, row["gpu/throttling"]) for rank, row in enumerate(self.table) if is_throttled(row)]
        self._throttled[0] = self._throttled[0] + 1 if held else 0
        if self._throttled[0] < 2 or self._throttled[1]:
            return None
        self._throttled[1] = True
        rank, bits = held[0]
        row = self.table[rank]
        clock, most = row["gpu/sm_clock_MHz"], row["gpu/sm_clock_max_MHz"]
        shown = f"{clock:.0f}" + ("" if math.isnan(most) else f" of {most:.0f}")
        facts = f"{shown} MHz, {row['gpu/power_W']:.0f} W, {row['gpu/temperature_C']:.0f} °C"
        line = f"the GPU{self._of[rank]} is throttled at step {step:,} ({', '.join(throttling_reasons(bits))}): {facts}"
        return Alarm("throttled", step, line, rank, value=clock, usual=None if math.isnan(most) else most)


def is_throttled(row: dict[str, float]) -> bool:
    """Return True if a GPU states a reason for throttling and its clock is below `SLOW_CLOCK` of the maximum, or the maximum is unknown.

    row: values of a rank in `RankReport.table`."""
    return row["gpu/throttling"] > 0 and not row["gpu/sm_clock_MHz"] >= SLOW_CLOCK * row["gpu/sm_clock_max_MHz"]


def memory_facts(t: Training) -> dict[str, float]:
    """Return the values of `MEMORY` and, on a GPU, of `GPU_MEMORY`, in MiB. Values that cannot be measured are left out.

    `MEMORY`: resident and private memory of this process, and total private memory of its loader workers. `GPU_MEMORY`: memory allocated
    by tensors, memory reserved by torch's allocator, and peak of the allocated memory."""
    found, own = dict[str, float](), memory_of()
    if own is not None:
        workers = private_of(t.workers.processes()) if t.workers is not None else 0.0
        found |= dict(zip(MEMORY, (own.resident, own.private, workers), strict=True))
    if t.device.type == "cuda":
        cuda = torch.cuda
        values = (cuda.memory_allocated(t.device), cuda.memory_reserved(t.device), cuda.max_memory_allocated(t.device))
        found |= {name: value / 2**20 for name, value in zip(GPU_MEMORY, values, strict=True)}
    return found
