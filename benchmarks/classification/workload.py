"""Implement the classification workload: fixed random tensors, an MLP or a timm vision transformer, summed cross-entropy, top-1
accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linnaeus.data.samples import Batch, PositionedDataset, SampleIndex
from linnaeus.metrics.streaming import Metrics, TrainingMetrics
from linnaeus.randomness import INIT, key
from linnaeus.workloads.base import Model, Workload


class StandingTensors(PositionedDataset):
    """Dataset of random samples and labels that stay in memory. Sample i of an epoch is row i mod `held`."""

    fingerprint = "standing-tensors"

    def __init__(self, data: Any, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.size, self.held = data.samples, data.held
        self.x = torch.randn(data.held, *data.shape, generator=generator)
        self.y = torch.randint(data.classes, (data.held,), generator=generator)

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        sample = torch.tensor([index.sample for index in indices])
        rows = sample % self.held
        return {"x": self.x.index_select(0, rows), "y": self.y.index_select(0, rows), "weight": torch.ones(len(rows)), "sample": sample}


class Network(Model):
    """Model whose output is the logits [B, classes]."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        data, model = config.data, config.model
        self.no_decay: set[str] = set()
        if model.name == "mlp":
            inputs, hidden = data.shape[0], model.hidden
            self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
            self.head = nn.Linear(hidden, data.classes)
        else:
            import timm

            self.body = timm.create_model(model.architecture, img_size=data.shape[-1], num_classes=0)
            self.head = nn.Linear(self.body.num_features, data.classes)

    def forward(self, batch: Batch) -> Tensor:
        return self.head(self.body(batch["x"]))

    def shared_parameters(self) -> list[nn.Parameter]:
        return list(self.body.parameters())[-1:]


class LossAndTop1(Metrics):
    """Loss and top-1 accuracy of a validation pass."""

    width = 2

    def __init__(self, device: torch.device) -> None:
        self.counts = {"right": torch.zeros(1, dtype=torch.int64, device=device)}

    def sums(self, outputs: Tensor, batch: Batch) -> Tensor:
        return torch.stack([summed_loss(outputs, batch).double(), batch["weight"].sum().double()])

    def count(self, outputs: Tensor, batch: Batch) -> None:
        self.counts["right"] += right_answers(outputs, batch)

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        loss, top1 = (torch.stack([sums[0], counts["right"][0].to(sums)]) / sums[1]).tolist()
        return {"loss": loss, "class/loss": loss, "class/top1": top1}


class TrainingTop1(TrainingMetrics):
    """Loss and top-1 accuracy of the training samples between two log rows."""

    def __init__(self, tasks: Sequence[str], device: torch.device) -> None:
        super().__init__(tasks)
        self.counts = {"right": torch.zeros(1, dtype=torch.int64, device=device)}

    def count(self, outputs: Tensor, batch: Batch) -> None:
        self.counts["right"] += right_answers(outputs, batch)

    def compute(self, loss_sums: Tensor, valid: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        loss, top1 = float(loss_sums[0] / valid[0]), float(counts["right"][0] / valid[0])
        return {"loss": loss, "class/loss": loss, "class/top1": top1}


def summed_loss(outputs: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(outputs, batch["y"], reduction="sum")


def right_answers(outputs: Tensor, batch: Batch) -> Tensor:
    return (outputs.detach().argmax(1) == batch["y"]).sum()


class ClassificationWorkload(Workload):
    tasks = ("class",)
    fingerprint = StandingTensors.fingerprint

    def __init__(self, config: Any) -> None:
        self.config, self.train_size = config, config.data.samples

    def build_datasets(self, schedule: Any, directory: Path) -> None:
        self.train_set = self.validation_set = StandingTensors(self.config.data, self.config.seed)

    def build_model(self) -> nn.Module:
        torch.manual_seed(key(self.config.seed, INIT) >> 1)
        return Network(self.config)

    def valid_counts(self, batch: Batch) -> Tensor:
        return batch["weight"].sum(0, keepdim=True, dtype=torch.float64)

    def loss_sums(self, outputs: Tensor, batch: Batch) -> Tensor:
        return summed_loss(outputs, batch).reshape(1)

    def metrics(self, device: torch.device) -> LossAndTop1:
        return LossAndTop1(device)

    def training_metrics(self, device: torch.device) -> TrainingMetrics:
        return TrainingTop1(self.tasks, device)


def build_workload(config: Any) -> ClassificationWorkload:
    return ClassificationWorkload(config)
