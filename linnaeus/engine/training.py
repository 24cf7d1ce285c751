"""`Training`: everything a run consists of while it trains, in one visible place. Built by `engine/build.py`, read by the engine.

The loop knows no workload (law 8): what it does with data, model and losses goes through `workloads.base.Workload`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from linnaeus.config.schema import Config
from linnaeus.data.sampler import PositionSampler
from linnaeus.distributed import DistributedContext
from linnaeus.engine.ema import EMA
from linnaeus.engine.parallel import changing_buffers
from linnaeus.engine.precision import Precision
from linnaeus.engine.stopping import StopRequest
from linnaeus.engine.update import Update
from linnaeus.engine.vitals import Vitals
from linnaeus.growth import Growth
from linnaeus.metrics import MetricsTracker, StepMetricsLogger
from linnaeus.optim import LRSchedule, Optimizers
from linnaeus.progress import TrainingConsistencyChecker, TrainingProgress
from linnaeus.schedule import EarlyStopping, OpsSchedule
from linnaeus.weighting import Conflict, TaskWeighting, Weigher
from linnaeus.workloads.base import ValidationPass, Workload

if TYPE_CHECKING:
    from linnaeus.engine.outputs import Outputs


@dataclass
class Clock:
    """Where the wall time of this launch went, in seconds; validation and saving are kept apart from training."""

    started: float = field(default_factory=time.perf_counter)
    validating: float = 0.0
    saving: float = 0.0
    waiting: float = 0.0  # for the loader, part of training

    @contextlib.contextmanager
    def charge(self, account: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, account, getattr(self, account) + time.perf_counter() - start)

    def wall(self) -> float:
        return time.perf_counter() - self.started

    def training(self) -> float:
        return self.wall() - self.validating - self.saving


@dataclass
class Training:
    """The parts of a run. What must survive a kill is listed in `stateful`; the rest is rebuilt from the configuration."""

    config: Config
    context: DistributedContext
    workload: Workload
    model: nn.Module  # the bare model, whose names are the names in checkpoints
    runner: Callable[..., Any]  # the same, wrapped for DDP
    no_sync: Callable[[], Any]  # around forward and backward of all but a window's last micro-batch
    sampler: PositionSampler
    train_loader: Any
    passes: list[ValidationPass]  # every validation pass this run can make
    optimizers: Optimizers
    lr: LRSchedule
    precision: Precision
    update: Update
    ema: EMA | None
    weighting: TaskWeighting
    conflict: Conflict
    weigher: Weigher  # measures for these two
    progress: TrainingProgress
    ops: OpsSchedule
    checker: TrainingConsistencyChecker
    early_stopping: EarlyStopping | None
    tracker: MetricsTracker
    step_logger: StepMetricsLogger
    stop: StopRequest
    vitals: Vitals
    growth: Growth | None = None  # of connections; None: every weight is there
    clock: Clock = field(default_factory=Clock)
    validation_loader: Any = None  # made at the first validation, kept
    first_step: int = 0  # where this launch began
    first_sample: int = 0
    first_unit: int = 0
    stop_reason: str | None = None  # `interrupted`, or why training stopped early
    interrupted_by: str | None = None
    agreed: frozenset[str] = frozenset()  # flags of `agreement.py` that all processes know of alike, since they last told each other

    output: Outputs = field(init=False)

    @property
    def device(self) -> torch.device:
        return self.context.device

    @property
    def units(self) -> tuple[str, int] | None:
        """What a sample holds and how many, where it is more than a sample."""
        return getattr(self.workload, "units", None)

    @property
    def pin_memory(self) -> bool:
        return self.config.trainer.pin_memory and self.device.type == "cuda"

    def unfinished(self) -> bool:
        return self.stop_reason is None and self.progress.global_step < self.progress.expected_total_steps

    def stateful(self) -> dict[str, Any]:
        """Every part with a state that is common to all processes; each has state_dict / load_state_dict of plain types."""
        parts: dict[str, Any] = {
            "progress": self.progress,
            "optimizers": self.optimizers,
            "lr": self.lr,
            "precision": self.precision,
            "update": self.update,
            "weighting": self.weighting,
            "conflict": self.conflict,
            "tracker": self.tracker,
        }
        if self.growth is not None:
            parts["growth"] = self.growth
        if self.ema is not None:
            parts["ema"] = self.ema
        if self.early_stopping is not None:
            parts["early_stopping"] = self.early_stopping
        return parts

    def broadcast_buffers(self) -> None:
        """Batch statistics differ between processes, and so do their averages; rank 0's are the ones validated and saved."""
        if not self.context.is_distributed:
            return
        averages = self.ema.averaged() if self.ema is not None else {}
        for name, buffer in changing_buffers(self.model).items():
            self.context.broadcast(buffer)
            if name in averages:
                self.context.broadcast(averages[name])
