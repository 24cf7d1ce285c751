"""`TaxonomyMetrics`: all metrics of a validation pass, put together from parts that look at one view of each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import Metrics
from linnaeus.workloads.taxonomy.metrics.accuracy import Accuracy, Paths
from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.bootstrap import Intervals
from linnaeus.workloads.taxonomy.metrics.calibration import Calibration
from linnaeus.workloads.taxonomy.metrics.counting import Counter, Part
from linnaeus.workloads.taxonomy.metrics.distance import Distance
from linnaeus.workloads.taxonomy.metrics.hierarchy import Hierarchy
from linnaeus.workloads.taxonomy.metrics.nulls import Nulls
from linnaeus.workloads.taxonomy.metrics.sample_record import RECORD, SampleRecord, Samples
from linnaeus.workloads.taxonomy.metrics.selective import HierarchicalRisk, RiskCoverage
from linnaeus.workloads.taxonomy.metrics.shots import ClassAccuracy
from linnaeus.workloads.taxonomy.metrics.tables import TreeTables
from linnaeus.workloads.taxonomy.metrics.training import loss_and_labels, losses
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class TaxonomyMetrics(Metrics):
    """See the package for the metrics. Implements `base.Metrics`; `outputs["scores"]` are the head's `Scores`."""

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
        """`training_counts`: per rank int64 [C_r], training labels of each class. `size`: samples of the validation set; `groups`
        int64 [size]: which of them belong together, None: none do. `consistent`: the head's scores are one distribution on the tree;
        `nulls`: it learns null labels."""
        self.tables = TreeTables(tree, device)
        self.width = 2 * len(tree.ranks)
        self.parts: list[Part] = [
            Accuracy(self.tables, device, consistent),
            ClassAccuracy(self.tables, device, training_counts),
            Paths(self.tables, device),
            Distance(self.tables, device),
            Hierarchy(self.tables, device),
            Calibration(self.tables, device),
            HierarchicalRisk(self.tables, device),
            *([Nulls(self.tables, device)] if nulls else []),
        ]
        self.counters: list[Counter] = [*self.parts, SampleRecord(self.tables, device, size)]
        self.risk, self.groups = RiskCoverage(), groups
        self.counts: dict[str, Tensor] = {name: count for counter in self.counters for name, count in counter.counts.items()}

    def sums(self, outputs: Any, batch: Batch) -> Tensor:
        """float64 [2R]: sums of plain cross-entropy, and the weight of the labels."""
        return loss_and_labels(outputs, batch)

    def count(self, outputs: Any, batch: Batch) -> None:
        view = BatchView(self.tables, outputs["scores"], batch)
        for counter in self.counters:
            counter.count(view)

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        host = {name: count.cpu() for name, count in counts.items()}
        results = losses(self.tables.ranks, sums)
        for part in self.parts:
            results |= part.compute(host)
        return results | self.risk.compute(Samples(host[RECORD], len(self.tables.ranks)))

    def compute_at_end(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """The confidence intervals, which take longer than all the rest."""
        intervals = Intervals(self.tables.ranks, len(counts[RECORD]), self.groups)
        return intervals.compute(Samples(counts[RECORD], len(self.tables.ranks)))
