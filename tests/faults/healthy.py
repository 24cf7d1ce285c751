"""Train 21 healthy runs of every workload and count the warnings in their train.log: alarms, and warnings of slow processes and loaders,
of memory that grows, and of others. At most one in 10,000 updates is allowed.

python -m tests.faults.healthy                 about 18,000 updates, 5 minutes on one core
python -m tests.faults.healthy --only biota    the runs with this word in their names
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path

import torch

from tests import runs

ALLOWED = 10_000  # updates per alarm
COMMON = ["schedule.log=[50steps]", "schedule.report=[1%]", "schedule.validate=[25%]", "schedule.validate_mask_meta=[]"]
COMMON += ["schedule.validate_partial_mask_meta=[]", "trainer.micro_batch_size=null", "data.validation_batch=null"]
SMALL = ["data.train_samples=400", "data.validation_samples=60"]
VARIANTS = ("relu", "gated", "jumprelu", "topk", "batch_topk", "matryoshka")
PLANTED = [
    "workload=dictionary",
    "data.width=16",
    "data.features=40",
    "data.roots=2",
    "data.branching=2",
    "data.depth=2",
    "data.train_samples=8000",
    "data.validation_samples=256",
]
PLANTED += ["model.features=48", "trainer.global_batch_size=64"]
HEALTHY: dict[str, tuple[str, int, list[str]]] = {  # name -> workload of `tests.runs`, updates, settings
    "vectors": ("vectors", 1500, ["data.train_samples=2000", "data.validation_samples=100", "optimizer.lr=0.003"]),
    "vectors, small batches": ("vectors", 1500, ["trainer.global_batch_size=8", "optimizer.lr=0.003"]),
    "vectors, muon": ("vectors", 1500, ["data.train_samples=1000", "optimizer=muon", "optimizer.lr=0.02"]),
    "vectors, sgd": ("vectors", 1500, ["data.train_samples=1000", "optimizer=sgd", "optimizer.lr=0.03"]),
    "masked metadata": ("masked", 1500, ["data.train_samples=1000", "optimizer.lr=0.003"]),
    "masked metadata, gradnorm": ("masked", 1000, ["data.train_samples=1000", "optimizer.lr=0.003", "weighting=gradnorm"]),
    "growth": ("vectors", 1000, ["data.train_samples=1000", "growth=linear", "optimizer.lr=0.003"]),
    "language": ("language", 1000, ["optimizer.lr=0.002"]),
    "language, no dropout": ("language", 1000, ["optimizer.lr=0.001", "model.dropout=0", "lr_scheduler=wsd"]),
    "curriculum": ("nanecho", 1000, ["growth.every=[20steps]", "lr_scheduler.warmup=5%", "trainer.micro_batch_size=8"]),
    "loadout": ("loadout", 500, ["data.builds=300"]),
    "loadout, small batches": ("loadout", 500, ["data.builds=100", "trainer.global_batch_size=16"]),
    **{f"dictionary, {model}": (f"model={model}", 800, ["model.widths=[12,24]"] * (model == "matryoshka")) for model in VARIANTS},
    "biota": ("biota", 250, SMALL),
    "biota, conditional head, gradnorm": ("biota", 250, [*SMALL, "head=conditional", "loss=conditional", "weighting=gradnorm"]),
    "biota, marginal head": ("biota", 250, [*SMALL, "head=marginal", "loss=marginal"]),
}


def train(name: str, root: Path) -> tuple[int, list[str]]:
    """Train a run of `HEALTHY`. Return the number of its updates and the warnings in its train.log."""
    workload, length, settings = HEALTHY[name]
    settings = [*COMMON, f"trainer.length={length}steps", *settings]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if workload.startswith("model="):
            texts = [*runs.TINY, *PLANTED, workload, *settings, f"run.root={root}", "run.name=run"]
            config = runs.composed([*{text.partition("=")[0]: text for text in texts}.values()])
        else:
            config = runs.configuration(workload, root, *settings)
        run = runs.resumed(config)
    lines = (run / "train.log").read_text().splitlines()
    return runs.summary(run)["global_step"], [line.split(" WARNING ", 1)[1] for line in lines if " WARNING " in line]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a word in the names of the runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    updates = warnings = 0
    for name in (name for name in HEALTHY if options.only in name):
        with tempfile.TemporaryDirectory() as root:
            made, found = train(name, Path(root))
        updates, warnings = updates + made, warnings + len(found)
        print(f"{name}: {made:,} updates, {len(found)} warnings", *found, sep="\n    ", flush=True)
    print(f"{updates:,} updates, {warnings} warnings; allowed: {updates / ALLOWED:.2f}")
    return int(warnings > max(1.0, updates / ALLOWED))


if __name__ == "__main__":
    sys.exit(main())
