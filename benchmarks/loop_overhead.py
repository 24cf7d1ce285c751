"""Measure the CPU time per update of the training loop of linnaeus and of others: one thread, same batches, same model.

    python -m benchmarks.loop_overhead                                    about 5 minutes
    python -m benchmarks.loop_overhead --model mlp --rounds 5 --updates 200  a short trial; no verdict

The loop of linnaeus is `linnaeus.train.train_one_epoch` as in a real run: clipping, schedule, metrics, progress, finite check, a row of
metrics every 50 updates, reports. Bars: at most 0.90 of the plain loop, which has none of these, and at most 1.12 of an optimized loop with
fused AdamW, clipping and the same metrics. Frameworks that are not installed are left out (`pip install -e .[bench]`).
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.drivers import FRAMEWORKS, PLAIN_TORCH, Ours, Peer, loss_after
from benchmarks.interleaved import Bar, arguments, conclude, measure, report
from linnaeus.config.load import compose
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext

CONF = Path(__file__).parent / "conf"
BARS = [Bar("linnaeus", "plain loop", 0.90), Bar("linnaeus", "fused, clipped, metrics", 1.12)]
# Batch, updates a round, and what to compose. The MLP takes about 1.5 ms an update in the plain loop, the ViT about 55 ms.
MODELS: dict[str, tuple[int, int, list[str]]] = {
    "mlp": (64, 400, []),
    "vit": (4, 12, ["model=vit", "data.shape=[3, 64, 64]", "data.held=64", "data.classes=100"]),
}


SLICES = 4  # of a round


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--model", choices=(*MODELS, "all"), default="all")
    parser.add_argument("--updates", type=int, help="updates of a driver in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = list(MODELS) if options.model == "all" else [options.model]
    tables = [compare(name, options.rounds, options.updates, PLAIN_TORCH) for name in names]
    frameworks = installed_frameworks()
    if frameworks:  # last: once they are imported, torch.optim itself takes about 0.2 ms longer here
        tables += [compare(name, options.rounds, options.updates, PLAIN_TORCH | frameworks) for name in names]
    return conclude(tables, options.json)


def installed_frameworks() -> dict[str, Callable[..., Peer]]:
    return {name: peer for name, (peer, package) in FRAMEWORKS.items() if importlib.util.find_spec(package) is not None}


def compare(model: str, rounds: int, updates: int | None, peers: Mapping[str, Callable[..., Peer]]) -> dict[str, Any]:
    """Time the loop of linnaeus and those of `peers` on one model. Return the table, with the bars if no framework is among the peers."""
    batch, usual, overrides = MODELS[model]
    updates = updates or usual
    slices = SLICES if updates % SLICES == 0 else 1
    context = DistributedContext().initialize(device="cpu")
    with tempfile.TemporaryDirectory() as root:
        ours = Ours(configure(overrides, batch, updates // slices, (rounds + 1) * slices, root), context)
        drivers: dict[str, Ours | Peer] = {"linnaeus": ours}
        for name, peer in peers.items():
            drivers[name] = peer(ours.config, context, ours.workload, ours.plan)
        seconds = measure(drivers, rounds, slices)
        notes = {name: f"loss after it {loss_after(driver, ours.workload):.2f}" for name, driver in drivers.items()}
        ours.close()
    per_update = {name: [s * slices / updates for s in times] for name, times in seconds.items()}
    title = f"{model}, batch {batch}, {rounds} rounds of {updates} updates, 1 thread, CPU time of an update"
    return report(title, per_update, "plain loop", BARS if peers == PLAIN_TORCH else [], (1000, "ms"), notes, slices)


def configure(overrides: list[str], batch: int, updates: int, epochs: int, root: str, processes: int = 1) -> Config:
    """Return the configuration of a run of `epochs` epochs with `updates` updates each. An epoch is what a driver runs in one slice of a
    round. batch: samples of an update on all `processes` together."""
    sizes = [
        f"trainer.global_batch_size={batch}",
        f"trainer.micro_batch_size={batch // processes}",
        f"data.samples={batch * updates}",
        f"trainer.length={epochs}epochs",
    ]
    return compose(["experiment=loop", *overrides, *sizes, f"run.root={root}"], CONF)


if __name__ == "__main__":
    sys.exit(main())
