"""Loops that `benchmarks.vision` times: that of linnaeus, a bare compiled loop, and a loop of timm's parts.

All train the same backbone with a classifier of the same number of species, in bf16 autocast, with AdamW. They read the same photographs,
which are on the device already. The loop of linnaeus normalises them, clips, counts accuracy and writes rows; the bare loop does forward,
backward and fused AdamW only. A driver is called with the number of a round, makes the updates of an epoch, and returns seconds of the wall
clock until the device has finished."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.drivers import Ours
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext

HELD = 4  # different batches on the device


class OursOnDevice(Ours):
    """Driver of the loop of linnaeus. Photographs are on the device already, labels and metadata in pinned memory of the host."""

    def __init__(self, config: Config, context: DistributedContext) -> None:
        super().__init__(config, context)
        self.training.train_loader = HeldBatches(self.training.train_loader, context.device)

    def __call__(self, epoch: int) -> float:
        return timed(self.context.device, lambda: super(OursOnDevice, self).__call__(epoch))


class HeldBatches:
    """Loader that reads the first `HELD` batches once and repeats them, for as many batches as `loader` has in an epoch."""

    def __init__(self, loader: Any, device: torch.device) -> None:
        self.loader = loader
        self.batches = [self._held(batch, device) for batch in itertools.islice(iter(loader), HELD)]

    @staticmethod
    def _held(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        rest = {name: value.pin_memory() if device.type == "cuda" else value for name, value in batch.items()}
        return rest | {"image": batch["image"].to(device)}

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return itertools.islice(itertools.cycle(self.batches), len(self.loader))


class BareLoop:
    """Driver of the bare loop: the whole model compiled, with its loss, and fused AdamW. `images` are normalised float32 on the device."""

    def __init__(self, backbone: nn.Module, ours: OursOnDevice) -> None:
        self.config, self.device = ours.config, ours.context.device
        self.updates = len(ours.training.train_loader)
        batches = [{name: value.to(self.device) for name, value in batch.items()} for batch in ours.training.train_loader.batches]
        self.batches = [(ours.workload.prepare(batch)["image"], batch["label"][:, -1]) for batch in batches]
        memory = torch.channels_last if self.config.trainer.channels_last else torch.contiguous_format
        self.model = backbone.to(self.device, memory_format=memory).train()
        self.prepare()

    def prepare(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.05, fused=self.device.type == "cuda")
        self.loss = torch.compile(self.mean_loss) if self.config.trainer.compile is not False else self.mean_loss

    def mean_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.model(images).float(), labels)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.trainer.precision == "bf16")

    def train(self) -> None:
        for images, labels in itertools.islice(itertools.cycle(self.batches), self.updates):
            with self.autocast():
                loss = self.loss(images, labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def __call__(self, number: int) -> float:
        return timed(self.device, self.train)


class TimmLoop(BareLoop):
    """Driver of a loop built from timm's parts as in its training script: its optimizer factory, its scheduler updated at every step,
    clipping, and an average of the loss that reads the loss at every step. The model is compiled, the loss is not."""

    def prepare(self) -> None:
        from timm.optim import create_optimizer_v2
        from timm.scheduler import CosineLRScheduler

        self.optimizer = create_optimizer_v2(self.model, opt="adamw", lr=1e-3, weight_decay=0.05)
        self.scheduler = CosineLRScheduler(self.optimizer, t_initial=10**6, t_in_epochs=False)
        self.compiled = torch.compile(self.model) if self.config.trainer.compile is not False else self.model
        self.number = 0

    def train(self) -> None:
        from timm.utils import AverageMeter, dispatch_clip_grad

        losses = AverageMeter()
        for images, labels in itertools.islice(itertools.cycle(self.batches), self.updates):
            with self.autocast():
                loss = F.cross_entropy(self.compiled(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            dispatch_clip_grad(self.model.parameters(), value=self.config.trainer.max_grad_norm)
            self.optimizer.step()
            self.number += 1
            losses.update(loss.item(), len(labels))
            self.scheduler.step_update(num_updates=self.number, metric=losses.avg)


def timed(device: torch.device, work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes on the wall clock until the device has finished."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start
