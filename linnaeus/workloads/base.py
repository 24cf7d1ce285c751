"""The abstract classes that a workload and its model implement: all that the loop knows of a research program (law 8).

A workload is a package with a `SCHEMAS` table in its `config` module and a function `build_workload(config)` in its `__init__`.
It brings data, model, losses, metrics and validation passes. The loop brings order, windows, devices, precision, gradients, task
weights, schedules, checkpoints and logs.

A batch (`data.samples.Batch`) is made on the host, moved to the device by the loop and passed back to the workload.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from linnaeus.data.samples import Batch, PositionedDataset
from linnaeus.metrics.streaming import Metrics
from linnaeus.schedule import OpsSchedule

if TYPE_CHECKING:
    from linnaeus.checkpoint.initial_weights import InitialWeights


class Model(nn.Module):
    """A network that the loop can train. `model(batch)` returns the outputs that the workload's losses and metrics read.

    `no_decay`: names of parameters that never get weight decay.
    """

    no_decay: Any = frozenset()

    def shared_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the last layer that all tasks share, where gradients of single tasks are measured."""
        raise NotImplementedError(f"{type(self).__name__} must define shared_parameters()")

    def trunk_parameters(self) -> list[nn.Parameter]:
        """Return all parameters that all tasks share, for `weighting.place=trunk`. Empty: the model does not support it."""
        return []

    def compiled_parts(self) -> list[nn.Module]:
        """Return the parts that `trainer.compile` compiles. Layers up to the last shared one must be parts of their own, otherwise
        measuring a task's gradient runs the whole backward. Each part needs a class with its own `forward`: torch 2.11 leaves a
        bare `nn.Sequential` uncompiled without a warning."""
        return [self]

    def maskable_parameters(self) -> list[str]:
        """Return the names of the matrices whose connections may grow (`growth=linear`)."""
        return []

    def flops_per_sample(self) -> float | None:
        """Return the floating-point operations of forward and backward for one sample; None: unknown, no MFU is reported."""
        return None

    def active_parameters(self) -> int | None:
        """Return the number of parameters that take part in a forward; None: all that are trained."""
        return None


class Workload(ABC):
    """Data, model, losses and metrics of one configuration. Members without a default must be defined by the subclass."""

    tasks: tuple[str, ...]
    train_size: int  # training samples
    train_set: PositionedDataset  # set by `build_datasets`
    validation_set: PositionedDataset  # set by `build_datasets`
    fingerprint: str  # of the data and of everything that numbers the classes

    components: tuple[str, ...] = ()  # metadata components that can be masked
    notes: tuple[str, ...] = ()  # lines printed at the start
    pairs_samples: bool = False  # samples are ordered in pairs; micro-batch sizes must be even
    # The unit of a sample and how many it holds, for reports: ("tokens", 1024). If a task has the same name, its valid labels are
    # counted instead, so padding is not.
    units: tuple[str, int] | None = None
    schedule_probabilities: tuple[str, ...] = ()  # the names of `schedule.resolved.RAMPS` that the data use
    sources: tuple[str, ...] = ()  # named sources of training samples that `schedule.phases` may mix
    source_sizes: tuple[int, ...] = ()  # windows or samples of each source
    dimensions: tuple[str, ...] = ()  # named parts of the model that `schedule.phases` may weight
    report_metrics: tuple[str, ...] = ()  # validation metrics shown in reports beside the loss, without the pass's prefix ("r2")

    # -- what every workload defines -------------------------------------------------------------------------------------

    @abstractmethod
    def build_datasets(self, schedule: OpsSchedule, directory: Path) -> None:
        """Set `train_set` and `validation_set`. `schedule` travels to the loader workers for its probabilities. `directory` is the
        run directory, which may not exist yet."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return the network (a `Model`), initialised from the config's seed."""

    @abstractmethod
    def valid_counts(self, batch: Batch) -> Tensor:
        """Return the weight of valid labels per task in a host batch, float64 [T] on the host: the denominators of the loss."""

    @abstractmethod
    def loss_sums(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the sum (not the mean) of each task's losses over the valid labels of a prepared batch, float [T]."""

    @abstractmethod
    def metrics(self, training: bool, device: torch.device) -> Metrics:
        """Return empty metrics for training rows or for one validation pass."""

    # -- what has a default ----------------------------------------------------------------------------------------------

    def prepare(self, batch: Batch, masked: tuple[str, ...] = ()) -> Batch:
        """Return the device batch as the model takes it: normalised, mixed, with the `masked` components of a validation pass masked."""
        return batch

    def check_batch(self, batch: Batch) -> None:
        """Report samples of a host batch that could not be read. Called for every batch of training and validation."""
        return None

    def total_loss(self, sums: Tensor, weights: Tensor, denominators: Tensor) -> Tensor:
        """Return the objective [], the sum over tasks of weight x sum / denominator, all [T]. The loop differentiates this formula in
        closed form and logs the value as `train/weighted_loss`."""
        return (weights * sums / denominators.clamp(min=1)).sum()

    def separate_loss_sums(self, outputs: Any) -> Sequence[Tensor] | None:
        """Return the result of the last `loss_sums` as T scalars, so that the gradient of one task runs through its own head only.
        None: not available, the loop indexes `loss_sums` instead."""
        return None

    def adapt_initial_weights(self, weights: InitialWeights, model: nn.Module) -> InitialWeights:
        """Return the weights of `run.init_from` with the names of `model`. Raise `ConfigError` for weights that do not belong to
        the data."""
        return weights

    def sample_names(self, samples: Sequence[int]) -> list[str]:
        """Return stable names of training samples by their dataset index."""
        return [str(sample) for sample in samples]

    def save_dataset_record(self, directory: Path) -> None:
        """Write the description of the dataset into the run directory."""
        return None

    def summary(self, final: Mapping[str, float]) -> list[str]:
        """Return the lines printed at the end of a run, such as accuracies beside their ceilings."""
        return []

    def report_rows(self, model: nn.Module, global_step: int) -> Mapping[str, float | int | str]:
        """Return further rows of a progress report, by name. They must be determined by the configuration and the state at this step,
        without clocks. `phase`, `phase/description` and all `phase/...` are shown together. Asked on rank 0 only."""
        return {}

    def report_sections(self, final: Mapping[str, float]) -> list[tuple[str, str]]:
        """Return (title, HTML) sections of report.html."""
        return []


def check_members(instance: object, base: type) -> None:
    """Raise `TypeError` for a public member of `instance` that `base` does not have but whose name resembles one of its members: a
    misspelt optional member would be ignored without a word."""
    known = {name for cls in base.__mro__ for name in (*vars(cls), *getattr(cls, "__annotations__", ()))}
    contract = [name for name in (*vars(base), *getattr(base, "__annotations__", ())) if not name.startswith("_")]
    own = set(vars(instance)).union(*(vars(cls) for cls in type(instance).__mro__ if not issubclass(base, cls)))
    for name in sorted(own - known):
        close = difflib.get_close_matches(name, contract, 1, 0.85)
        if not name.startswith("_") and close:
            raise TypeError(f"{type(instance).__name__}.{name} is not a member of {base.__name__}; did you mean {close[0]}?")


def as_model(network: nn.Module) -> Model:
    """Return a workload's network as a `Model`. Raise `TypeError` if it is not one, or if it misspells an optional member."""
    if not isinstance(network, Model):
        raise TypeError(f"{type(network).__name__} must extend linnaeus.workloads.base.Model")
    check_members(network, Model)
    return cast(Model, network)
