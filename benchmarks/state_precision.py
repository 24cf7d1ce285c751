"""Measure AdamW with moments in bf16 (`optimizer.state_precision=bf16`): accuracy in real runs paired by seed, memory, and time.

    python -m benchmarks.state_precision             4 minutes of CPU on one thread
    python -m benchmarks.state_precision --quick     a short trial: one seed, two updates

A small transformer completes generated sets of gear (`workload=loadout`), 1,000 updates with beta2 = 0.999. The third row is the negative
control: moments rounded to the nearest bf16, as a cast would do. Time and memory are of an AdamW step alone, on a model of 10.5 million
parameters.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import main
from benchmarks.heads import Difference
from benchmarks.machine import describe_machine, write_numbers
from linnaeus.config import compose
from linnaeus.optim import build_optimizer, rounded_adamw

BF16 = ["optimizer.state_precision=bf16"]
VARIANTS = {"float32": [], "bf16, rounded at random": BF16, "bf16, rounded to the nearest": BF16}
CONTROL = "bf16, rounded to the nearest"
MEASURES = {"train loss": "train/smoothed_loss", "val loss": "val/loss", "val average precision": "val/average_precision"}
EXPERIMENT = ["workload=loadout", "model.width=32", "model.layers=2", "data.builds=20000", "trainer.global_batch_size=64"]
EXPERIMENT += ["trainer.length=1000steps", "trainer.threads=1", "trainer.device=cpu", "optimizer.beta2=0.999", "weighting.conflict=[]"]
EXPERIMENT += ["schedule.validate=[100%]", "trainer.limit_validation_samples=4000", "schedule.checkpoint=[]", "schedule.report=[]"]
EXPERIMENT += ["logger.report=false", "logger.console=quiet"]


def to_nearest(values: Tensor, noise: Tensor) -> None:
    values.copy_(values.bfloat16())


def train(variant: str, seed: int, more: Sequence[str]) -> dict[str, float]:
    """Train a run with `main.run`. Return its results by the names of `MEASURES`; NaN for each result that the run does not have."""
    config = compose([*EXPERIMENT, *VARIANTS[variant], f"seed={seed}", *more])
    nearest = mock.patch.object(rounded_adamw, "round_at_random", to_nearest) if variant == CONTROL else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(sys.stderr), nearest:
        main.run(dataclasses.replace(config, run=dataclasses.replace(config.run, root=root)))
        run = next(Path(root).rglob("summary.json")).parent
        final = json.loads((run / "summary.json").read_text())["final"]
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = next((row for row in reversed(rows) if "train/smoothed_loss" in row), {})
    return {name: (final | last).get(key, math.nan) for name, key in MEASURES.items()}


def step_cost(variant: str, rounds: int) -> dict[str, float]:
    """Return nanoseconds and bytes per parameter: CPU time of a step on one thread, and memory of the moments."""
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(40)])
    count = sum(p.numel() for p in model.parameters())
    optimizers = build_optimizer(compose(VARIANTS[variant]).optimizer, model)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        with torch.no_grad():
            optimizers.step()
        seconds.append(time.process_time() - start)
    moments = sum(t.nbytes for state in optimizers.state_dict()["state"].values() for name, t in state.items() if name != "step")
    return {"ns": 1e9 * statistics.median(seconds) / count, "bytes": moments / count}


def table(results: dict[str, list[dict[str, float]]]) -> list[str]:
    """Return the lines of the table: means over the seeds, and the paired differences from float32 with their 95 % intervals."""
    lines = [f"{'moments':30s}" + "".join(f"{name:>22s}{'difference':>34s}" for name in MEASURES)]
    for variant, rows in results.items():
        line = f"{variant:30s}"
        for name in MEASURES:
            own, plain = [row[name] for row in rows], [row[name] for row in results["float32"]]
            d = Difference.of(own, plain)
            shown = "" if variant == "float32" else f"{d.mean:+.5f} ({d.low:+.5f} to {d.high:+.5f})"
            line += f"{statistics.fmean(own):22.5f}{shown:>34s}"
        lines.append(line)
    return lines


def main_command() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json")
    arguments, more = parser.parse_known_args()
    if arguments.quick:
        arguments.seeds, more = [0], ["data.builds=200", "trainer.length=2steps", *more]
    torch.set_num_threads(1)
    costs: dict[str, Any] = {name: step_cost(name, 3 if arguments.quick else 15) for name in VARIANTS if name != CONTROL}
    for name, cost in costs.items():
        print(f"{name:30s}{cost['ns']:8.2f} ns and {cost['bytes']:.1f} bytes of moments per parameter")
    results = {name: [train(name, seed, more) for seed in arguments.seeds] for name in VARIANTS}
    print("\n".join(table(results)))
    if arguments.json:
        write_numbers(Path(arguments.json), {"machine": describe_machine(), "costs": costs, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main_command())
