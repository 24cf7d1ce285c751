"""Implement the workload `ranks`: several classifications of one sample, by linear heads on the pooled feature of a vision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.classification.workload import ClassificationWorkload, StandingTensors
from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import Metrics, TrainingMetrics
from linnaeus.randomness import INIT, key
from linnaeus.workloads.base import Model

Outputs = dict[str, Any]


class RankedTensors(StandingTensors):
    """Dataset of random samples with a random label for each of T tasks, int64 [N, T]."""

    def __init__(self, data: Any, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.size, self.held = data.samples, data.held
        self.x = torch.randn(data.held, *data.shape, generator=generator)
        self.y = torch.stack([torch.randint(classes, (data.held,), generator=generator) for classes in data.classes], 1)


class Heads(Model):
    """Model that returns `logits`, one tensor [B, C] per task, and `per_rank`, the features [B, D] that the heads read."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        import timm

        self.no_decay: set[str] = set()
        self.trunk: Any = timm.create_model(config.model.architecture, img_size=config.data.shape[-1], num_classes=0)
        self.heads = nn.ModuleList(nn.Linear(self.trunk.num_features, classes) for classes in config.data.classes)

    def forward(self, batch: Batch) -> Outputs:
        features = self.trunk(batch["x"])
        return {"logits": [head(features) for head in self.heads], "per_rank": features}

    def shared_parameters(self) -> list[nn.Parameter]:
        return list(self.trunk.norm.parameters())

    def trunk_parameters(self) -> list[nn.Parameter]:
        return list(self.trunk.parameters())


class TaskLosses(Metrics):
    """Mean validation loss of each task, computed from loss sums and valid labels [2T]."""

    def __init__(self, tasks: tuple[str, ...]) -> None:
        self.tasks, self.width = tasks, 2 * len(tasks)
        self.counts: dict[str, Tensor] = {}

    def sums(self, outputs: Outputs, batch: Batch) -> Tensor:
        valid = batch["weight"].sum(dtype=torch.float64).expand(len(self.tasks))
        return torch.cat([torch.stack(task_sums(outputs, batch)).double(), valid])

    def count(self, outputs: Outputs, batch: Batch) -> None:
        """Do nothing, because only losses are measured."""

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        losses, valid = sums.view(2, -1)
        means = (losses / valid).tolist()
        return {"loss": sum(means) / len(means)} | {f"{task}/loss": mean for task, mean in zip(self.tasks, means, strict=True)}


class RanksWorkload(ClassificationWorkload):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.tasks = tuple(f"of{classes}" for classes in config.data.classes)

    def build_datasets(self, schedule: Any, directory: Any) -> None:
        self.train_set = self.validation_set = RankedTensors(self.config.data, self.config.seed)

    def build_model(self) -> nn.Module:
        torch.manual_seed(key(self.config.seed, INIT) >> 1)
        return Heads(self.config)

    def valid_counts(self, batch: Batch) -> Tensor:
        return batch["weight"].sum(dtype=torch.float64).expand(len(self.tasks))

    def loss_sums(self, outputs: Outputs, batch: Batch) -> Tensor:
        return torch.stack(task_sums(outputs, batch))

    def metrics(self, device: torch.device) -> Any:
        return TaskLosses(self.tasks)

    def training_metrics(self, device: torch.device) -> TrainingMetrics:
        return TrainingMetrics(self.tasks)


def task_sums(outputs: Outputs, batch: Batch) -> list[Tensor]:
    """Return the sum of the losses of each task, a list of T scalars."""
    return [F.cross_entropy(logits, y, reduction="sum") for logits, y in zip(outputs["logits"], batch["y"].unbind(1), strict=True)]


def build_workload(config: Any) -> RanksWorkload:
    return RanksWorkload(config)
