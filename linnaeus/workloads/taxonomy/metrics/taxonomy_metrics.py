"""`TaxonomyMetrics`: all metrics of a validation pass, computed by parts that share one `BatchView` of each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from linnaeus.config.registry import registered_parts
from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import Metrics
from linnaeus.workloads.taxonomy.metrics.accuracy import Accuracy, ClassAccuracy, NullAccuracy, PathAccuracy
from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.bootstrap import Intervals
from linnaeus.workloads.taxonomy.metrics.confidence import Calibration, HierarchicalRisk, RiskCoverage
from linnaeus.workloads.taxonomy.metrics.sample_record import RECORD, SampleRecord, Samples
from linnaeus.workloads.taxonomy.metrics.training_metrics import loss_and_counts, mean_losses
from linnaeus.workloads.taxonomy.metrics.tree_distance import Distance, HierarchicalF1
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class BatchCounter(Protocol):
    """Counts of validation batches."""

    counts: dict[str, Tensor]  # int64, on the device; names are unique over all counters

    def count(self, view: BatchView) -> None:
        """Add a batch to `counts`."""
        ...


class MetricPart(BatchCounter, Protocol):
    """Metrics with counts of their own."""

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return named results from counts on the host, summed over the process ranks."""
        ...


class TaxonomyMetrics(Metrics):
    """The metrics listed in the package. They read the head's `Scores` from `outputs["scores"]`."""

    def __init__(
        self,
        tree: TaxonomyTree,
        device: torch.device,
        training_counts: Sequence[np.ndarray],
        groups: np.ndarray | None,
        size: int,
        consistent: bool = False,
        nulls: bool = False,
    ) -> None:
        """`training_counts`: per rank int64 [C_r], training labels of each class. `size`: samples of the validation set. `groups`: int64
        [size], the group of each sample, such as its observer; None: every sample is a group. `consistent`: the head's scores are one
        distribution on the tree. `nulls`: the head learns null labels."""
        self.tables = TreeTables(tree, device)
        self.width = 2 * len(tree.ranks)
        self.parts: list[MetricPart] = [
            Accuracy(self.tables, device, consistent),
            ClassAccuracy(self.tables, device, training_counts),
            PathAccuracy(self.tables, device),
            Distance(self.tables, device),
            HierarchicalF1(self.tables, device),
            Calibration(self.tables, device),
            HierarchicalRisk(self.tables, device),
            *([NullAccuracy(self.tables, device)] if nulls else []),
            *(part.build(tree, device) for part in registered_parts("metric").values()),
        ]
        self.counters: list[BatchCounter] = [*self.parts, SampleRecord(self.tables, device, size)]
        self.risk, self.groups = RiskCoverage(), groups
        self.counts: dict[str, Tensor] = {name: count for counter in self.counters for name, count in counter.counts.items()}

    def sums(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the sums of plain cross-entropy and the weight of the labels, float64 [2R]."""
        return loss_and_counts(outputs, batch)

    def count(self, outputs: Any, batch: Batch) -> None:
        view = BatchView(self.tables, outputs["scores"], batch)
        for counter in self.counters:
            counter.count(view)

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        host = {name: count.cpu() for name, count in counts.items()}
        results = mean_losses(self.tables.ranks, sums)
        for part in self.parts:
            results |= part.compute(host)
        return results | self.risk.compute(Samples(host[RECORD], len(self.tables.ranks)))

    def compute_at_end(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the confidence intervals, which take longer than all other metrics."""
        intervals = Intervals(self.tables.ranks, len(counts[RECORD]), self.groups)
        return intervals.compute(Samples(counts[RECORD], len(self.tables.ranks)))
