"""Define `Metrics` and `TrainingMetrics`, the base classes of a workload's validation and training metrics, accumulated batch by batch.

The results of a validation pass do not depend on the number of processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.config.contracts import class_name, described
from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError
from linnaeus.progress import ValidationPass

SAMPLES = "samples"  # name of the table with a row for each validation sample


class Metrics(ABC):
    """Accumulators of the metrics of one validation pass.

    `sums` returns the float sums of one batch; the caller adds them in the order of the batches, because float addition depends on the
    order. `count` adds integers to `counts` in place, which is exact in any order; the caller all-reduces `counts`. `compute` turns the
    added sums and the counts into named results."""

    width: int  # K, the length of the result of `sums`
    counts: dict[str, Tensor]  # int64, on the device

    def begin(self, current: ValidationPass, passes: Sequence[ValidationPass]) -> None:
        """Prepare for the validation pass `current`. Called once, before its first batch. passes: all validation passes of the run."""
        return None

    @abstractmethod
    def sums(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the float sums of one batch, float64 [K]. `outputs`: outputs of the model for this batch."""

    @abstractmethod
    def count(self, outputs: Any, batch: Batch) -> None:
        """Add the integer counts of one batch to `counts`, in place."""

    @abstractmethod
    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the results of the pass by name, such as `loss` and `species/top1`; NaN for an undefined metric. Before training, this is
        called once with zeros to list the names.

        sums: float64 [K] on the host, the results of the method `sums` added over all batches. counts: `self.counts` summed over all
        processes."""

    def compute_at_end(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return results that take long to compute, such as confidence intervals, by name. Called only in the last validation of a run.

        These results cannot be monitored for the best checkpoint or early stopping. counts: as in `compute`."""
        return {}

    def tables(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, Iterable[dict[str, Any]]]:
        """Return tables by name, each as its rows (column name -> value). Called in each validation pass. Each table is written to
        `validation/step-N/<pass>-<table>.csv`; `linnaeus evaluate` writes the tables of the first pass. sums, counts: as
        in `compute`.

        Before the last validation of a run, the table `samples` is not written, so return it as an iterator. The other tables are deleted
        when a later pass has written its own.

        report.html reads two tables. `samples` has a row for each validation sample, in dataset order: the column `sample` is the name of
        the sample, the column `group` the number of its group, if there are groups. A column with the name of a metric, such as
        `species/top1`, has the value of each sample, and the mean of the column is the metric; so runs can be compared sample by sample.
        `baselines` has a row for each metric: the column `metric` and some of the columns `constant` (value for a model that always
        predicts the most frequent class of the training data), `shuffled` (value if the predictions of the model are assigned to samples in
        random order) and `unigram` (value of predicting each token with its frequency)."""
        return {}


class TrainingMetrics:
    """Accumulators of the training metrics of one log row: integer counts over the micro-batches since the previous row.

    The base class has no counts. Its results are `loss` and, with several tasks, `<task>/loss`. A subclass may add counts and results.
    `MetricsTracker` sums the losses, and sets the counts to 0 after each row."""

    tasks: tuple[str, ...]
    counts: dict[str, Tensor]  # int64, on the device

    def __init__(self, tasks: Sequence[str]) -> None:
        self.tasks, self.counts = tuple(tasks), {}

    def count(self, outputs: Any, batch: Batch) -> None:
        """Add the integer counts of a micro-batch to `counts`, in place and without a device sync."""

    def compute(self, loss_sums: Tensor, valid: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the results of a log row by name; one of them must be `loss`. By default the loss of a task is `loss_sums / valid`, NaN
        without valid labels, and `loss` is the mean over the tasks with valid labels.

        loss_sums, valid: float64 [T] each, on the host, for T tasks: the results of the workload's `loss_sums` and `valid_counts`, added
        over all processes and all updates since the previous row. counts: `self.counts` added over all processes."""
        means = loss_sums / torch.where(valid > 0, valid, torch.nan)
        each = {f"{task}/loss": mean for task, mean in zip(self.tasks, means.tolist(), strict=True)}
        return {"loss": means.nanmean().item(), **(each if len(self.tasks) > 1 else {})}


def check_counts(metrics: Any, fix: str = "float sums belong to `sums`") -> None:
    """Raise `ConfigError` if a tensor in `metrics.counts` is not int64, because float sums depend on the order of the batches. fix: advice
    in the message."""
    for name, count in metrics.counts.items():
        if count.dtype != torch.int64:
            found = str(count.dtype).removeprefix("torch.")
            raise ConfigError(f"{class_name(type(metrics))}.counts[{name!r}] is {found}; it must be int64 ({fix})")


def check_results(results: Any, metrics: Any) -> dict[str, float]:
    """Return `results`, the result of `metrics.compute`. Raise `ConfigError` if it is not a dict from strings to numbers."""
    name = f"{class_name(type(metrics))}.compute"
    if not isinstance(results, dict):
        raise ConfigError(f"{name} returns {described(results)}; it must return a dict of names and floats")
    for key, value in results.items():
        if not isinstance(key, str) or not isinstance(value, (int, float)):
            raise ConfigError(f"{name} returns {described(value)} for {key!r}; it must be a float, as tensor.item() returns it")
    return results
