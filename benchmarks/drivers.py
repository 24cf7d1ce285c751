"""Training loops that the benchmarks time: that of linnaeus, as `main.py` runs it, and those of peers, on the same batches.

A driver is one of these loops as an object. Calling it with the number of a round runs one epoch of updates and returns the CPU seconds of
the process: one thread does all the work, and time in which another process uses the core does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.classification.workload import right_answers
from linnaeus import train, workloads
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext
from linnaeus.reporting import setup_logging
from linnaeus.train.building.build_data import build_sampler, build_train_loader
from linnaeus.train.building.planning import Plan
from linnaeus.workloads.base import Workload

LOG_EVERY = 50


class Ours:
    """Driver that calls `linnaeus.train.train_one_epoch` on a `Training` built as in `main.py`, with the real outputs in a run
    directory."""

    def __init__(self, config: Config, context: DistributedContext) -> None:
        setup_logging(is_master=True, style=config.logger.console)
        train.apply_process_settings(config)
        self.directory = train.find_run_directory(config, context)
        self.config, self.context = config, context
        self.workload = workloads.build_workload(config)
        self.plan = train.resolve_schedule(config, self.workload, context)
        self.training = train.build_training(config, context, self.workload, self.plan, self.directory.path)
        self.model = self.training.model
        self.directory.start(**train.run_record(context, self.workload))
        self.training.output = train.open_outputs(config, context, self.directory, self.workload, self.plan.length.total_steps)
        train.restore(self.training)

    def __call__(self, epoch: int) -> float:
        start = time.process_time()
        train.train_one_epoch(self.training, epoch)
        return time.process_time() - start

    def close(self) -> None:
        train.close(self.training)
        self.directory.release()


class Peer:
    """Base class of the drivers of other loops. They use the same batches and a model with the same initial weights."""

    def __init__(self, config: Config, context: DistributedContext, workload: Workload, plan: Plan) -> None:
        self.config, self.lr = config, plan.lr.base_lr
        self.sampler = build_sampler(config, context, workload, plan)
        self.loader = build_train_loader(config, workload, self.sampler, None)
        self.model = workload.build_model()
        self.prepare()

    def prepare(self) -> None:
        raise NotImplementedError

    def train(self, batches: Iterator[dict[str, Tensor]]) -> None:
        """Train on the batches of one epoch."""
        raise NotImplementedError

    def __call__(self, epoch: int) -> float:
        self.sampler.set_epoch(epoch)
        self.model.train()
        start = time.process_time()
        self.train(iter(self.loader))
        return time.process_time() - start

    def close(self) -> None:
        pass


class Plain(Peer):
    """Driver with the simplest loop: zero_grad, forward, backward, AdamW with its defaults; nothing else."""

    def prepare(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr)

    def train(self, batches: Iterator[dict[str, Tensor]]) -> None:
        for batch in batches:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(batch), batch["y"])
            loss.backward()
            self.optimizer.step()


class FusedAndClipped(Peer):
    """Driver with an optimized loop: fused AdamW, foreach clipping, loss and top-1 accuracy summed on the device and read every 50
    steps."""

    def prepare(self) -> None:
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=self.lr, fused=True)

    def train(self, batches: Iterator[dict[str, Tensor]]) -> None:
        losses, right, seen = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64), 0
        for number, batch in enumerate(batches, 1):
            self.optimizer.zero_grad()
            logits = self.model(batch)
            loss = F.cross_entropy(logits, batch["y"])
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, self.config.trainer.max_grad_norm, foreach=True)
            self.optimizer.step()
            losses += loss.detach() * len(logits)
            right += right_answers(logits, batch)
            seen += len(logits)
            if number % LOG_EVERY == 0:
                self.row = {"loss": losses.item() / seen, "top1": right.item() / seen}
                losses.zero_()
                right.zero_()
                seen = 0


class Timm(Peer):
    """Driver with a loop built from timm's parts as in its training script.

    These are its optimizer factory, a learning-rate scheduler updated at every step, clipping, and an average of the loss that reads it at
    every step."""

    def prepare(self) -> None:
        from timm.optim import create_optimizer_v2
        from timm.scheduler import CosineLRScheduler

        self.optimizer = create_optimizer_v2(self.model, opt="adamw", lr=self.lr, weight_decay=0.05)
        self.scheduler = CosineLRScheduler(self.optimizer, t_initial=10**6, t_in_epochs=False)
        self.updates = 0

    def train(self, batches: Iterator[dict[str, Tensor]]) -> None:
        from timm.utils import AverageMeter, dispatch_clip_grad

        losses = AverageMeter()
        for batch in batches:
            logits = self.model(batch)
            loss = F.cross_entropy(logits, batch["y"])
            self.optimizer.zero_grad()
            loss.backward()
            dispatch_clip_grad(self.model.parameters(), value=self.config.trainer.max_grad_norm)
            self.optimizer.step()
            self.updates += 1
            losses.update(loss.item(), len(logits))
            self.scheduler.step_update(num_updates=self.updates, metric=losses.avg)


class Accelerate(Peer):
    """Driver with a plain loop under Hugging Face Accelerate, with its clipping."""

    def prepare(self) -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator(cpu=True)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr)
        self.model, self.optimizer = self.accelerator.prepare(self.model, optimizer)

    def train(self, batches: Iterator[dict[str, Tensor]]) -> None:
        for batch in batches:
            with self.accelerator.accumulate(self.model):
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(batch), batch["y"])
                self.accelerator.backward(loss)
                self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.trainer.max_grad_norm)
                self.optimizer.step()


class Lightning(Peer):
    """Driver with Lightning's Trainer, everything optional switched off.

    It is timed from the first batch to the end of the epoch, without set-up."""

    def prepare(self) -> None:
        import logging
        import warnings

        import lightning.pytorch  # noqa: F401 (sets its own level when imported)

        warnings.filterwarnings("ignore", module="lightning")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        self.module = lightning_module(self.model, self.lr)

    def __call__(self, epoch: int) -> float:
        from lightning.pytorch import Trainer

        self.sampler.set_epoch(epoch)
        trainer = Trainer(
            accelerator="cpu", max_epochs=1, gradient_clip_val=self.config.trainer.max_grad_norm, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(self.module, self.loader)
        return self.module.finished - self.module.started


def lightning_module(model: nn.Module, lr: float) -> Any:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)

        def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
            return F.cross_entropy(self.model(batch), batch["y"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

        def on_train_epoch_start(self) -> None:
            self.started = time.process_time()

        def on_train_epoch_end(self) -> None:
            self.finished = time.process_time()

    return Module()


@torch.no_grad()
def loss_after(driver: Ours | Peer, workload: Workload) -> float:
    """Return the mean loss of a driver's model on the first 64 training samples, to show that all drivers train the same model."""
    driver.model.eval()
    held = workload.train_set
    return F.cross_entropy(driver.model({"x": held.x[:64]}), held.y[:64]).item()


PLAIN_TORCH: dict[str, Callable[..., Peer]] = {"plain loop": Plain, "fused, clipped, metrics": FusedAndClipped}
FRAMEWORKS: dict[str, tuple[Callable[..., Peer], str]] = {  # name: (driver, the package it needs)
    "timm's loop": (Timm, "timm"),
    "Accelerate": (Accelerate, "accelerate"),
    "Lightning": (Lightning, "lightning"),
}
