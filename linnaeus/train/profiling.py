"""Profile a range of updates with torch's profiler, for `debug.profile_steps`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from linnaeus.errors import ConfigError
from linnaeus.files import write_atomic

log = logging.getLogger("linnaeus")

ROWS = 15  # number of operations in the log; summary.txt has 60


def profile_notes(steps: Sequence[int], last_step: int) -> list[str]:
    """Return a line for the log if the run ends before the last update of `debug.profile_steps`, so that no profile is written."""
    late = len(steps) == 2 and steps[1] > last_step
    return [f"debug.profile_steps={list(steps)}: no profile is written, because the last update is {last_step:,}"] if late else []


class StepProfiler:
    """Profiler of the updates first to last (counted from 1). It writes profile/trace.json and profile/summary.txt in the run directory."""

    def __init__(self, steps: Sequence[int], directory: Path, device: torch.device) -> None:
        """Raise `ConfigError` unless `steps` is [first, last] with 1 <= first <= last."""
        if len(steps) != 2 or not 1 <= steps[0] <= steps[1]:
            raise ConfigError(f"debug.profile_steps is {list(steps)}; it must be [first, last], such as [11, 20]")
        self.first, self.last = steps
        self.directory, self.device = directory / "profile", device
        self._profiler: Any = None

    def before_step(self, step: int) -> None:
        """Start the profiler before update number `step` if that is in the range and it does not run yet."""
        if self._profiler is None and self.first <= step <= self.last:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if self.device.type == "cuda":
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._profiler = torch.profiler.profile(activities=activities)
            self._profiler.start()

    def after_step(self, step: int) -> None:
        """Stop the profiler after the last update of the range, and write the trace and the summary."""
        if self._profiler is None or step < self.last:
            return
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        self.directory.mkdir(exist_ok=True)
        profiler.export_chrome_trace(str(self.directory / "trace.json"))
        order = "self_cuda_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        averages = profiler.key_averages()
        write_atomic(self.directory / "summary.txt", averages.table(sort_by=order, row_limit=60) + "\n")
        log.info("profile of steps %d to %d: %s\n%s", self.first, self.last, self.directory, averages.table(sort_by=order, row_limit=ROWS))
