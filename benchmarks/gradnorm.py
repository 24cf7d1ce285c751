"""Measure the cost of task weighting: CPU time of a training step of ViT-tiny at 64 px with 4 heads, batch 32, one thread.

    python -m benchmarks.gradnorm                      about 15 minutes
    python -m benchmarks.gradnorm --quick              a short trial, 1 minute; no verdict
    python -m benchmarks.gradnorm --variants "GradNorm, last shared layer" --updates 2 --rounds 100
                                                       only the variant of the bar, finely interleaved, 3 minutes

The variants of linnaeus run `linnaeus.train.train_one_epoch` as in a real run, and update the task weights at every step; the plain step
is the same with fixed weights and without measurements. Bar: GradNorm at the last shared layer takes at most 1.10 of the plain step. (By
default it updates only at every tenth step.) Further variants are the other two values of `weighting.place`, the other weightings, GradNorm
as it is often written (a forward for each task, and a backward through the whole trunk) and torchjd (`pip install -e '.[surgery]'`), which
computes the gradients of all tasks over the whole trunk.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.drivers import Ours, Peer
from benchmarks.interleaved import Bar, arguments, conclude, measure, report
from benchmarks.loop_overhead import configure
from benchmarks.ranks.workload import task_sums
from linnaeus.distributed import DistributedContext

BATCH = 32
PLAIN = "plain step"
GRADNORM = ["weighting=gradnorm", "weighting.every=[1steps]"]
OURS = {
    PLAIN: ["weighting=fixed"],
    "GradNorm, last shared layer": [*GRADNORM, "weighting.place=shared"],
    "GradNorm, features": [*GRADNORM, "weighting.place=features"],
    "GradNorm, trunk": [*GRADNORM, "weighting.place=trunk"],
    "conflict, every step": ["weighting=fixed", "weighting.conflict=[1steps]"],
    "uncertainty": ["weighting=uncertainty"],
    "DWA": ["weighting=dwa"],
    "FAMO": ["weighting=famo"],
}
SURGERY = {"surgery (torchjd's PCGrad), last shared": ["weighting=surgery"]}
BARS = [Bar("GradNorm, last shared layer", PLAIN, 1.10)]


class Clipped(Peer):
    """Base class of drivers with fused AdamW and clipping, which differ in how they compute the gradient (`backward`)."""

    def prepare(self) -> None:
        self.parameters = list(self.model.parameters())
        self.shared = self.model.trunk_parameters()
        self.optimizer = torch.optim.AdamW(self.parameters, lr=self.lr, fused=True)

    def train(self, batches: Iterator[dict[str, Tensor]]) -> None:
        for batch in batches:
            self.optimizer.zero_grad()
            self.backward(batch)
            nn.utils.clip_grad_norm_(self.parameters, self.config.trainer.max_grad_norm, foreach=True)
            self.optimizer.step()

    def backward(self, batch: dict[str, Tensor]) -> None:
        raise NotImplementedError

    def losses(self, outputs: dict[str, Any], batch: dict[str, Tensor]) -> list[Tensor]:
        return [total / BATCH for total in task_sums(outputs, batch)]


class ForwardAgain(Clipped):
    """Driver of GradNorm with an additional forward and backward for each task, and weights that make the gradient norms equal."""

    def prepare(self) -> None:
        super().prepare()
        self.weights = torch.ones(len(self.config.data.classes))

    def backward(self, batch: dict[str, Tensor]) -> None:
        norms = []
        for task in range(len(self.weights)):
            loss = self.losses(self.model(batch), batch)[task]
            norms.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.shared)]).norm())
        (torch.stack(self.losses(self.model(batch), batch)) * self.weights).sum().backward()
        big = self.weights * torch.stack(norms)
        moved = self.weights * torch.exp(-0.025 * (big.log() - big.mean().log()).clamp(-1, 1))
        self.weights = moved * len(moved) / moved.sum()


class TorchJD(Clipped):
    """Driver of torchjd's multi-task backward, one task at a time (its faster way on a CPU), combined by PCGrad."""

    def prepare(self) -> None:
        from torchjd.aggregation import PCGrad

        super().prepare()
        self.aggregator = PCGrad()

    def backward(self, batch: dict[str, Tensor]) -> None:
        from torchjd.autojac import jac_to_grad, mtl_backward

        outputs = self.model(batch)
        mtl_backward(self.losses(outputs, batch), features=outputs["per_rank"], parallel_chunk_size=1)
        jac_to_grad(self.shared, self.aggregator)


PEERS: dict[str, type[Peer]] = {"GradNorm, forward again per task": ForwardAgain, "torchjd mtl_backward, PCGrad": TorchJD}
WITH_TORCHJD = {*SURGERY, "torchjd mtl_backward, PCGrad"}


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--updates", type=int, default=8, help="updates of a driver in a round")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 updates")
    names = [name for name in [*OURS, *SURGERY, *PEERS] if installed() or name not in WITH_TORCHJD]
    parser.add_argument(
        "--variants", nargs="+", metavar="NAME", choices=names, default=names, help="rows of the table, beside the plain step"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds, updates = (2, 2) if options.quick else (options.rounds, options.updates)
    return conclude([compare(rounds, updates, options.variants)], options.json)


def installed() -> bool:
    return importlib.util.find_spec("torchjd") is not None


def compare(rounds: int, updates: int, variants: list[str]) -> dict[str, Any]:
    """Time `variants` and the plain step. Return the table."""
    context = DistributedContext().initialize(device="cpu")
    drivers: dict[str, Ours | Peer] = {}
    with tempfile.TemporaryDirectory() as root:
        for name, overrides in {**OURS, **SURGERY}.items():
            if name not in (PLAIN, *variants):
                continue
            config = configure(["experiment=ranks", *overrides, f"run.name=v{len(drivers)}"], BATCH, updates, rounds + 1, root)
            drivers[name] = Ours(config, context)
        ours = drivers[PLAIN]
        for name, peer in PEERS.items():
            if name not in variants:
                continue
            drivers[name] = peer(ours.config, context, ours.workload, ours.plan)
        seconds = measure(drivers, rounds)
        notes = {name: weights_of(driver) for name, driver in drivers.items()}
        for driver in drivers.values():
            driver.close()
    per_update = {name: [s / updates for s in times] for name, times in seconds.items()}
    title = f"ViT-tiny 64 px, 4 heads, batch {BATCH}, {rounds} rounds of {updates} updates, 1 thread, CPU time of an update"
    return report(title, per_update, PLAIN, [bar for bar in BARS if bar.variant in per_update], (1000, "ms"), notes)


def weights_of(driver: Any) -> str:
    """Return the task weights of a driver at the end, to show that they have changed."""
    weights = driver.training.weighting.weights if isinstance(driver, Ours) else getattr(driver, "weights", torch.ones(0))
    return " ".join(f"{weight:.2f}" for weight in weights.tolist())


if __name__ == "__main__":
    sys.exit(main())
