"""Part `deterministic` of `benchmarks.vision`: the cost of the same bits, for each value of `trainer.deterministic`, on one process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.interleaved import measure, report
from benchmarks.vision.loops import OursOnDevice
from benchmarks.vision.settings import NETWORKS, PLAIN, configure, settings
from benchmarks.vision.step_memory import StepMemory
from linnaeus.distributed import DistributedContext

CHOICES = ("false", "true", "anywhere")
MICRO_BATCHES = 4  # of an update


class WithChoice:
    """Driver that uses deterministic kernels in its own rounds only, as this setting of torch belongs to the process."""

    def __init__(self, choice: str, loop: OursOnDevice) -> None:
        self.choice, self.loop = choice, loop

    def __call__(self, number: int) -> float:
        torch.use_deterministic_algorithms(self.choice != "false")
        return self.loop(number)


def measure_deterministic(name: str, options: Any, context: DistributedContext) -> list[dict[str, Any]]:
    """Time updates of `MICRO_BATCHES` micro-batches with each of `CHOICES`. Return a list with the table."""
    batch = options.batch or NETWORKS[name].batch
    with tempfile.TemporaryDirectory() as root:
        loops = {}
        for choice in CHOICES:
            more = [*PLAIN, f"trainer.deterministic={choice}", f"run.name=with-{choice}"]
            more.append(f"trainer.micro_batch_size={batch // MICRO_BATCHES}")
            words = settings(name, batch, options.updates, options.rounds + 1, Path(root), options.device, options.compile[0], *more)
            loops[choice] = OursOnDevice(configure(words), context)
        drivers = {choice: StepMemory(choice, WithChoice(choice, loop), context.device) for choice, loop in loops.items()}
        seconds = measure(drivers, options.rounds)
        torch.use_deterministic_algorithms(False)
        for loop in loops.values():
            loop.close()
    per_update = {choice: [s / options.updates for s in times] for choice, times in seconds.items()}
    title = f"{name}, trainer.deterministic, batch {batch} in {MICRO_BATCHES} micro-batches, {options.updates} updates a round"
    notes = {choice: driver.note().removeprefix(", ") for choice, driver in drivers.items()}
    return [report(f"{title}, {options.rounds} rounds", per_update, "false", [], (1000, "ms"), notes)]
