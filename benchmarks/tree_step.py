"""One training step of head, loss and training metrics on a tree, and one of a plain softmax over its leaves, with their time and memory.

A step is the part of a real update after the trunk: features [64, 7, 384] that require a gradient, the head, the loss sums, the
denominators of the host batch, backward, the training metrics; then all gradients are deleted. There is no trunk and no optimizer. The
plain softmax is `Linear` and `F.cross_entropy` on the finest labels, forward and backward, and nothing else.

Memory is counted in torch's allocator: the peak during one step minus the memory allocated before it (weights, tables, features). It
includes the gradients of the weights and does not depend on memory that the process has kept from earlier steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.big_trees import big_tree, draw_labels, training_batch
from benchmarks.interleaved import measure
from linnaeus.config.load import compose
from linnaeus.data.samples import Batch
from linnaeus.workloads.taxonomy.heads import Head, build_head
from linnaeus.workloads.taxonomy.losses import LabelCounts, TaxonomyLoss, weighted_hierarchical_loss
from linnaeus.workloads.taxonomy.metrics import TaxonomyMetrics, TaxonomyTrainingMetrics
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

BATCH, WIDTH = 64, 384
PLAIN, MIXED, VALIDATION = "plain", "mixed", "validation"
HEADS = {
    "linear": ["head=linear"],
    "conditional": ["head=conditional"],
    "hierarchical_softmax": ["head=hierarchical_softmax"],
    "hierarchical_softmax hard": ["head=hierarchical_softmax", "head.routing=hard"],
    "hierarchical_softmax gumbel": ["head=hierarchical_softmax", "head.routing=gumbel"],
    "marginal": ["head=marginal"],
}
LOSSES = (
    *("cross_entropy", "label_smoothing", "taxonomic_smoothing", "soft_labels", "conditional", "marginal"),
    *("class_balanced", "inverse_frequency", "logit_adjusted"),
)


@dataclass
class Step:
    """A training step of a head with a loss. Calling it makes one step and returns its CPU seconds.

    For each call `metrics` gets the CPU seconds of the training metrics, and `wall` the wall seconds of the step."""

    head: Head
    loss: TaxonomyLoss
    training_metrics: TaxonomyTrainingMetrics
    features: Tensor  # [B, R, D]
    batch: Batch
    sums: Tensor  # float64 [R]
    metrics: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        wall, start = time.perf_counter(), time.process_time()
        outputs, sums = self.forward_and_backward()
        before = time.process_time()
        self.sums += sums.detach()
        self.training_metrics.count(outputs, self.batch)
        end = time.process_time()
        self.metrics.append(end - before)
        self.wall.append(time.perf_counter() - wall)
        drop_gradients(self.head, self.features)
        return end - start

    def forward_and_backward(self) -> tuple[dict[str, Any], Tensor]:
        denominators = self.loss.denominators(self.loss.valid_counts(self.batch))
        outputs: dict[str, Any] = {"scores": self.head(self.features), "features": self.features[:, -1], "per_rank": self.features}
        sums = self.loss.sums(outputs, self.batch)
        weighted_hierarchical_loss(sums, torch.ones(len(denominators)), denominators).backward()
        return outputs, sums


@dataclass
class PlainStep:
    """A training step of the plain softmax over the leaves; see `Step`."""

    leaves: nn.Linear
    features: Tensor
    batch: Batch
    wall: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        wall, start = time.perf_counter(), time.process_time()
        F.cross_entropy(self.leaves(self.features[:, -1]), self.batch["label"][:, -1], ignore_index=-1).backward()
        end = time.process_time()
        self.wall.append(time.perf_counter() - wall)
        drop_gradients(self.leaves, self.features)
        return end - start


@dataclass
class ValidationStep:
    """Metrics of a validation batch. Calling it returns the CPU seconds of the metrics alone, without those of the head."""

    head: Head
    validation_metrics: TaxonomyMetrics
    features: Tensor
    batch: Batch
    wall: list[float] = field(default_factory=list)

    @torch.no_grad()
    def __call__(self) -> float:
        self.head.eval()
        outputs: dict[str, Any] = {"scores": self.head(self.features), "features": self.features[:, -1], "per_rank": self.features}
        self.head.train()
        wall, start = time.perf_counter(), time.process_time()
        self.validation_metrics.sums(outputs, self.batch)
        self.validation_metrics.count(outputs, self.batch)
        end = time.process_time()
        self.wall.append(time.perf_counter() - wall)
        return end - start


def drop_gradients(module: nn.Module, features: Tensor) -> None:
    features.grad = None
    for parameter in module.parameters():
        parameter.grad = None


class Bench:
    """Data common to all steps on one tree. The random `labels`, int64 [N, R], serve as the labels of the training set."""

    def __init__(self, leaves: int, holes: float) -> None:
        self.tree: TaxonomyTree = big_tree(leaves, holes)
        labels = draw_labels(self.tree, 4 * leaves, seed=1)
        self.counts = LabelCounts.from_labels(self.tree, labels)
        self.losses: dict[str, TaxonomyLoss] = {}
        self.batches = {mixed: training_batch(self.tree, BATCH, mixed) for mixed in (False, True)}
        self.features = torch.from_numpy(_normals(BATCH * len(self.tree.ranks) * WIDTH)).view(BATCH, -1, WIDTH).requires_grad_()

    def plain(self) -> PlainStep:
        return PlainStep(nn.Linear(WIDTH, self.tree.sizes[-1]), self.features, self.batches[False])

    def head(self, name: str) -> Head:
        head = build_head(compose(HEADS[name]).head, WIDTH, self.tree)
        head.init_weights()
        return head

    def loss(self, name: str) -> TaxonomyLoss:
        """Return the loss configured in the file `name` of conf/loss. It is built once."""
        if name not in self.losses:
            self.losses[name] = TaxonomyLoss(compose([f"loss={name}"]).loss, self.tree, self.counts)
        return self.losses[name]

    def step(self, head: Head, loss: str, mixed: bool = False) -> Step:
        sums = torch.zeros(len(self.tree.ranks), dtype=torch.float64)
        return Step(
            head, self.loss(loss), TaxonomyTrainingMetrics(self.tree, torch.device("cpu")), self.features, self.batches[mixed], sums
        )

    def validation(self, head: Head) -> ValidationStep:
        metrics = TaxonomyMetrics(self.tree, torch.device("cpu"), [rank[:-1] for rank in self.counts.ranks], None, BATCH)
        return ValidationStep(head, metrics, self.features, self.batches[False])


def _normals(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count, dtype=np.float32)


def measure_head(leaves: int, holes: float, head_name: str, losses: tuple[str, ...], rounds: int, repeats: int) -> dict[str, Any]:
    """Measure one head with each loss, in a process of its own. Return times and memory of each variant, and the number of parameters.

    The variants are `plain`, each loss, `mixed` (cross-entropy) and `validation`. Times per round: CPU seconds, those of the metrics, and
    wall seconds. Memory: peak bytes of a step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    bench = Bench(leaves, holes)
    head = bench.head(head_name)
    steps: dict[str, Any] = {PLAIN: bench.plain()}
    steps |= {loss: bench.step(head, loss) for loss in losses}
    steps |= {MIXED: bench.step(head, "cross_entropy", mixed=True), VALIDATION: bench.validation(head)}
    seconds = measure({name: _repeated(step, repeats) for name, step in steps.items()}, rounds)
    found = {
        name: {
            "seconds": seconds[name],
            "metrics": _per_round(getattr(step, "metrics", []), rounds, repeats),
            "wall": _per_round(step.wall, rounds, repeats),
            "bytes": peak_bytes(step),
        }
        for name, step in steps.items()
    }
    return {"variants": found, "parameters": sum(p.numel() for p in head.parameters()), "sizes": bench.tree.sizes}


def _repeated(step: Callable[[], float], repeats: int) -> Callable[[int], float]:
    return lambda _: sum(step() for _ in range(repeats)) / repeats


def _per_round(seconds: list[float], rounds: int, repeats: int) -> list[float]:
    """Return the mean of `seconds` in each of the last `rounds` rounds. A round has `repeats` entries. A warm-up round comes first."""
    return np.reshape(seconds, (-1, repeats)).mean(1)[-rounds:].tolist()


def peak_bytes(step: Callable[[], object]) -> int:
    """Return the peak of the memory that torch allocates during a step, in bytes, minus the memory allocated before it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    live = most = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most
