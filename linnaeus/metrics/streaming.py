"""`Metrics`: the abstract class of streaming metrics, exact over batches and processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from linnaeus.data.samples import Batch


class Metrics(ABC):
    """Accumulators of one validation pass, or of the training steps between two log rows.

    `sums` returns float sums per batch; the caller adds them in batch order, because float addition is order-sensitive. `count` adds
    integers in place, which is exact in any order; the caller all-reduces them. `compute` turns both totals into named results.
    """

    width: int  # K, the length of `sums`
    counts: dict[str, Tensor]  # int64, on the device

    @abstractmethod
    def sums(self, outputs: Any, batch: Batch) -> Tensor:
        """Return this batch's contributions to the sums, float64 [K]."""

    @abstractmethod
    def count(self, outputs: Any, batch: Batch) -> None:
        """Add this batch to `counts`."""

    @abstractmethod
    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return named results such as `loss` and `species/top1`, NaN if a metric is undefined. For training metrics `sums` is float64
        [2T]: the loss sums and the valid label counts of the T tasks, which the training loop computes."""

    def compute_at_end(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return results that are computed only in the last validation of a run because they are slow, such as confidence intervals.
        They cannot be monitored."""
        return {}
