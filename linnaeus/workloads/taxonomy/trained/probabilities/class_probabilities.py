"""Compute the probabilities of classes from log-probabilities: without the null class ("no taxon at this rank") and without impossible
classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def class_log_probs(log_probs: Tensor, size: int) -> Tensor:
    """Return the log-probabilities [B, size] of the classes of a rank, normalised so that the probabilities sum to 1.

    `log_probs`: [B, size], or [B, size + 1] with the null class last. The null class is dropped: the result is conditional on a taxon at
    this rank. In a tree with missing ranks, the probabilities before normalisation may sum to less than 1."""
    classes = log_probs[:, :size]
    return classes - classes.logsumexp(1, keepdim=True) if classes.shape[1] else classes


def only_possible(probabilities: Sequence[Tensor], path: Tensor, possible: Tensor) -> tuple[list[Tensor], Tensor]:
    """Set impossible classes to 0 in the probabilities [B, C_r] of each rank and to -1 in the path, int64 [B, R]. Return both.

    `possible`: bool [T], a value per node of the tree. Only ranks without any possible class change: at the other ranks `Scores.among` has
    already made the probabilities of impossible classes 0."""
    masks = possible.split([p.shape[1] for p in probabilities])
    columns = [
        torch.where((own >= 0) & mask[own.clamp(min=0)], own, -1) if len(mask) else own
        for own, mask in zip(path.unbind(1), masks, strict=True)
    ]
    return [p * mask for p, mask in zip(probabilities, masks, strict=True)], torch.stack(columns, 1)
