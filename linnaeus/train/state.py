"""`Training`: everything a run consists of while it trains, in one visible place; `RunState`: whether it goes on.

The parts know nothing of `Training`: the functions of this room read the parts and pass values from one to the next. The loop knows
no workload (law 8): it reaches data, model and losses through `workloads.base.Workload`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from linnaeus.config.schema import Config
from linnaeus.data.sampler import PositionSampler
from linnaeus.distributed import DistributedContext
from linnaeus.distributed.signals import StopRequest
from linnaeus.distributed.synchronisation import RankSync
from linnaeus.distributed.watchdog import Watchdog
from linnaeus.metrics import MetricsTracker, StepMetricsLogger
from linnaeus.optim import LRSchedule, Optimizers
from linnaeus.optim.ema import EMA
from linnaeus.optim.growth import Growth
from linnaeus.optim.precision import Precision
from linnaeus.optim.update import Update
from linnaeus.progress import TrainingConsistencyChecker, TrainingProgress, ValidationPass
from linnaeus.schedule import EarlyStopping, OpsSchedule
from linnaeus.train.freezing import changing_buffers
from linnaeus.train.outputs import Outputs
from linnaeus.weighting import GradientConflict, TaskWeighting, WeightingMeter
from linnaeus.workloads.base import Model, Workload

RUNNING, INTERRUPTED, STOPPED = "running", "interrupted", "stopped"


@dataclass
class RunState:
    """`status`: running; interrupted by a signal, the time limit or unreadable data, so that the same command continues; or stopped
    early by a limit of the configuration. `reason` says which, in words."""

    status: str = RUNNING
    reason: str | None = None

    @property
    def running(self) -> bool:
        return self.status == RUNNING

    @property
    def interrupted(self) -> bool:
        return self.status == INTERRUPTED

    @property
    def stopped(self) -> bool:
        return self.status == STOPPED

    def interrupt(self, reason: str) -> None:
        """Interrupt the run, also one that has stopped: its last validation was cut off."""
        self.status, self.reason = INTERRUPTED, reason

    def stop(self, reason: str | None) -> None:
        """Stop a running run early; None and later reasons change nothing."""
        if reason is not None and self.running:
            self.status, self.reason = STOPPED, reason

    @property
    def record(self) -> dict[str, str | None]:
        """`stop_reason` and `interrupted_by` of summary.json and state.json."""
        return {
            "stop_reason": INTERRUPTED if self.interrupted else self.reason,
            "interrupted_by": self.reason if self.interrupted else None,
        }


@dataclass
class Clock:
    """Where the wall time of this launch went, in seconds; validation and saving are not part of training."""

    started: float = field(default_factory=time.perf_counter)
    validating: float = 0.0
    saving: float = 0.0
    waiting: float = 0.0  # for the loader, part of training

    @contextlib.contextmanager
    def charge(self, account: str) -> Iterator[None]:
        """Add the time of the block to `validating` or `saving`."""
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
    """The parts of a run. `stateful` lists what a checkpoint holds; the rest is rebuilt from the configuration."""

    config: Config
    context: DistributedContext
    workload: Workload
    model: Model  # the bare model, whose names are the names in checkpoints
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
    conflict: GradientConflict
    weighting_meter: WeightingMeter  # measures for `weighting` and `conflict`
    progress: TrainingProgress
    ops: OpsSchedule
    checker: TrainingConsistencyChecker
    early_stopping: EarlyStopping | None
    tracker: MetricsTracker
    step_logger: StepMetricsLogger
    stop: StopRequest
    watchdog: Watchdog
    sync: RankSync
    growth: Growth | None = None  # of connections; None: all weights are connected
    run: RunState = field(default_factory=RunState)
    clock: Clock = field(default_factory=Clock)
    validation_loader: Any = None  # made at the first validation, then kept
    first_step: int = 0  # `global_step`, `samples_seen` and `units_seen` at the start of this launch
    first_sample: int = 0
    first_unit: int = 0

    output: Outputs = field(init=False)  # opened once the run directory is locked

    @property
    def device(self) -> torch.device:
        return self.context.device

    @property
    def pin_memory(self) -> bool:
        return self.config.trainer.pin_memory and self.device.type == "cuda"

    def unfinished(self) -> bool:
        return self.run.running and self.progress.global_step < self.progress.expected_total_steps

    def stateful(self) -> dict[str, Any]:
        """Return every part with a state that is common to all ranks; each has state_dict / load_state_dict of plain types."""
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
        optional = {"growth": self.growth, "ema": self.ema, "early_stopping": self.early_stopping}
        return parts | {name: part for name, part in optional.items() if part is not None}

    def broadcast_buffers(self) -> None:
        """Copy rank 0's batch statistics and their averages to every rank. They differ between ranks; rank 0's are validated and
        saved."""
        if not self.context.is_distributed:
            return
        averages = self.ema.averaged() if self.ema is not None else {}
        for name, buffer in changing_buffers(self.model).items():
            self.context.broadcast(buffer)
            if name in averages:
                self.context.broadcast(averages[name])
