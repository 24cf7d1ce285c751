"""Train a classifier by a plain script without linnaeus: timm, torchvision transforms, AdamW, cosine schedule, label smoothing.

    python -m benchmarks.recipes.plain_script manifest.csv --ranks genus species --cpu-seconds 240 --out scores.npz

`--ranks` with only the finest column trains a flat classifier; with all columns, a classifier with one linear layer per rank, whose losses
are averaged. The run takes `--cpu-seconds` of CPU time from the start of the process, validation included; the schedule depends on the
share of this time that is used. The validation accuracy at the finest rank is computed 10 times. The weights with the best one give the
scores of the val and test samples.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

SPLITS = ("train", "val", "test")
EVALUATIONS, WARMUP = 10, 0.05
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Photographs(Dataset[tuple[Tensor, Tensor]]):
    """Dataset of photographs and their classes at each rank, int64 [R]; -1 for a missing label and for a class without training samples."""

    def __init__(self, rows: list[dict[str, str]], classes: list[list[str]], ranks: list[str], transform: v2.Transform) -> None:
        self.paths = [row["path"] for row in rows]
        lookup = [{name: i for i, name in enumerate(names)} for names in classes]
        self.labels = torch.tensor([[lookup[r].get(row[rank], -1) for r, rank in enumerate(ranks)] for row in rows])
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), self.labels[index]


class Classifier(nn.Module):
    """A timm backbone and one linear layer per rank."""

    def __init__(self, backbone: str, sizes: list[int], dropout: float, weights: str | None, bf16: bool) -> None:
        super().__init__()
        self.bf16 = bf16
        extra: dict[str, Any] = {"pretrained": True, "pretrained_cfg_overlay": {"file": weights}} if weights else {}
        self.trunk = timm.create_model(backbone, num_classes=0, drop_rate=dropout, **extra)
        width = cast(int, self.trunk.num_features)
        self.heads = nn.ModuleList(nn.Linear(width, size) for size in sizes)
        if bf16:
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            features = self.trunk(x.contiguous(memory_format=torch.channels_last) if self.bf16 else x)
            return [head(features).float() for head in self.heads]


def transforms(size: int, strong: bool) -> tuple[v2.Transform, v2.Transform]:
    """Return (the transform of training photographs, the transform of validation photographs). `strong`: stronger augmentation."""
    end = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    policy = [v2.TrivialAugmentWide()] if strong else [v2.ColorJitter(0.2, 0.2, 0.2)]
    erasing = [v2.RandomErasing(0.25)] if strong else []
    crop = v2.RandomResizedCrop(size, scale=(0.35, 1.0), antialias=True)
    train = v2.Compose([crop, v2.RandomHorizontalFlip(), *policy, *end, *erasing])
    return train, v2.Compose([v2.Resize(round(size / 0.9), antialias=True), v2.CenterCrop(size), *end])


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return optimizer parameter groups with weight decay for matrices only."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def learning_rate(share: float) -> float:
    """Return the factor on the peak learning rate when `share` (0 to 1) of the run is done: linear warm-up, then a half cosine to 0."""
    if share < WARMUP:
        return (share + 1e-3) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * min((share - WARMUP) / (1 - WARMUP), 1)))


def endless(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of the loader, one epoch after the other, without end."""
    while True:
        yield from loader


@torch.no_grad()
def predict(model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Return the logits of all samples of the loader at each rank, float32 [N, C_r]."""
    model.eval()
    parts = [model(image) for image, _ in loader]
    model.train()
    return [torch.cat(rank) for rank in zip(*parts, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--ranks", nargs="+", required=True)
    parser.add_argument("--cpu-seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--weights", help="file of timm weights to start from")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--smoothing", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--strong", action="store_true", help="TrivialAugment and erasing instead of colour jitter")
    parser.add_argument("--bf16", action="store_true", help="autocast to bf16 and channels_last")
    parser.add_argument("--seed", type=int, default=0)
    o = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(o.seed)

    with o.manifest.open(newline="") as file:
        rows = list(csv.DictReader(file))
    split = {name: [row for row in rows if row["split"] == name] for name in SPLITS}
    split |= {name: [row for row in split[name] if any(row[rank] for rank in o.ranks)] for name in ("train", "val")}
    classes = [sorted({row[rank] for row in split["train"]} - {""}) for rank in o.ranks]
    on_train, on_others = transforms(o.size, o.strong)
    train = DataLoader(Photographs(split["train"], classes, o.ranks, on_train), o.batch, shuffle=True, drop_last=True)
    others = {name: DataLoader(Photographs(split[name], classes, o.ranks, on_others), 128) for name in ("val", "test")}
    model = Classifier(o.backbone, [len(names) for names in classes], o.dropout, o.weights, o.bf16)
    optimizer = torch.optim.AdamW(decay_groups(model, o.weight_decay), lr=o.lr)

    best, kept, evaluated, truth = -1.0, model.state_dict(), 0, others["val"].dataset.labels[:, -1]  # type: ignore[attr-defined]
    for image, label in endless(train):
        share = time.process_time() / o.cpu_seconds
        if share >= (evaluated + 1) / EVALUATIONS:
            evaluated += 1
            accuracy = float((predict(model, others["val"])[-1].argmax(1) == truth).float().mean())
            if accuracy >= best:
                best, kept = accuracy, {name: value.clone() for name, value in model.state_dict().items()}
        if share >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = o.lr * learning_rate(share)
        losses = [
            F.cross_entropy(z, y, ignore_index=-1, label_smoothing=o.smoothing) for z, y in zip(model(image), label.unbind(1), strict=True)
        ]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()

    model.load_state_dict(kept)
    scores = {f"{name}/{rank}": z.numpy() for name in others for rank, z in zip(o.ranks, predict(model, others[name]), strict=True)}
    names = {f"classes/{rank}": np.array(own) for rank, own in zip(o.ranks, classes, strict=True)}
    paths = {f"{name}/paths": np.array([row["path"] for row in split[name]]) for name in others}
    contents: dict[str, Any] = scores | names | paths
    np.savez(o.out, **contents)


if __name__ == "__main__":
    main()
