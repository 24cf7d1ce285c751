"""The abstract classes that a workload and its model implement. The training loop uses a research program only through these classes.

A workload is a package with a `SCHEMAS` table in its `config` module and a function `build_workload(config)` in its `__init__`. A function
`report_sections(run)` in its `__init__` adds sections to report.html. The workload provides data, model, losses, metrics and validation
passes. The loop provides sample order, micro-batches, devices, precision, gradients, task weights, schedules, checkpoints and logs.

The loader makes a batch (`data.samples.Batch`) on the host, and the loop moves the batch to the device and passes it to the workload."""

from __future__ import annotations

import difflib
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.config.contracts import class_name
from linnaeus.data.samples import Batch, PositionedDataset
from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError
from linnaeus.metrics.streaming import Metrics, TrainingMetrics
from linnaeus.schedule import OpsSchedule
from linnaeus.workloads.repeated_blocks import block_distances, find_repeated_blocks
from linnaeus.workloads.sample_view import SampleView

if TYPE_CHECKING:
    from linnaeus.checkpoint.initial_weights import InitialWeights


class Model(nn.Module, ABC):
    """Network that the loop can train. `model(batch)` returns the outputs that the workload's losses and metrics read."""

    no_decay: Any = frozenset()  # names of parameters without weight decay
    exact_counts: bool = True  # False: forward passes add floats that `after_update` reduces, so their sum depends on the processes

    @abstractmethod
    def shared_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the last layer that all tasks share. The loop measures the gradients of single tasks with respect to
        them."""

    def trunk_parameters(self) -> list[nn.Parameter]:
        """Return all parameters that all tasks share, for `weighting.place=trunk`. If the list is empty, `weighting.place=trunk` is
        refused."""
        return []

    def head_parameters(self) -> Sequence[Sequence[nn.Parameter]]:
        """Return the parameters of the output layer of each task, in the order of the tasks. The loop reports a task whose output layer has
        no gradient. If the list is empty, this check is left out."""
        return []

    def compiled_parts(self) -> list[nn.Module]:
        """Return the parts that `trainer.compile=whole` compiles one by one.

        The layers after the last shared layer must be separate parts. Otherwise the gradient of one task at the last shared layer runs the
        whole backward pass. Each part must be of a class with its own `forward`: torch 2.11 leaves a bare `nn.Sequential` uncompiled
        without a warning."""
        return [self]

    def repeated_blocks(self) -> list[nn.Module]:
        """Return the blocks of which the network mostly consists, in the order of the network. No block contains another one or the last
        shared layer. If the list is empty, `trainer.compile=blocks` and `trainer.activation_checkpointing` are refused.

        The default finds classes that occur several times in lists of modules. A block is called with tensors and constants, and equal
        blocks should not differ in numbers that their `forward` reads, since each number needs a compiled graph of its own."""
        return find_repeated_blocks(self)

    def layer_distances(self) -> dict[str, int]:
        """Return {parameter name: number of layers between the parameter and the output}, for `optimizer.layer_decay`. A parameter that is
        not named has 0, as norm and head have. If the mapping is empty, `optimizer.layer_decay` is refused.

        The default follows the order of the repeated blocks; see `block_distances`."""
        return block_distances(self, self.repeated_blocks())

    def after_update(self, skipped: Tensor) -> None:
        """Change parameters or buffers after each optimizer update, on every process alike and before the moving average of the weights.

        skipped: float32 [] on the device, 1 if the update was skipped because of non-finite gradients. The method must not wait for the
        device. If the model counts values in forward passes, this method must reduce the counts over the processes."""
        return None

    def shard(self, context: DistributedContext) -> dict[str, int]:
        """Divide the rows of large parameters over the processes, if the model is configured so. Return {parameter name: number of rows of
        the whole parameter}.

        Each process keeps the rows of `distributed.row_shards.row_bounds` under the same name. The forward pass then has collectives, and
        the gradients of these rows must be the sums over all processes. The default divides nothing."""
        return {}

    def reduced_in_bf16(self) -> set[str]:
        """Return the names of the parameters whose gradients the processes exchange in bf16, if the model is configured so. The default
        names none."""
        return set()

    def maskable_parameters(self) -> list[str]:
        """Return the names of the weight matrices that may start sparse and become denser while the model trains (`growth=linear`)."""
        return []

    def flops_per_sample(self) -> float | None:
        """Return the floating-point operations of forward and backward for one sample, for the model FLOPs utilisation (MFU). None: the
        loop counts the operations itself."""
        return None

    def active_parameters(self) -> int | None:
        """Return the number of parameters that one forward pass uses; None if a forward pass uses all trained parameters."""
        return None


class Workload(ABC):
    """Data, model, losses and metrics of one configuration. A subclass must define the members that have no default here."""

    tasks: tuple[str, ...]
    train_size: int  # training samples
    train_set: PositionedDataset  # set by `build_datasets`
    validation_set: PositionedDataset  # set by `build_datasets`
    fingerprint: str  # hash of the data and of what determines class indices; a resume with another one is refused

    classes: str | None = None  # hash of what rows of weights belong to, such as taxa; a resume with another one is refused; None: unknown
    components: tuple[str, ...] = ()  # metadata components that can be masked
    notes: tuple[str, ...] = ()  # lines to log at the start
    pairs_samples: bool = False  # samples are ordered in pairs; micro-batch sizes must be even
    micro_batch_multiple: int = 1  # a micro-batch size must be a multiple of this
    # Unit and number of units per sample for reports, such as ("tokens", 1024). If a task has the same name, its valid labels are
    # counted instead, which excludes padding.
    units: tuple[str, int] | None = None
    schedule_probabilities: tuple[str, ...] = ()  # the names in `schedule.resolved.RAMPS` that the datasets read
    sources: tuple[str, ...] = ()  # named sources of training samples that `schedule.phases` may mix
    source_sizes: tuple[int, ...] = ()  # windows or samples of each source
    dimensions: tuple[str, ...] = ()  # named parts of the model that `schedule.phases` may weight
    report_metrics: tuple[str, ...] = ()  # validation metrics for reports besides the loss, without prefix ("r2")

    # -- what every workload defines -------------------------------------------------------------------------------------

    @abstractmethod
    def build_datasets(self, schedule: OpsSchedule, directory: Path) -> None:
        """Set `train_set` and `validation_set`.

        schedule: object from which the datasets read probabilities that change during the run (it is pickled for loader workers).
        directory: the run directory, which may not exist yet."""

    @abstractmethod
    def build_model(self) -> Model:
        """Return the network. Before the call, torch's generators are seeded with `config.seed`."""

    @abstractmethod
    def valid_counts(self, batch: Batch) -> Tensor:
        """Return the sum of the weights of the valid labels per task in a host batch, float64 [T] on the host. The loop divides the losses
        by these sums, see `denominators`."""

    @abstractmethod
    def loss_sums(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the sum (not the mean) of the losses over the valid labels of a prepared batch, per task, float [T]."""

    @abstractmethod
    def metrics(self, device: torch.device) -> Metrics:
        """Return new metrics for one validation pass, with all counts 0."""

    # -- what has a default ----------------------------------------------------------------------------------------------

    def check_model(self, model: nn.Module) -> None:
        """Raise `ConfigError` if a part of `model`, or the loss, returns results of a wrong type or shape. Called once before the training,
        with the model on its device."""
        return None

    def training_metrics(self, device: torch.device) -> TrainingMetrics:
        """Return new metrics for the rows of metrics.jsonl that describe training, with all counts 0. The default has the losses only."""
        return TrainingMetrics(self.tasks)

    def prepare(self, batch: Batch, masked: tuple[str, ...] = ()) -> Batch:
        """Return the model's input from a device batch: normalised and, in training, mixed. The default returns `batch`. `masked`: metadata
        components that a validation pass masks for every sample; () in training."""
        return batch

    def compile(self, device: torch.device) -> None:
        """Compile, with `torch.compile`, the functions outside of the model that run on the device at every update, such as the loss. This
        is called once, after `build_datasets`, if `trainer.compile` is set. The default compiles nothing."""
        return None

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the outputs of `model` for a prepared batch of a validation pass."""
        return model(batch)

    def join_prediction(self, model: nn.Module) -> None:
        """Run the collectives of `predict` without a batch. This is called on a process that does not have a batch in a round of validation
        while other processes call `predict`. The default does nothing."""
        return None

    def reading_set(self) -> PositionedDataset:
        """Return the samples on which a sparse dictionary reads activations of the model: the training samples, without augmentation,
        mixing and masking. Called after `build_datasets`. The default is the training set as it is, for workloads that do not augment."""
        return self.train_set

    def real_positions(self, batch: Batch) -> Tensor | None:
        """Return bool [B, T], True for the positions of sequences of length T that are not padding. None: all positions are real, or the
        samples are not sequences."""
        return None

    def sample_view(self) -> SampleView:
        """Return the object that formats samples of the validation set and the model's outputs for an HTML page about single samples. The
        default shows names only."""
        return SampleView()

    def check_batch(self, batch: Batch) -> None:
        """Report samples of a host batch that could not be decoded. Called for every batch of training and validation."""
        return None

    def denominators(self, valid: Tensor) -> Tensor:
        """Return the numbers by which the loop divides the loss sums of the tasks, float64 [..., T]. `valid`: results of `valid_counts`,
        each added over a global batch, [..., T]. The default returns `valid`, so that the loss of a task is a mean over its labels."""
        return valid

    def total_loss(self, sums: Tensor, weights: Tensor, denominators: Tensor) -> Tensor:
        """Return the objective, a scalar: the sum over tasks of weight x sum / denominator. All arguments are [T]. The loop logs the
        objective as `train/weighted_loss` and uses the derivative of this formula in closed form. A denominator may be below 1, because it
        is a total weight of labels. A task with the denominator 0 adds its sum, which is 0."""
        return (weights * sums / denominators.where(denominators > 0, 1.0)).sum()

    def separate_loss_sums(self, outputs: Any) -> Sequence[Tensor] | None:
        """Return the result of the last `loss_sums` as T scalars, so that the backward pass of one task runs through its own head only. If
        this method returns None, the loop indexes the result of `loss_sums`."""
        return None

    def adapt_initial_weights(self, weights: InitialWeights, model: nn.Module) -> InitialWeights:
        """Return the weights of `run.init_from`, renamed to the parameters of `model`. Raise `ConfigError` if the classes or tokens of the
        weights differ from the classes or tokens of this run's data."""
        return weights

    def label_counts(self) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
        """Return task -> (training counts [C], validation counts [C]): the numbers of labels of each of C classes, for tasks with mutually
        exclusive classes. From the counts the health checks compute chance levels to compare metrics with. The default is {}."""
        return {}

    def sample_names(self, samples: Sequence[int]) -> list[str]:
        """Return a stable name for each training sample in `samples`, indices into the training set."""
        return [str(sample) for sample in samples]

    def save_dataset_record(self, directory: Path) -> None:
        """Write a description of the dataset to the run directory `directory`. The default writes nothing."""
        return None

    def finish(self) -> None:
        """Complete the files that the workload writes into the run directory. Called on rank 0 when training ends or is interrupted, and no
        process reads data any more."""
        return None

    def summary(self, final: Mapping[str, float]) -> list[str]:
        """Return lines to log at the end of a run, such as accuracies. `final`: the newest result of each validation metric."""
        return []

    def headline(self, final: Mapping[str, float]) -> list[str]:
        """Return the result of a run as at most three lines of at most 79 columns, which are printed at the end of the run. If the list is
        empty, the validation losses are printed."""
        return []

    def next_commands(self, run: Path) -> list[str]:
        """Return the commands that use the model of a finished `run`. They are printed at the end of the run."""
        return [f"linnaeus evaluate {shlex.quote(str(run))}"]

    def faster_data(self, slow_disk: bool) -> str | None:
        """Return the setting that makes the data of this run faster to read, as a clause for a line of advice; None if there is no such
        setting.

        slow_disk: True if loading mostly waits for the disk, False if loading is limited by the CPU. The advice to use more workers is
        given by the caller."""
        return None

    def report_rows(self, model: nn.Module, global_step: int) -> Mapping[str, float | int | str]:
        """Return values to add to a progress report, by name. Called on rank 0 only. The values must be functions of the configuration and
        the state at this step, not of the time. Values whose names begin with `phase` are shown together."""
        return {}

    def prepare_evaluation(self, run: Path, split: str) -> None:
        """Prepare the workload to score the model of the run directory `run`. Called before `build_datasets`, which then takes the
        validation set from the rows of `split` (`validation` or `test`). Raise `ConfigError` if the data have no rows of `split`, or other
        classes than the run."""
        if split != "validation":
            raise ConfigError(f"--split={split}: the data of this workload have no {split} rows; use validation")

    def save_examples(self, run: Path, step: int, model: nn.Module) -> None:
        """Write examples for report.html, such as photographs or generated text, to `run`/validation/step-N/, so that the report can be
        made from files. Called on rank 0 at the end of a run; `step` is the step of its last validation. The default writes nothing."""
        return None


def check_no_decay(module: Any) -> None:
    """Raise `ConfigError` if `module.no_decay` has a name that is not the name of a parameter of `module`.

    Without this check a misspelt parameter would have weight decay without a message."""
    known = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    unknown = sorted(set(module.no_decay) - known)
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"did you mean {close[0]}?" if close else "named_parameters() lists the names"
        raise ConfigError(f"{class_name(type(module))}.no_decay names {unknown[0]}, which is not a parameter of it; {hint}")
