"""`BatchView`: the quantities of one batch that several metrics need, each computed once.

A head that learns null labels, or a tree with holes, gives some probability to "no class at this rank". Labels are compared with classes
only, so probabilities are conditional on a class: divided by their sum over the classes of the rank. Scores of NaN predict nothing.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.metrics.decisions import Decisions, decide
from linnaeus.workloads.taxonomy.metrics.training_metrics import main_labels
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables


class BatchView:
    """A prepared validation batch and its scores; B samples, R ranks."""

    label: Tensor  # int64 [B, R], -1 where missing
    known: Tensor  # bool [B, R]
    real: Tensor  # bool [B]: not a placeholder, and decodable
    sample: Tensor  # int64 [B]: index into the dataset
    log_probs: list[Tensor]  # per rank [B, C_r], conditional on a class
    best_log_p: Tensor  # [B, R]: log-probability of the most probable class of each rank
    best: Tensor  # int64 [B, R]: that class, ties to the lower index
    path: Tensor  # int64 [B, R]: the predicted class of each rank, -1 for none
    right: Tensor  # bool [B, R]: known and predicted
    finest_known: Tensor  # bool [B]: labelled at the finest rank
    finest_right: Tensor  # bool [B]: the label at the finest rank is predicted

    def __init__(self, tables: TreeTables, scores: Scores, batch: Batch) -> None:
        self.tables, self.consistent, self._scores = tables, scores.consistent, scores
        self.label, self.known = main_labels(batch, tables.sizes_tensor)
        self.real, self.sample = batch["weight"] > 0, batch["sample"]
        self.log_probs = _class_log_probs(scores, tables.sizes)
        best = [log_p.max(1) for log_p in self.log_probs]
        self.best_log_p, self.best = torch.stack([b.values for b in best], 1), torch.stack([b.indices for b in best], 1)
        self.path = torch.where(self.best_log_p.isnan(), -1, scores.path())
        self.right = (self.path == self.label) & self.known
        self.finest_known, self.finest_right = self.known[:, -1], self.right[:, -1]

    @cached_property
    def null_predicted(self) -> Tensor:
        """Return True where the null label is more probable than every class of the rank, bool [B, R]; heads with null labels only."""
        pairs = zip(self._scores.log_probs(), self.tables.sizes, strict=True)
        return torch.stack([log_p[:, size] > log_p[:, :size].amax(1) for log_p, size in pairs], 1)

    @cached_property
    def predicted(self) -> Tensor:
        """Return the node of the deepest predicted class, int64 [B]; T if nothing is predicted."""
        return self.tables.deepest(self.path)

    @cached_property
    def predicted_path(self) -> Tensor:
        """Return the path of `predicted`, int64 [B, R]. It differs from `path` where predictions contradict the tree."""
        return self.tables.paths[self.predicted]

    @cached_property
    def truth(self) -> Tensor:
        """Return the node of the deepest label, int64 [B]; T without labels."""
        return self.tables.deepest(self.label)

    @cached_property
    def height(self) -> Tensor:
        """Return the height of the lowest common ancestor of prediction and truth, int64 [B]."""
        return self.tables.height(self.predicted, self.truth)

    @cached_property
    def decisions(self) -> Decisions:
        """Return the best finest classes by probability and by risk."""
        return decide(self.tables, self.log_probs[-1], self.predicted_path)


def _class_log_probs(scores: Scores, sizes: tuple[int, ...]) -> list[Tensor]:
    """Return the log-probabilities of classes conditional on a class, per rank [B, C_r]. A softmax over the classes needs no division."""
    parts = []
    for log_p, size in zip(scores.log_probs(), sizes, strict=True):
        classes = log_p[:, :size].contiguous()  # contiguous by sample, for reductions over classes
        normalised = not scores.consistent and log_p.shape[1] == size
        parts.append(classes if normalised else classes - classes.logsumexp(1, keepdim=True))
    return parts
