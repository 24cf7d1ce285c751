"""Part `checkpointing` of `benchmarks.vision`: a larger batch in the same memory, with `trainer.activation_checkpointing=blocks`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.interleaved import Bar, Seconds, measure, report
from benchmarks.vision.loops import OursOnDevice
from benchmarks.vision.settings import NETWORKS, PLAIN, configure, settings
from benchmarks.vision.step_memory import StepMemory
from linnaeus.distributed import DistributedContext

LARGER = 2.5  # times the batch
AT_MOST = 1.35  # of the time per image
STORED, RECOMPUTED = "none", "blocks"  # values of trainer.activation_checkpointing


def measure_checkpointing(name: str, options: Any, context: DistributedContext) -> list[dict[str, Any]]:
    """Time an image with all activations stored, and with those of blocks recomputed in a larger batch. Return the tables: seconds of an
    image and, on a GPU, memory of a step."""
    batch = options.batch or NETWORKS[name].batch
    batches = {STORED: batch, RECOMPUTED: int(LARGER * batch)}
    with tempfile.TemporaryDirectory() as root:
        loops = {choice: driver(name, choice, size, options, Path(root), context) for choice, size in batches.items()}
        drivers = {choice: StepMemory(choice, loop, context.device) for choice, loop in loops.items()}
        seconds = measure(drivers, options.rounds)
        for loop in loops.values():
            loop.close()
    images = {choice: size * options.updates for choice, size in batches.items()}
    per_image: Seconds = {choice: [s / images[choice] for s in times] for choice, times in seconds.items()}
    notes = {choice: f"batch {size}{drivers[choice].note()}" for choice, size in batches.items()}
    title = f"{name}, activation_checkpointing, compile={options.compile[0]}, {options.updates} updates a round, {options.rounds} rounds"
    tables = [report(f"{title}: an image", per_image, STORED, [Bar(RECOMPUTED, STORED, AT_MOST)], (1e6, "us"), notes)]
    if context.device.type == "cuda":
        memory: Seconds = {choice: [float(b) for b in one.memory] for choice, one in drivers.items()}
        tables.append(report(f"{title}: memory of a step", memory, STORED, [Bar(RECOMPUTED, STORED, 1.0)], (2**-30, "GiB"), {}))
    return tables


def driver(name: str, choice: str, batch: int, options: Any, root: Path, context: DistributedContext) -> OursOnDevice:
    """Return our loop with `trainer.activation_checkpointing=choice` and updates of `batch` images."""
    more = *PLAIN, f"trainer.activation_checkpointing={choice}", f"run.name={choice}"
    words = settings(name, batch, options.updates, options.rounds + 1, root, options.device, options.compile[0], *more)
    return OursOnDevice(configure(words), context)
