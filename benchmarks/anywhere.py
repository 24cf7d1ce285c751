"""Measure what `trainer.deterministic` costs: the time of an update on two gloo processes with one thread each.

    python -m benchmarks.anywhere                              about 6 minutes
    python -m benchmarks.anywhere --rounds 1 --updates 1       a short trial; no verdict

The variants are the values of the key: `false` (DDP), `true` (DDP with gradients added in rank order) and `anywhere` (one tree, the same
bits on any number of processes). The model is ViT-tiny at 64 pixels, in micro-batches of 4, with one and with four micro-batches per
process in an update. Bar: `anywhere` takes at most 1.15 of the time with `false`. Both processes run the loop of linnaeus; the times are
wall times of rank 0, which waits for rank 1 in every update, so the machine must have two free cores."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.drivers import Ours
from benchmarks.interleaved import Bar, arguments, conclude, measure, report
from benchmarks.loop_overhead import CONF, MODELS
from linnaeus import train
from linnaeus.config.load import compose
from linnaeus.distributed import DistributedContext, die_with_launcher, launched

PROCESSES, MICRO_BATCH = 2, 4
VARIANTS = ("false", "true", "anywhere")
BAR = Bar("anywhere", "false", 1.15)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--updates", type=int, default=8, help="updates with one micro-batch per process in a round; a fourth of them with four"
    )
    options = parser.parse_args()
    if not launched():
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}", "-m", "benchmarks.anywhere"]
        return subprocess.call([sys.executable, *torchrun, *sys.argv[1:]])
    die_with_launcher()
    torch.set_num_threads(1)
    context = DistributedContext().initialize(device="cpu")
    with contextlib.nullcontext() if context.is_master else contextlib.redirect_stdout(io.StringIO()):
        tables = [compare(context, parts, options.rounds, max(1, options.updates // parts)) for parts in (1, 4)]
        status = conclude(tables, options.json if context.is_master else None)
    context.shutdown()
    return status


def compare(context: DistributedContext, parts: int, rounds: int, updates: int) -> dict[str, Any]:
    """Time the variants with `parts` micro-batches per process in an update, and return the table."""
    with tempfile.TemporaryDirectory() as folder:
        root = context.broadcast_object(folder)
        drivers = {variant: driver(context, variant, parts, rounds, updates, root) for variant in VARIANTS}
        timed: dict[str, Callable[[int], float]] = {name: seconds_of(context, one) for name, one in drivers.items()}
        seconds = measure(timed, rounds)
        notes = {name: f"loss after it {one.training.tracker.smoothed:.6f}" for name, one in drivers.items()}
        for one in drivers.values():
            one.close()
        context.barrier()
    per_update = {name: [s / updates for s in times] for name, times in seconds.items()}
    title = f"ViT-tiny, 64 px, 2 processes x {parts} micro-batches of {MICRO_BATCH}, {rounds} rounds of {updates} updates, wall time"
    return report(title, per_update, "false", [BAR], (1000, "ms"), notes)


def driver(context: DistributedContext, variant: str, parts: int, rounds: int, updates: int, root: str) -> Ours:
    """Return the loop of linnaeus with `trainer.deterministic=variant`. An epoch has `updates` updates; a round runs one epoch."""
    batch = PROCESSES * parts * MICRO_BATCH
    sizes = [f"trainer.global_batch_size={batch}", f"trainer.micro_batch_size={MICRO_BATCH}", f"data.samples={batch * updates}"]
    more = [f"trainer.length={rounds + 1}epochs", f"trainer.deterministic={variant}", f"run.root={root}", f"run.name=with-{variant}"]
    return Ours(compose(["experiment=loop", *MODELS["vit"][2], *sizes, *more, "schedule.report=[]"], CONF), context)


def seconds_of(context: DistributedContext, ours: Ours) -> Callable[[int], float]:
    """Return a function that runs an epoch of `ours` on all processes and returns its wall time."""

    def call(epoch: int) -> float:
        torch.use_deterministic_algorithms(ours.config.trainer.deterministic is not False)  # a switch of the whole process
        context.barrier()
        start = time.perf_counter()
        train.train_one_epoch(ours.training, epoch)
        return time.perf_counter() - start

    return call


if __name__ == "__main__":
    sys.exit(main())
