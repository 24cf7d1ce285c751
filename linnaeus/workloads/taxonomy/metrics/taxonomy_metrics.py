"""`TaxonomyMetrics`: all metrics of a validation pass, computed by parts that share one `BatchView` for each batch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from linnaeus.config.contracts import check_members, class_name
from linnaeus.config.registry import Part, registered_parts
from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError
from linnaeus.metrics.streaming import Metrics, check_counts, check_results
from linnaeus.progress import ValidationPass
from linnaeus.workloads.taxonomy.metrics.accuracy import Accuracy, ClassAccuracy, NullAccuracy, PathAccuracy
from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.confidence import Calibration, HierarchicalRisk
from linnaeus.workloads.taxonomy.metrics.sample_answers import Answers
from linnaeus.workloads.taxonomy.metrics.sample_record import SampleRecord
from linnaeus.workloads.taxonomy.metrics.training_metrics import loss_and_counts, mean_losses
from linnaeus.workloads.taxonomy.metrics.tree_distance import Distance, HierarchicalF1
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class MetricPart(Protocol):
    """Metrics that are computed from counts of their own. `TaxonomyMetrics` consists of such parts."""

    counts: dict[str, Tensor]  # int64, on the device; names are unique over all parts

    def count(self, view: BatchView) -> None:
        """Add a batch to `counts`."""

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return metric name -> result. `counts`: the counts of this part on the host, summed over all processes."""


class TaxonomyMetrics(Metrics):
    """Metrics that the docstring of the package `metrics` lists. They read the head's `Scores` from `outputs["scores"]`."""

    def __init__(
        self,
        tree: TaxonomyTree,
        device: torch.device,
        training_counts: Sequence[np.ndarray],
        groups: np.ndarray | None,
        size: int,
        consistent: bool = False,
        nulls: bool = False,
        metadata: Mapping[str, np.ndarray] | None = None,
        more: Sequence[MetricPart] = (),
        names: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """Build the parts for a validation set of `size` samples.

        `training_counts`: per rank int64 [C_r], number of training labels of each class.
        `groups`: int64 [size], the group of each sample, such as its observer; None: every sample is a group.
        `consistent`: True if the scores of the head are one distribution on the tree.
        `nulls`: True if the head learns null labels.
        `metadata`: name of a component -> bool [size], True for samples in which the component is known.
        `more`: parts to add to the built-in parts and the parts of plugins.
        `names()`: names of the samples in dataset order, for tables; None: their numbers."""
        self.tree, self.tree_tables = tree, TreeTables(tree, device)
        self.classes = ClassAccuracy(self.tree_tables, device, training_counts)
        self.record, self.answers = SampleRecord(self.tree_tables, device, size), Answers(self.tree_tables, device, size, names)
        self.calibration = Calibration(self.tree_tables, device)
        self.masked = False  # in a pass that masks metadata
        self.width = 2 * len(tree.ranks)
        self.parts: list[MetricPart] = [
            Accuracy(self.tree_tables, device, consistent),
            self.classes,
            PathAccuracy(self.tree_tables, device),
            Distance(self.tree_tables, device),
            HierarchicalF1(self.tree_tables, device),
            self.calibration,
            HierarchicalRisk(self.tree_tables, device),
            *([NullAccuracy(self.tree_tables, device)] if nulls else []),
            *(_build_part(name, part, tree, device) for name, part in registered_parts("metric").items()),
            *more,
            self.record,
            self.answers,
        ]
        self.groups, self.metadata = groups, metadata or {}
        self.counts: dict[str, Tensor] = {}
        for part in self.parts:
            _add_names(self.counts, part.counts, part, "counts")

    def begin(self, current: ValidationPass, passes: Sequence[ValidationPass]) -> None:
        """Choose the samples of `with_<components>_top1`. In a pass that masks metadata these are the samples that have some of the masked
        metadata. In the normal pass there is one such metric for each pass in `passes` that masks metadata."""
        self.masked = bool(current.masked)
        masking = {p.key.partition("_mask_")[2]: p.masked for p in ([current] if current.masked else passes) if p.masked}
        rows = {name: np.any([self.metadata[component] for component in masked], axis=0) for name, masked in masking.items()}
        self.record.rows = {name: own for name, own in rows.items() if own.any() and not own.all()}

    def sums(self, outputs: Any, batch: Batch) -> Tensor:
        return loss_and_counts(outputs, batch)

    def count(self, outputs: Any, batch: Batch) -> None:
        view = BatchView(self.tree_tables, outputs["scores"], batch)
        for part in self.parts:
            part.count(view)

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        host = {name: count.cpu() for name, count in counts.items()}
        results = mean_losses(self.tree_tables.ranks, sums)
        for part in self.parts:
            _add_names(results, check_results(part.compute(host), part), part, "compute")
        return results

    def compute_at_end(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return metric name -> bound of its confidence interval. Intervals take longer than all other metrics, so they are computed only
        in the last validations of a run."""
        return self.record.intervals(counts, self.groups)

    def class_rows(self, counts: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return the rows of the table `classes` (`ClassAccuracy.rows`)."""
        return self.classes.rows(self.tree, counts)

    def tables(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, Iterable[dict[str, Any]]]:
        """Return the tables `samples`, `classes`, `confusions`, `reliability` and `baselines`; only `samples` in a pass that masks
        metadata."""
        host = {name: count.cpu() for name, count in counts.items()}
        tables: dict[str, Iterable[dict[str, Any]]] = {"samples": self.answers.sample_rows(host, self.groups, self.metadata)}
        if self.masked:
            return tables
        classes = {"classes": self.class_rows(host), "confusions": self.answers.confusion_rows(host)}
        return tables | classes | {"reliability": self.calibration.rows(host), "baselines": self.classes.baselines(host)}


def _build_part(name: str, part: Part, tree: TaxonomyTree, device: torch.device) -> MetricPart:
    """Return the metrics of a plugin. Raise `ConfigError` if the object lacks a member or has counts that are not int64."""
    metric = check_members(part.build(tree, device), MetricPart, f"the metric {name}: the builder returns")
    check_counts(metric, "for a fraction use two counts")
    return metric


def _add_names(known: dict[str, Any], new: Mapping[str, Any], part: MetricPart, member: str) -> None:
    """Add the entries of `new` to `known`. Raise `ConfigError` for a name that `known` already has, since one of the two values would be
    lost. `member`: "counts" or "compute", the member of `part` that defines the names, for the message."""
    if taken := sorted(known.keys() & new.keys()):
        raise ConfigError(f"{class_name(type(part))}.{member} has the name {taken[0]!r}, which another metric has; choose another name")
    known |= new
