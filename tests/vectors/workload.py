"""Regression on vectors: y1 = a nonlinear function of x, y2 = another one, missing for some samples.

With `data.components` each sample also has a number for each component, added to y1, and a flag that is 0 where the component is masked:
by `schedule.meta_mask_prob` in training, and by validation passes."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.data.samples import PositionedDataset
from linnaeus.metrics.streaming import Metrics, TrainingMetrics
from linnaeus.randomness import INIT, MASK, SYNTHETIC, key, uniforms
from linnaeus.workloads.base import Model, Workload

TASKS = ("first", "second")
PAUSE = "LINNAEUS_TEST_PAUSE"


class Vectors(PositionedDataset):
    """Rows of one split; `noise` of a sample is drawn by (seed, epoch, position) as an augmentation would be."""

    def __init__(self, config: Any, offset: int, size: int, training: bool, schedule: Any) -> None:
        data = config.data
        numbers = np.arange(offset * data.width, (offset + size) * data.width)
        self.x = (uniforms(key(1, SYNTHETIC), numbers).reshape(size, data.width) * 2 - 1).astype(np.float64)
        self.y = np.stack([np.sin(3 * self.x[:, 0]) + self.x[:, 1] ** 2, self.x.sum(1)], 1)
        self.known = np.ones((size, 2), bool)
        self.known[:, 1] = uniforms(key(2, SYNTHETIC), np.arange(offset, offset + size)) >= data.unlabelled
        self.seed, self.training, self.schedule = config.seed, training, schedule
        rows = np.arange(offset, offset + size)
        self.components = np.stack([uniforms(key(3, SYNTHETIC, i), rows) for i in range(len(data.components))] or [rows[:0]], -1)
        self.y[:, :1] += self.components.sum(1, keepdims=True) if data.components else 0
        self.dtype = torch.float64 if config.trainer.precision == "float64" else torch.float32
        self.fingerprint = "-".join(map(str, ("vectors", offset, size, data.width, data.unlabelled, *data.components)))

    def __len__(self) -> int:
        return len(self.x)

    def __getitems__(self, indices: list[Any]) -> dict[str, Tensor]:
        epochs, positions, samples, steps, real = (np.array(column) for column in zip(*indices))
        x = self.x[samples]
        if self.training:
            stream = key(self.seed, int(epochs[0]))
            x = x + 0.02 * (uniforms(stream, positions[:, None] * x.shape[1] + np.arange(x.shape[1])) - 0.5)
        batch = {
            "x": torch.as_tensor(x, dtype=self.dtype),
            "y": torch.as_tensor(self.y[samples], dtype=self.dtype),
            "known": torch.as_tensor(self.known[samples] & real[:, None]),
            "weight": torch.as_tensor(real, dtype=torch.float32),
            "sample": torch.as_tensor(samples),
        }
        if len(self.components):
            flags = np.ones((len(samples), self.components.shape[1]), bool)
            if self.training:
                masked = uniforms(key(self.seed, MASK, int(steps[0])), positions) < self.schedule.get_meta_mask_prob(int(steps[0]))
                flags &= ~masked[:, None]
            batch["components"] = torch.as_tensor(self.components[samples], dtype=self.dtype)
            batch["present"] = torch.as_tensor(flags)
        return batch


class Trunk(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        """A class without its own `forward` is not compiled by torch 2.11."""
        return super().forward(x)


class MLP(Model):
    def __init__(self, width: int, config: Any) -> None:
        super().__init__()
        norm = [nn.BatchNorm1d(config.hidden)] if config.batch_norm else []
        self.trunk = Trunk(
            nn.Linear(width, config.hidden),
            *norm,
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(),
        )
        self.shared = nn.LayerNorm(config.hidden)
        self.heads = nn.Linear(config.hidden, len(TASKS))

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        x = batch["x"]
        if "components" in batch:
            x = torch.cat([x, batch["components"] * batch["present"], batch["present"].to(x)], 1)
        features = self.shared(self.trunk(x))
        return {"y": self.heads(features), "per_rank": features}

    def shared_parameters(self) -> list[nn.Parameter]:
        return [self.shared.weight, self.shared.bias]

    def trunk_parameters(self) -> list[nn.Parameter]:
        return [*self.trunk.parameters(), *self.shared.parameters()]

    def maskable_parameters(self) -> list[str]:
        return [name for name, parameter in self.named_parameters() if name.startswith("trunk.") and parameter.ndim == 2]

    def compiled_parts(self) -> list[nn.Module]:
        return [self.trunk]


class R2(Metrics):
    """Metrics: squared errors are order-sensitive sums, the number of samples is an integer count."""

    width = 6

    def __init__(self, device: torch.device) -> None:
        self.counts = {"n": torch.zeros(2, dtype=torch.int64, device=device)}

    def sums(self, outputs: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
        known = batch["known"]
        error = ((outputs["y"] - batch["y"]) ** 2 * known).double().sum(0)
        y = batch["y"].double() * known
        return torch.cat([error, y.sum(0), (y**2).sum(0)])

    def count(self, outputs: dict[str, Tensor], batch: dict[str, Tensor]) -> None:
        self.counts["n"] += batch["known"].sum(0)

    def compute(self, sums: Tensor, counts: dict[str, Tensor]) -> dict[str, float]:
        n = counts["n"].double().cpu()
        error, total, squares = sums.view(3, 2)
        r2 = 1 - error / (squares - total**2 / n)
        return {"loss": (error / n).mean().item(), "r2": r2.mean().item()} | {
            f"{t}/mse": (error[i] / n[i]).item() for i, t in enumerate(TASKS)
        }


class TrainingError(TrainingMetrics):
    """The training losses, 0 without labels."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(TASKS)
        self.counts = {"n": torch.zeros(2, dtype=torch.int64, device=device)}

    def count(self, outputs: dict[str, Tensor], batch: dict[str, Tensor]) -> None:
        self.counts["n"] += batch["known"].sum(0)

    def compute(self, loss_sums: Tensor, valid: Tensor, counts: dict[str, Tensor]) -> dict[str, float]:
        losses = (loss_sums / valid.clamp(min=1)).tolist()
        return {"loss": sum(losses) / len(losses)} | {f"{t}/loss": losses[i] for i, t in enumerate(TASKS)}


class VectorsWorkload(Workload):
    tasks = TASKS
    notes = ("vectors: two regression tasks",)

    def __init__(self, config: Any) -> None:
        self.config = config
        self.train_size = config.data.train_samples
        self.fingerprint = "vectors"
        self.components = tuple(config.data.components)
        self.schedule_probabilities = ("meta_mask_prob",) if self.components else ()
        self.pause = float(os.environ.get(PAUSE, "0"))

    def build_datasets(self, schedule: Any, run_directory: Any = None) -> None:
        data = self.config.data
        self.train_set = Vectors(self.config, 0, data.train_samples, True, schedule)
        self.validation_set = Vectors(self.config, data.train_samples, data.validation_samples, False, schedule)

    def build_model(self) -> nn.Module:
        torch.default_generator.manual_seed(key(self.config.seed, INIT) >> 1)
        return MLP(self.config.data.width + 2 * len(self.components), self.config.model)

    def prepare(self, batch: dict[str, Tensor], masked: tuple[str, ...] = ()) -> dict[str, Tensor]:
        if not masked:
            return batch
        kept = torch.tensor([name not in masked for name in self.components], device=batch["x"].device)
        return {**batch, "present": batch["present"] & kept}

    def check_batch(self, batch: dict[str, Tensor]) -> None:
        """Wait `PAUSE` seconds, to make a run longer."""
        if self.pause:
            time.sleep(self.pause)

    def valid_counts(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["known"].sum(0).double()

    def loss_sums(self, outputs: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
        return ((outputs["y"] - batch["y"]) ** 2 * batch["known"]).sum(0)

    def metrics(self, device: torch.device) -> R2:
        return R2(device)

    def training_metrics(self, device: torch.device) -> TrainingError:
        return TrainingError(device)

    def summary(self, final: dict[str, float]) -> list[str]:
        return [f"r2 {final.get('val/r2', float('nan')):.3f}"]

    def save_dataset_record(self, directory: Any) -> None:
        (directory / "dataset.json").write_text('{"name": "vectors"}\n')
