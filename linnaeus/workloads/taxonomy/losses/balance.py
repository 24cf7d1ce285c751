"""How often each taxon occurs among the training labels, and what follows from it: class weights and the priors of logit adjustment.

Where sampling or weights make rows count for more or less, so do they here: what balanced sampling has evened out is not evened out twice.
A class that no training row has is taken to have one: its weight never acts, but its prior does. Where the head learns null labels
(`head.nulls`) the null class of a rank is a class like others, and its count that of all null labels that can be learnt, whatever the
schedule lets in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from linnaeus.workloads.taxonomy.heads import Priors
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


@dataclass(frozen=True)
class LabelCounts:
    """Counts of training rows, float64 where rows count for more or less than one. T taxa in all."""

    ranks: tuple[np.ndarray, ...]  # per rank int64 [C_r + 1]: rows of each class, then rows with a null label that can be learnt
    finest: np.ndarray  # int64 [T + 1]: rows whose finest label is this taxon; last, rows without any

    @classmethod
    def of(cls, tree: TaxonomyTree, labels: np.ndarray, mass: np.ndarray | None = None, learnt: np.ndarray | None = None) -> LabelCounts:
        """Of the labels of the training rows, int64 [N, R], -1 for null; `mass` float64 [N]: what each row counts for, None: one;
        `learnt` bool [N, R]: the null labels that can be learnt, None: all."""
        ranks, finest = [], np.full(len(labels), tree.offsets[-1])
        for r, size in enumerate(tree.sizes):
            column = labels[:, r]
            null = size if learnt is None else np.where(learnt[:, r], size, size + 1)
            ranks.append(np.bincount(np.where(column < 0, null, column), mass, minlength=size + 2)[: size + 1])
            finest = np.where(column < 0, finest, tree.offsets[r] + column)
        return cls(tuple(ranks), np.bincount(finest, mass, minlength=tree.offsets[-1] + 1))

    def priors(self, dtype: torch.dtype) -> Priors:
        """Logarithms of the shares of all rows."""
        rows = self.finest.sum() or 1
        log_share = lambda counts: torch.from_numpy(np.log(np.where(counts > 0, counts, 1) / rows)).to(dtype)
        return Priors(tuple(log_share(counts) for counts in self.ranks), log_share(self.finest))


def class_weights(counts: np.ndarray, kind: str, beta: float | None, cap: float | None) -> np.ndarray:
    """float64 [C]: weights of classes with these counts [C]. The mean over all labels is 1, and none is above `cap` (> 1).

    `none`: 1. `inverse`: in proportion to 1 / n. `effective`: to (1 - beta) / (1 - beta^n), one over the effective number of samples
    (Cui et al. 2019), from no difference at beta 0 to `inverse` as beta nears 1."""
    if kind == "none" or not counts.any():
        return np.ones(len(counts))
    n = np.where(counts > 0, counts, 1).astype(np.float64)
    if kind == "inverse":
        raw = 1 / n
    else:
        assert beta is not None, "checked with the configuration"
        raw = (1 - beta) / -np.expm1(n * np.log(beta))
    if cap is None:
        return raw * counts.sum() / (counts * raw).sum()
    return np.minimum(raw * _scale_below(cap, counts, raw), cap)


def _scale_below(cap: float, counts: np.ndarray, raw: np.ndarray) -> float:
    """The s at which min(s x raw, cap) has the mean 1 over all labels: with the k largest at the cap the others share what is left,
    and k is the fewest at which none of them is above it."""
    order = np.argsort(-raw)
    n, falling = counts[order].astype(np.float64), raw[order]
    left = n.sum() - cap * (np.cumsum(n) - n)  # for the others, k = 0 ..
    below = np.cumsum((n * falling)[::-1])[::-1]  # sum of theirs
    scales = np.divide(left, below, out=np.zeros_like(left), where=below > 0)
    return float(scales[np.argmax(scales * falling <= cap)])
