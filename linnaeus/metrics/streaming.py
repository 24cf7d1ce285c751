"""`Metrics` of a validation pass and `TrainingMetrics` of log rows: streaming, exact over batches and processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.config.contracts import class_name, described
from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError
from linnaeus.progress import ValidationPass


class Metrics(ABC):
    """Accumulators of one validation pass.

    `sums` returns float sums per batch; the caller adds them in batch order, because float addition is order-sensitive. `count` adds
    integers in place, which is exact in any order; the caller all-reduces them. `compute` turns both totals into named results.
    """

    width: int  # K, the length of `sums`
    counts: dict[str, Tensor]  # int64, on the device

    def begin(self, current: ValidationPass, passes: Sequence[ValidationPass]) -> None:
        """Prepare for the pass `current`, one of the `passes` that the run can make. Called once, before the first batch."""
        return None

    @abstractmethod
    def sums(self, outputs: Any, batch: Batch) -> Tensor:
        """Return this batch's contributions to the sums, float64 [K]."""

    @abstractmethod
    def count(self, outputs: Any, batch: Batch) -> None:
        """Add this batch to `counts`."""

    @abstractmethod
    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return named results such as `loss` and `species/top1`, NaN if a metric is undefined. `sums`: float64 [K] on the host, the total
        of `sums`. It is called once with totals of 0 before the training, to list the names."""

    def compute_at_end(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return results that are computed only in the last validation of a run because they are slow, such as confidence intervals.
        They cannot be monitored."""
        return {}

    def class_rows(self, counts: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return a row of named values for each class, for the table of an evaluation. `counts` as in `compute`."""
        return []


class TrainingMetrics:
    """Integer counts of the training steps between two log rows, and the results of a row.

    The base class counts nothing. Its results are `loss` and, with several tasks, `<task>/loss`. A subclass may add counts and results.
    `MetricsTracker` sums the losses and sets everything to 0 after a row."""

    tasks: tuple[str, ...]
    counts: dict[str, Tensor]  # int64, on the device

    def __init__(self, tasks: Sequence[str]) -> None:
        self.tasks, self.counts = tuple(tasks), {}

    def count(self, outputs: Any, batch: Batch) -> None:
        """Add a micro-batch to `counts`, without a device sync."""

    def compute(self, loss_sums: Tensor, valid: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return named results, one of them `loss`. `loss_sums` and `valid`: float64 [T] on the host, the totals of the workload's
        `loss_sums` and `valid_counts`. The default: sum / valid of each task, NaN without valid labels, and the mean over the others."""
        means = loss_sums / torch.where(valid > 0, valid, torch.nan)
        each = {f"{task}/loss": mean for task, mean in zip(self.tasks, means.tolist(), strict=True)}
        return {"loss": means.nanmean().item(), **(each if len(self.tasks) > 1 else {})}


def check_counts(metrics: Any, fix: str = "float sums belong to `sums`") -> None:
    """Raise `ConfigError` with the advice `fix` if `metrics.counts` has a tensor that is not int64: sums of floats depend on the order of
    the batches."""
    for name, count in metrics.counts.items():
        if count.dtype != torch.int64:
            found = str(count.dtype).removeprefix("torch.")
            raise ConfigError(f"{class_name(type(metrics))}.counts[{name!r}] is {found}; it must be int64 ({fix})")


def check_results(results: Any, metrics: Any) -> dict[str, float]:
    """Return the results of `metrics.compute`. Raise `ConfigError` if they are not a dict of texts and numbers."""
    name = f"{class_name(type(metrics))}.compute"
    if not isinstance(results, dict):
        raise ConfigError(f"{name} returns {described(results)}; it must return a dict of names and floats")
    for key, value in results.items():
        if not isinstance(key, str) or not isinstance(value, (int, float)):
            raise ConfigError(f"{name} returns {described(value)} for {key!r}; it must be a float, as tensor.item() returns it")
    return results
