"""Compute the metrics of training batches, and define the counts that all metrics use.

Training metrics are computed at every step, so they are few and cheap: accuracy uses `Scores.greedy_path`, which needs few of the scores.

Counts are integers. A fraction in [0, 1] is counted in units of 2^-32, so sums of up to 2^31 samples are exact integers in any order; each
sample is rounded by less than 1.2e-10.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import TrainingMetrics
from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.inputs.preparation import masking_counts
from linnaeus.workloads.taxonomy.losses import rank_loss_sums, valid_counts
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

UNIT = 2.0**32


class TaxonomyTrainingMetrics(TrainingMetrics):
    """Metrics of the training rows of metrics.jsonl: `loss`, `<rank>/loss`, `<rank>/top1` (a mixed sample is compared with the label of the
    larger share), and `masked/<COMPONENT>`: of the samples in which the component is known, the share in which it was masked."""

    def __init__(
        self,
        tree: TaxonomyTree,
        device: torch.device,
        components: Sequence[str] = (),
        compiled: bool = False,
    ) -> None:
        """`components`: the metadata components whose masking is counted. `compiled`: True to count with `torch.compile`."""
        super().__init__(tree.ranks)
        self._count = torch.compile(self._add_counts, dynamic=False) if compiled else self._add_counts
        self.components = tuple(components)
        self.counts = {name: zero_counts(device, len(tree.ranks)) for name in ("top1", "n")}
        self._sizes = torch.tensor(tree.sizes, device=device)
        if self.components:
            self.counts["components"] = zero_counts(device, 2, len(self.components))  # known, known and not masked

    def count(self, outputs: Any, batch: Batch) -> None:
        self._count(outputs["scores"], batch)

    def _add_counts(self, scores: Scores, batch: Batch) -> None:
        label, known = main_labels(batch, self._sizes)
        self.counts["top1"] += ((scores.greedy_path() == label) & known).sum(0)
        self.counts["n"] += known.sum(0)
        if self.components:
            self.counts["components"] += masking_counts(batch)

    def compute(self, loss_sums: Tensor, valid: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        results = mean_losses(self.tasks, torch.cat([loss_sums, valid]))
        results |= {f"{rank}/top1": v for rank, v in zip(self.tasks, ratio(counts["top1"], counts["n"]).tolist(), strict=True)}
        if self.components:
            masked = 1 - ratio(counts["components"][1], counts["components"][0])
            results |= {f"masked/{name}": v for name, v in zip(self.components, masked.tolist(), strict=True)}
        return results


def main_labels(batch: Batch, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the labels int64 [B, R], -1 where missing, and bool [B, R], True where the label is known.

    `sizes`: int64 [R], number of classes of each rank. A null label (equal to the number of classes) is returned as missing. All labels of
    a sample of weight 0 are returned as missing, too. For a mixed sample the label of the larger share is returned."""
    label = batch["label"]
    if "label2" in batch:
        label = torch.where((batch["share"] >= 0.5).unsqueeze(1), label, batch["label2"])
    known = (label >= 0) & (label < sizes) & (batch["weight"] > 0).unsqueeze(1)
    return torch.where(known, label, -1), known


def loss_and_counts(outputs: Any, batch: Batch) -> Tensor:
    """Return the sums [R] of plain cross-entropy, for any training loss, and then the weights [R] of the labels, joined: float64 [2R]."""
    return torch.cat([rank_loss_sums(outputs["scores"], batch).double(), valid_counts(batch)])


def mean_losses(ranks: Sequence[str], sums: Tensor) -> dict[str, float]:
    """Return the mean loss of each rank as `<rank>/loss`, NaN for a rank without labels, and the unweighted mean of these losses as `loss`.

    `sums`: [2R], the loss sum of each rank, then the weight of its labels."""
    means = ratio(*sums.double().cpu().view(2, -1))
    return {"loss": means.nanmean().item()} | {f"{rank}/loss": v for rank, v in zip(ranks, means.tolist(), strict=True)}


def zero_counts(device: torch.device, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=device)


def ratio(hits: Tensor, total: Tensor) -> Tensor:
    """Return hits / total, float64, elementwise; NaN for a total of 0."""
    return hits.double() / torch.where(total > 0, total.double(), torch.nan)


def to_fixed_point(fraction: Tensor) -> Tensor:
    """Return fractions in [0, 1] as integers in units of 1 / UNIT, int64; 0 for NaN."""
    return (fraction.double().nan_to_num(nan=0.0) * UNIT).round().long()
