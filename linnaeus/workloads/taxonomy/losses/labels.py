"""Which labels of a batch count, and how much: the one rule of the loss and of its denominator.

A label's weight is the sample's weight x its share of a mixed sample x its class weight; 0 for a null label, and under the marginal
loss for every label but the finest. The loss of a rank is the sum of weight x loss, its denominator the sum of weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.data.samples import Batch
from linnaeus.workloads.taxonomy.heads import Scores


class LabelWeights(nn.Module):
    """Class weights as buffers. Rows of `table`: per rank its C_r classes, the null class, and "no label" (0)."""

    table: Tensor  # float64 [sum of C_r + 2]
    start: Tensor  # int64 [R]: row of class 0 of each rank
    nothing: Tensor  # int64 [R]: row, counted from there, of a null label

    def __init__(self, weights: Sequence[np.ndarray], finest_only: bool) -> None:
        """`weights`: per rank float64 [C_r + 1], the null class last. `finest_only`: the marginal loss."""
        super().__init__()
        sizes = np.array([len(w) + 1 for w in weights])
        table = np.concatenate([part for w in weights for part in (w, [0.0])])
        self.register_buffer("table", torch.from_numpy(table), persistent=False)
        self.register_buffer("start", torch.from_numpy(np.cumsum(sizes) - sizes), persistent=False)
        self.register_buffer("nothing", torch.from_numpy(sizes - 1), persistent=False)
        self.finest_only = finest_only

    def forward(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Labels int64 [B, R] and their weights, float [B, R] of the table's type: once, or twice where pairs may be mixed."""
        return [(label, self.of(label) * weight.unsqueeze(1)) for label, weight in _halves(batch, self.table.dtype)]

    def of(self, label: Tensor) -> Tensor:
        """Class weights [B, R] of labels int64 [B, R], 0 where they do not count."""
        weight = self.table[self.start + torch.where(label < 0, self.nothing, label)]
        return weight * is_finest(label) if self.finest_only else weight

    def sums(self, batch: Batch) -> Tensor:
        """[R] of a host batch: what a loss of this batch is divided by."""
        return torch.stack([weight for _, weight in self(batch)]).sum((0, 1))


def is_finest(label: Tensor) -> Tensor:
    """bool [B, R]: there is a label (int64 [B, R], -1 null), and none at a finer rank."""
    known = label >= 0
    return known & (known.flip(1).cumsum(1).flip(1) == 1)


def _halves(batch: Batch, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """The one or two labels of each sample and their weights, float [B]."""
    weight = batch["weight"].to(dtype)
    if "label2" not in batch:
        return [(batch["label"], weight)]
    share = batch["share"].to(dtype)
    return [(batch["label"], weight * share), (batch["label2"], weight * (1 - share))]


def rank_loss_sums(scores: Scores, batch: Batch) -> Tensor:
    """[R] sums of plain cross-entropy, whatever the training does: the validation loss, to be divided by `valid_counts`."""
    parts = [(torch.stack(scores.at(label)[0]), weight) for label, weight in _halves(batch, torch.float32)]
    return -torch.stack([(log_p * weight.to(log_p.dtype)).sum(1) for log_p, weight in parts]).sum(0)


def valid_counts(batch: Batch) -> Tensor:
    """float64 [R]: the weight of the valid labels of each rank where the batch lies, no class weighing more than another."""
    parts = [(label >= 0) * weight.unsqueeze(1) for label, weight in _halves(batch, torch.float64)]
    return torch.stack(parts).sum((0, 1))


def weighted_hierarchical_loss(sums: Tensor, weights: Tensor, denominators: Tensor) -> Tensor:
    """The loss of a micro-batch: sum over ranks of weight x sum / denominator, all [R]. The denominators are the sums of the label
    weights of the whole *global* batch, so that losses of micro-batches add up to the loss of the global batch; a rank
    without any valid label has sum 0 and adds 0."""
    safe = torch.where(denominators > 0, denominators, torch.ones_like(denominators))
    return (sums * (weights / safe).to(sums.dtype)).sum()
