"""`BatchView`: what the metrics need of one batch, each thing computed once.

A head that learns null labels, or a tree with holes, gives probability to "no class at this rank". Labels are compared with classes,
so probabilities are taken given that there is a class: divided by the sum over the classes of the rank. Scores that are no numbers
predict nothing.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.metrics.decisions import Decisions, decide
from linnaeus.workloads.taxonomy.metrics.tables import TreeTables


class BatchView:
    """A prepared validation batch and its scores; B samples, R ranks."""

    label: Tensor  # int64 [B, R], -1 where it is not known
    known: Tensor  # bool [B, R]
    real: Tensor  # bool [B]: neither a stand-in nor undecodable
    sample: Tensor  # int64 [B]: index into the dataset
    log_probs: list[Tensor]  # per rank [B, C_r], given that there is a class
    best_log_p: Tensor  # [B, R] of the likeliest class of each rank
    best: Tensor  # int64 [B, R]: that class, the first of equals
    path: Tensor  # int64 [B, R]: the predicted class of each rank, -1 for none
    right: Tensor  # bool [B, R]: known, and predicted

    def __init__(self, tables: TreeTables, scores: Scores, batch: Batch) -> None:
        self.tables, self.consistent, self._scores = tables, scores.consistent, scores
        self.label, self.known = labels_of(batch, tables.size)
        self.real, self.sample = batch["weight"] > 0, batch["sample"]
        self.log_probs = _given_a_class(scores, tables.sizes)
        best = [log_p.max(1) for log_p in self.log_probs]
        self.best_log_p, self.best = torch.stack([b.values for b in best], 1), torch.stack([b.indices for b in best], 1)
        self.path = torch.where(self.best_log_p.isnan(), -1, scores.path())
        self.right = (self.path == self.label) & self.known

    @cached_property
    def null_likeliest(self) -> Tensor:
        """bool [B, R]: the head, which learns null labels, gives "no class at this rank" more than any class."""
        pairs = zip(self._scores.log_probs(), self.tables.sizes, strict=True)
        return torch.stack([log_p[:, size] > log_p[:, :size].amax(1) for log_p, size in pairs], 1)

    @cached_property
    def predicted(self) -> Tensor:
        """int64 [B]: node of the deepest predicted class, T where nothing is predicted."""
        return self.tables.deepest(self.path)

    @cached_property
    def predicted_path(self) -> Tensor:
        """int64 [B, R]: the classes above `predicted`, itself included. Not `path` where predictions contradict the tree."""
        return self.tables.paths[self.predicted]

    @cached_property
    def truth(self) -> Tensor:
        """int64 [B]: node of the deepest label, T where there is none."""
        return self.tables.deepest(self.label)

    @property
    def finest_known(self) -> Tensor:
        """bool [B]"""
        return self.known[:, -1]

    @property
    def finest_right(self) -> Tensor:
        """bool [B]"""
        return self.right[:, -1]

    @cached_property
    def height(self) -> Tensor:
        """int64 [B]: height of the lowest common ancestor of prediction and truth."""
        return self.tables.height(self.predicted, self.truth)

    @cached_property
    def decisions(self) -> Decisions:
        return decide(self.tables, self.log_probs[-1], self.predicted_path)


def labels_of(batch: Batch, size: Tensor) -> tuple[Tensor, Tensor]:
    """Labels int64 [B, R], of a mixed sample those with the larger share, -1 where they are not known; and where they are, bool."""
    label = batch["label"]
    if "label2" in batch:
        label = torch.where((batch["share"] >= 0.5).unsqueeze(1), label, batch["label2"])
    known = (label >= 0) & (label < size) & (batch["weight"] > 0).unsqueeze(1)
    return torch.where(known, label, -1), known


def _given_a_class(scores: Scores, sizes: tuple[int, ...]) -> list[Tensor]:
    """Per rank [B, C_r]. A softmax over the classes of a rank already is."""
    parts = []
    for log_p, size in zip(scores.log_probs(), sizes, strict=True):
        classes = log_p[:, :size].contiguous()  # by samples, as reductions over classes want it
        normalised = not scores.consistent and log_p.shape[1] == size
        parts.append(classes if normalised else classes - classes.logsumexp(1, keepdim=True))
    return parts
