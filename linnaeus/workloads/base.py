"""The protocol a workload implements: the only thing the engine knows of it (law 8).

A workload is a package with a `SCHEMAS` table in its `config` module and a function `build_workload(config)` in its `__init__`.
It brings data, model, losses, metrics and validation passes; the loop brings order, windows, devices,
precision, gradients, weights, schedules, checkpoints and logs.

A *batch* is a flat dict of host tensors, first dimension B; the loop moves it to the device and hands it back to the workload.
Entries it must hold: `weight` float32 [B], 1 for a real sample and 0 for the stand-in of an empty micro-batch; `sample` int64 [B],
the dataset index of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.data.resampling import Resampling
from linnaeus.schedule import OpsSchedule

if TYPE_CHECKING:
    from linnaeus.checkpoint.initial import InitialWeights

Batch = dict[str, Tensor]


class SampleIndex(NamedTuple):
    """What reaches a loader worker for one sample: enough to make the sample again anywhere."""

    epoch: int
    position: int  # in the epoch's order; position ^ 1 is the other half of its slot
    sample: int  # index into the dataset
    global_step: int  # of the update that will use it, before that update
    real: bool = True  # False: the zero-weight stand-in of an empty micro-batch


class PositionedDataset(Protocol):
    """A map-style dataset whose samples depend on nothing but their index. Picklable; keeps no state that alters a sample."""

    fingerprint: str

    def __len__(self) -> int: ...

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        """The collated batch of the indices, in their order."""
        ...

    def groups(self, level: str | None) -> np.ndarray | None:
        """int64 [N] group of each sample at a level, -1 where it must not be paired; None: no pairs are wanted."""
        ...

    def resampling(self) -> Resampling | None:
        """Which samples an epoch draws how often; None: every one once. Asked of the training set only."""
        ...


class ValidationPass(NamedTuple):
    """One way of validating: `key` prefixes its metrics (`val`, `val_mask_meta`, `val_mask_SPATIAL`)."""

    key: str
    stage: str  # value of a TrainingStage
    partial_index: int | None = None
    masked: tuple[str, ...] = ()


class Metrics(Protocol):
    """Streaming metrics. Order-sensitive float sums are returned per batch and added in batch order by the caller; integer
    counts are added in place, which is exact in any order, and are all-reduced by the caller.

    Those of validation may have more to say, `at_end(counts)`, named results that are worth their time in the last validations of a run
    alone (confidence intervals). `compute` is asked first; nothing of them can be monitored."""

    width: int  # K
    counts: dict[str, Tensor]  # int64 on the device

    def sums(self, outputs: Any, batch: Batch) -> Tensor:
        """float64 [K]: this batch's contributions to the sums."""
        ...

    def count(self, outputs: Any, batch: Batch) -> None:
        """Add this batch to `counts`."""
        ...

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Named results from totals; keys such as `loss`, `species/top1`. NaN where a metric is not defined. Training metrics are
        given the loss sums and valid counts of the tasks, [2T], which the loop itself has added up."""
        ...


class Workload(Protocol):
    tasks: tuple[str, ...]
    components: tuple[str, ...]  # metadata components that can be masked; empty where there are none
    train_size: int
    train_set: PositionedDataset  # these two after `build_datasets`
    validation_set: PositionedDataset
    # What a sample holds and how many, for reports: ("tokens", 1024). Where a task has that name, its valid labels are counted instead: of
    # a sample that is padded, what is padding is not seen. A workload of plain samples has none.
    units: tuple[str, int]
    probabilities: tuple[str, ...]  # those of `linnaeus.schedule.resolved.RAMPS` its data ask for, as meta_mask; a workload without: none
    sources: tuple[str, ...]  # named sources its training samples come from, that `schedule.phases` may mix; a workload without: none
    source_sizes: tuple[int, ...]  # how large each of them is, in samples or what they are made of
    dimensions: tuple[str, ...]  # named parts of its model that `schedule.phases` may weigh; a workload without has none
    report_metrics: tuple[str, ...]  # validation metrics that reports show beside the loss, without the name of the pass ("r2")
    groups_of_two: bool  # samples are ordered in slots of two and micro-batches are even
    notes: tuple[str, ...]  # lines printed at start
    fingerprint: str  # of data and everything that numbers the classes

    def build_datasets(self, schedule: OpsSchedule, directory: Path) -> None:
        """Make `train_set` and `validation_set`; `schedule` travels to the workers for its probabilities, `directory` is the
        run's, which may not exist yet."""
        ...

    def build_model(self) -> nn.Module:
        """The network, initialised from the config's seed. `model(batch)` returns outputs; `model.shared_parameters()` lists
        the parameters of the last shared layer, where gradients of tasks are measured; `model.no_decay` is a set of names never decayed.

        For two choices of `weighting.place` more is needed: `model.trunk_parameters()`, all parameters that all tasks share, for
        `trunk`, and outputs that are a mapping with `per_rank`, the features [B, ...] that the heads read, for `features`. With
        `trainer.compile` the layers up to there must be parts of their own (`model.compiled_parts()`), else measuring runs the whole
        backward. A part needs a class whose `forward` is not inherited from torch: torch 2.11 leaves a bare `nn.Sequential` uncompiled,
        without a word.

        For reports a model may say more of itself: `model.flops_per_sample()`, floating-point operations of forward and backward for one
        sample, without which there is no MFU; `model.active_parameters()`, how many take part, by default all that are trained."""
        ...

    def adopt(self, weights: InitialWeights, model: nn.Module) -> InitialWeights:
        """What `run.init_from` gives, before it is compared with the model: a workload may refuse weights that do not belong to its data
        (ConfigError), and give those of a published layout the names of its model. One without this method takes them as they are."""
        ...

    def prepare(self, batch: Batch, masked: tuple[str, ...] = ()) -> Batch:
        """On the device: normalise, mix, mask what the batch says, and in validation the `masked` components."""
        ...

    def notice(self, batch: Batch) -> None:
        """Look at a host batch that is about to be used, in training or validation, and report what is wrong with its samples."""
        ...

    def valid_counts(self, batch: Batch) -> Tensor:
        """float64 [T] on the host: the weight of valid labels per task in a host batch, the denominators of the loss."""
        ...

    def loss_sums(self, outputs: Any, batch: Batch) -> Tensor:
        """float [T]: the sum (not the mean) of each task's losses over the valid labels of a prepared batch."""
        ...

    def separate_sums(self, outputs: Any) -> Sequence[Tensor]:
        """What `loss_sums` has just given of these outputs, as T scalars, where gradients of single tasks are measured (GradNorm,
        conflict): cheaper, for each then runs through its own head alone. A workload may be without this method."""
        ...

    def total_loss(self, sums: Tensor, weights: Tensor, denominators: Tensor) -> Tensor:
        """[]: the objective, sum over tasks of weight x sum / denominator, all [T]. The loop differentiates it in closed form (its
        gradient by the sums is weight / denominator) and logs it as `train/weighted_loss`."""
        ...

    def metrics(self, training: bool, device: torch.device) -> Metrics: ...

    def sample_names(self, samples: Sequence[int]) -> list[str]:
        """Stable names of training samples by their dataset index."""
        ...

    def summary(self, final: Mapping[str, float]) -> list[str]:
        """Lines printed at the end, such as accuracies beside their ceilings."""
        ...

    def report_rows(self, model: nn.Module, global_step: int) -> Mapping[str, float | int | str]:
        """More of what a progress report tells, by name: what the configuration and the state at this step determine, no clocks. A row
        `phase` with `phase/description`, and all `phase/...`, are shown together. Asked on rank 0, and not of a workload without it."""
        ...

    def save_record(self, directory: Path) -> None:
        """Write what describes the dataset into the run directory."""
        ...

    def report_sections(self, final: Mapping[str, float]) -> list[tuple[str, str]]:
        """(title, HTML) sections of report.html."""
        ...
