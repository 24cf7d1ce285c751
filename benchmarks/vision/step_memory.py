"""`StepMemory`: a driver of `benchmarks.vision` that also records the memory of its steps and the seconds of its first round."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch


class StepMemory:
    """A driver that also records memory, and the seconds of the first round, which compiles. It prints these seconds at once, to stderr.

    memory: bytes of each later round, the largest CUDA memory minus the memory allocated before the round; empty on a CPU."""

    def __init__(self, variant: str, driver: Callable[[int], float], device: torch.device) -> None:
        self.variant, self.driver, self.device, self.first = variant, driver, device, 0.0
        self.memory: list[int] = []

    def __call__(self, number: int) -> float:
        if self.device.type != "cuda":
            return self._timed(number)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        seconds = self._timed(number)
        if number:
            self.memory.append(torch.cuda.max_memory_allocated(self.device) - before)
        return seconds

    def _timed(self, number: int) -> float:
        seconds = self.driver(number)
        if not self.first:
            self.first = seconds
            print(f"{self.variant}: first round {seconds:.1f} s", file=sys.stderr, flush=True)
        return seconds

    def note(self) -> str:
        memory = f", {max(self.memory) / 2**30:.1f} GiB" if self.memory else ""
        return f"{memory}, first round {self.first:.1f} s"
