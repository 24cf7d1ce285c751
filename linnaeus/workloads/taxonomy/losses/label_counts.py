"""Count the training labels of each class; compute class weights and the priors of logit adjustment from the counts.

A row is counted as (its draws per epoch) x (its weight), so class weights do not repeat what balanced sampling has done. A class without
training rows is counted as one row: its class weight is never used, but its prior is. If the head learns null labels (`head.nulls`), the
null class of a rank is counted, too. Its rows are the rows whose missing label can be learnt as a null label, for any value of
`schedule.null_mask_prob`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from linnaeus.workloads.taxonomy.heads import Priors
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


@dataclass(frozen=True)
class LabelCounts:
    """Numbers of training rows with each label at each rank (`ranks`), and with each taxon as finest label (`finest`). T: number of taxa.

    The arrays are float64 if rows have weights, otherwise int64."""

    ranks: tuple[np.ndarray, ...]  # per rank int64 [C_r + 1]: number of rows of each class, then of rows with a learnable null label
    finest: np.ndarray  # int64 [T + 1]: number of rows whose finest label is each taxon; last, of rows without a label

    @classmethod
    def from_labels(
        cls, tree: TaxonomyTree, labels: np.ndarray, weights: np.ndarray | None = None, learnable: np.ndarray | None = None
    ) -> LabelCounts:
        """Return the counts of the training rows with these labels, int64 [N, R], -1 for a missing label.

        `weights`: float64 [N], row i is counted as `weights[i]` rows; None: each row is counted once. `learnable`: bool [N, R], True for
        missing labels that can be learnt as null labels; None: all missing labels can."""
        ranks, finest = [], np.full(len(labels), tree.offsets[-1])
        for r, size in enumerate(tree.sizes):
            column = labels[:, r]
            null = size if learnable is None else np.where(learnable[:, r], size, size + 1)
            ranks.append(np.bincount(np.where(column < 0, null, column), weights, minlength=size + 2)[: size + 1])
            finest = np.where(column < 0, finest, tree.offsets[r] + column)
        return cls(tuple(ranks), np.bincount(finest, weights, minlength=tree.offsets[-1] + 1))

    def priors(self, dtype: torch.dtype) -> Priors:
        """Return log(count / number of rows) of each count, in `dtype`."""
        rows = self.finest.sum() or 1
        log_share = lambda counts: torch.from_numpy(np.log(np.where(counts > 0, counts, 1) / rows)).to(dtype)
        return Priors(tuple(log_share(counts) for counts in self.ranks), log_share(self.finest))


def class_weights(counts: np.ndarray, kind: str, beta: float | None, cap: float | None) -> np.ndarray:
    """Return the weight of each class from `counts` [C], its number of labels: float64 [C], with mean 1 over all labels and no weight above
    `cap` (> 1; None: no limit).

    `kind` none: 1; inverse: proportional to 1 / n; effective: proportional to (1 - beta) / (1 - beta^n), the inverse of the effective
    number of samples (Cui et al. 2019), which is 1 at beta 0 and tends to `inverse` as beta tends to 1."""
    if kind == "none" or not counts.any():
        return np.ones(len(counts))
    n = np.where(counts > 0, counts, 1).astype(np.float64)
    if kind == "inverse":
        raw = 1 / n
    else:
        assert beta is not None, "check_loss_config has checked it"
        raw = (1 - beta) / -np.expm1(n * np.log(beta))
    if cap is None:
        return raw * counts.sum() / (counts * raw).sum()
    return np.minimum(raw * _scale_below(cap, counts, raw), cap)


def _scale_below(cap: float, counts: np.ndarray, raw: np.ndarray) -> float:
    """Return the factor s for which the weights min(s x raw, cap) have mean 1 over all labels.

    If the classes with the k largest raw weights get the cap, the labels of the other classes share the rest of the total weight, which
    gives s. k is the smallest number for which this s puts no other class above the cap."""
    order = np.argsort(-raw)
    n, falling = counts[order].astype(np.float64), raw[order]
    left = n.sum() - cap * (np.cumsum(n) - n)  # total weight of the others, for k = 0 ..
    below = np.cumsum((n * falling)[::-1])[::-1]  # sum of n x raw over the others
    scales = np.divide(left, below, out=np.zeros_like(left), where=below > 0)
    return float(scales[np.argmax(scales * falling <= cap)])
