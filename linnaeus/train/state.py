"""Define `Training` (all parts of a run) and `RunState` (running, interrupted or stopped).

Only functions of this package take a `Training`. Such a function reads values from parts of the `Training` and passes them to other parts.
No code here depends on a particular workload: data, model and losses are reached through `workloads.base.Workload`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from linnaeus.config.schema import Config
from linnaeus.data.sampler import PositionSampler
from linnaeus.data.workers import WorkerPool
from linnaeus.distributed import DistributedContext
from linnaeus.distributed.row_shards import RowShards
from linnaeus.distributed.signals import StopRequest
from linnaeus.distributed.summation_tree import SumOrder
from linnaeus.distributed.synchronisation import GradientReduction, RankSync
from linnaeus.distributed.watchdog import Watchdog
from linnaeus.health import HealthMonitor
from linnaeus.metrics import MetricsTracker, StepMetricsLogger
from linnaeus.optim import LRSchedule, Optimizers
from linnaeus.optim.ema import EMA
from linnaeus.optim.growth import Growth
from linnaeus.optim.update import Precision, Update
from linnaeus.optim.update_ratio import UpdateRatio
from linnaeus.progress import TrainingConsistencyChecker, TrainingProgress, ValidationPass
from linnaeus.schedule import EarlyStopping, OpsSchedule
from linnaeus.train.building.compiling import Compilation
from linnaeus.train.building.freezing import changing_buffers
from linnaeus.train.measuring.clipped_updates import ClippedUpdates
from linnaeus.train.measuring.clock import Clock, StartTimes
from linnaeus.train.measuring.data_wait import DataWait
from linnaeus.train.measuring.model_flops import FlopsOfRun
from linnaeus.train.measuring.rank_report import RankReport
from linnaeus.train.measuring.sections import Sections
from linnaeus.train.outputs import Outputs
from linnaeus.weighting import GradientConflict, TaskWeighting, WeightingMeter
from linnaeus.workloads.base import Model, Workload

INTERRUPTED = "interrupted"  # status in summary.json


@dataclass
class RunState:
    """State of the run: running, interrupted or stopped.

    interrupted_by: the signal, the time limit or the unreadable data that interrupted the run, so that the same command continues it; None
    if it is not interrupted. stop_reason: why a limit of the configuration stopped the run early; None if it did not. A stopped run that is
    interrupted in its last validation has both. Checkpoints contain `stop_reason`, so the continued run does not train on."""

    interrupted_by: str | None = None
    stop_reason: str | None = None

    @property
    def running(self) -> bool:
        return self.reason is None

    @property
    def interrupted(self) -> bool:
        return self.interrupted_by is not None

    @property
    def stopped(self) -> bool:
        return self.stop_reason is not None and not self.interrupted

    @property
    def reason(self) -> str | None:
        """Return the reason of the interruption or, without one, of the early stop, as a text for the log; None while running."""
        return self.interrupted_by or self.stop_reason

    def interrupt(self, reason: str) -> None:
        """Interrupt the run. This is also possible for a stopped run, during its last validation."""
        self.interrupted_by = reason

    def stop(self, reason: str | None) -> None:
        """Stop the run early if it is running and `reason` is not None."""
        if self.running:
            self.stop_reason = reason

    @property
    def record(self) -> dict[str, str | None]:
        """Return the entries `stop_reason` and `interrupted_by` of summary.json."""
        return {"stop_reason": INTERRUPTED if self.interrupted else self.stop_reason, "interrupted_by": self.interrupted_by}


@dataclass
class Training:
    """All parts of a run. A checkpoint contains the state of the parts in `stateful()`; all other parts are built from the
    configuration."""

    config: Config
    context: DistributedContext
    workload: Workload
    model: Model  # unwrapped; checkpoints use its parameter names
    runner: Callable[..., Any]  # the model wrapped for DDP
    reduction: GradientReduction  # sums the gradients of an update over micro-batches and processes
    shards: RowShards  # parameters that are divided over the processes
    order: SumOrder  # of the other sums over micro-batches and processes
    sampler: PositionSampler
    workers: WorkerPool | None  # None: batches are read in this process
    train_loader: Any
    passes: list[ValidationPass]  # all validation passes that this run can make
    optimizers: Optimizers
    lr: LRSchedule
    precision: Precision
    update: Update
    ema: EMA | None
    weighting: TaskWeighting
    conflict: GradientConflict
    weighting_meter: WeightingMeter  # measures losses and gradients for `weighting` and `conflict`
    progress: TrainingProgress
    ops: OpsSchedule
    checker: TrainingConsistencyChecker
    early_stopping: EarlyStopping | None
    tracker: MetricsTracker
    step_logger: StepMetricsLogger
    health: HealthMonitor
    update_ratio: UpdateRatio
    stop: StopRequest
    watchdog: Watchdog
    sync: RankSync
    flops: FlopsOfRun | None = None  # operations of the model; None on other ranks than 0, and if they are not needed
    ranks: RankReport = field(init=False)  # times and memory of all processes; set by `build_training`
    compilation: Compilation | None = None  # counts compiled graphs; None: nothing is compiled
    sections: Sections | None = None  # times the parts of updates; None: times are not requested
    growth: Growth | None = None  # None: all weights are connected
    run: RunState = field(default_factory=RunState)
    clock: Clock = field(default_factory=Clock)
    data_wait: DataWait = field(default_factory=DataWait)
    clipped: ClippedUpdates = field(default_factory=ClippedUpdates)
    validation_loader: Any = None  # built at the first validation
    start_times: StartTimes | None = None  # None: this launch is not timed, or has made its first update
    first_step: int = 0  # `global_step`, `samples_seen` and `units_seen` at the start of this launch
    first_sample: int = 0
    first_unit: int = 0
    next_due: int = 0  # the first step at which something is due by steps, after the last step end at which something was due

    output: Outputs = field(init=False)  # set once the run directory is locked

    @property
    def device(self) -> torch.device:
        return self.context.device

    @functools.cached_property
    def parameter_counts(self) -> tuple[int, int]:
        """Return (number of all parameters of the model, number of parameters that are trained), over all processes."""
        sizes = [(math.prod(self.shards.whole_shape(name, p)), p.requires_grad) for name, p in self.model.named_parameters()]
        return sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)

    def unfinished(self) -> bool:
        """Return True if the run has steps left and is neither interrupted nor stopped."""
        return self.run.running and self.progress.global_step < self.progress.expected_total_steps

    def stateful(self) -> dict[str, Any]:
        """Return {name: part} for the parts whose state is the same on all ranks.

        Each part has the methods `state_dict` and `load_state_dict`; the state consists of plain types."""
        parts: dict[str, Any] = {
            "progress": self.progress,
            "optimizers": self.optimizers,
            "lr": self.lr,
            "precision": self.precision,
            "update": self.update,
            "weighting": self.weighting,
            "conflict": self.conflict,
            "tracker": self.tracker,
            "health": self.health,
        }
        optional = {"growth": self.growth, "ema": self.ema, "early_stopping": self.early_stopping}
        return parts | {name: part for name, part in optional.items() if part is not None}

    def broadcast_buffers(self) -> None:
        """Copy the batch statistics of the model, and their moving averages in `ema`, from rank 0 to every rank.

        Batch statistics differ between ranks during training. After this call every rank validates and saves the statistics of rank 0."""
        if not self.context.is_distributed:
            return
        averages = self.ema.averaged() if self.ema is not None else {}
        for name, buffer in changing_buffers(self.model).items():
            self.context.broadcast(buffer)
            if name in averages:
                self.context.broadcast(averages[name])
