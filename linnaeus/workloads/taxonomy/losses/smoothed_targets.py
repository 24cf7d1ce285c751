"""Compute losses with smoothed targets at a cost linear in the classes: the target of a label is constant on *shells* of equal distance
around it.

The classes of rank r around a class y form nested ranges: y itself, the classes below its parent, below its grandparent, and so on, up to
all classes of the rank (which meet at a virtual root one rank above the coarsest). Shell k is range k without range k - 1: the classes
whose lowest common ancestor with y is k ranks above r. So the height of that ancestor is k, and the path from y to such a class has 2k
edges. Distances count ranks: if a lineage lacks a rank, its distances do not become shorter, and the shell of that rank is empty.

With w_k the target of each class of shell k, and S_k the sum of log p over range k,

    loss = -sum_k sum_{c in shell k} w_k log p(c) = -sum_k (w_k - w_{k+1}) S_k,    with w = 0 after the last shell

which costs one pass over log p, and tables of ranges and coefficients [C_r, r + 2] that are computed once.
"""

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.heads.layout import Tables
from linnaeus.workloads.taxonomy.loss_config import CrossEntropyConfig, LossConfig, SoftLabelsConfig, TaxonomicSmoothingConfig
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class SmoothedLoss(Tables):
    """Loss of one rank with smoothed targets.

    Each table has a row for each of the C_r classes of the rank, a row for the null label, and a row for a missing label. The last two rows
    give the loss 0."""

    first: Tensor  # int32 [C_r + 2, K]: first class of each of the nested ranges
    last: Tensor  # int32 [C_r + 2, K]: last class + 1
    coefficient: Tensor  # float64 [C_r + 2, K]: w_k - w_{k+1}

    def __init__(self, rank: int, first: np.ndarray, last: np.ndarray, target: np.ndarray) -> None:
        """`first`, `last`: int64 [C_r, K], the first class and the last class + 1 of each of the K nested ranges around each class.
        `target`: float64 [C_r, K], the target of each single class of each shell (a range without the next smaller range)."""
        super().__init__()
        classes, shells = target.shape
        self.rank, self.classes = rank, classes
        zeros = np.zeros((2, shells), np.int64)
        coefficient = target - np.append(target[:, 1:], np.zeros((classes, 1)), 1)
        self.register(first=np.concatenate([first, zeros]).astype(np.int32), last=np.concatenate([last, zeros]).astype(np.int32))
        self.register(coefficient=np.concatenate([coefficient, zeros]))

    def forward(self, scores: Scores, label: Tensor) -> Tensor:
        """Return the losses [B, L] of L labels per sample; exactly 0 for a missing label (-1). `label`: int64 [B, L]."""
        rows = torch.where(label < 0, self.classes + 1, label)
        first, last = self.first[rows].long(), self.last[rows].long()  # [B, L, K]
        sums = scores.range_sums(self.rank, first.flatten(1), last.flatten(1)).view(first.shape)
        return -(self.coefficient[rows] * sums).sum(2)


def smoothed_losses(config: LossConfig, tree: TaxonomyTree) -> nn.ModuleList | None:
    """Return the `SmoothedLoss` of each rank; None if the configured loss does not smooth targets."""
    smooths = isinstance(config, (TaxonomicSmoothingConfig, SoftLabelsConfig))
    if not smooths and not (isinstance(config, CrossEntropyConfig) and config.label_smoothing > 0):
        return None
    return nn.ModuleList(_rank_loss(config, tree, r) for r in range(len(tree.ranks)))


def _rank_loss(config: LossConfig, tree: TaxonomyTree, rank: int) -> SmoothedLoss:
    first, last = ranges_around(tree, rank)
    count = np.diff(last - first, axis=1, prepend=0)
    if isinstance(config, TaxonomicSmoothingConfig):
        target = smoothing_target(count, config.label_smoothing, config.beta)
    elif isinstance(config, SoftLabelsConfig):
        target = soft_target(count, config.beta)
    else:
        assert isinstance(config, CrossEntropyConfig)
        first, last = first[:, [0, -1]], last[:, [0, -1]]  # label smoothing ignores the tree: the class itself and all classes
        share = config.label_smoothing / max(len(first), 1)  # the label included (Szegedy et al. 2016)
        target = np.tile([1 - config.label_smoothing + share, share], (len(first), 1))
    return SmoothedLoss(rank, first, last, target)


def ranges_around(tree: TaxonomyTree, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the nested ranges of classes around each class of `rank`: (first class, last class + 1), both int64 [C_r, r +
    2].

    Column 0 is the class itself, column k the classes below its ancestor k ranks above, and the last column all classes of the rank. The
    classes below an ancestor have consecutive numbers, because descendants of a taxon are neighbours. If a lineage lacks the ancestor,
    column k repeats column k - 1."""
    own = np.arange(tree.sizes[rank])
    first, last = [own], [own + 1]
    for coarser in range(rank - 1, -1, -1):
        ancestor = tree.ancestors(rank, own, coarser)
        starts = np.flatnonzero(np.diff(ancestor, prepend=-2))
        ends = np.append(starts[1:], len(own))
        group = np.repeat(np.arange(len(starts)), ends - starts)
        first.append(np.where(ancestor < 0, first[-1], starts[group]))  # a hole repeats the range before
        last.append(np.where(ancestor < 0, last[-1], ends[group]))
    first.append(np.zeros_like(own))
    last.append(np.full_like(own, len(own)))
    return np.stack(first, 1), np.stack(last, 1)


def smoothing_target(count: np.ndarray, smoothing: float, beta: float) -> np.ndarray:
    """Return the target [C, K] of each single class of each shell: 1 - `smoothing` for the label. `smoothing` is divided among the other
    classes in proportion to exp(-beta x edges from the label to the class). `count`, int64 [C, K]: number of classes in each shell. If the
    rank has one class, this class gets the whole target."""
    logs = _log_share(count[:, 1:], -2.0 * beta * np.arange(1, count.shape[1]))
    label = np.where(np.isinf(logs).all(1), 1.0, 1 - smoothing)
    return np.column_stack([label, smoothing * np.exp(logs)])


def soft_target(count: np.ndarray, beta: float) -> np.ndarray:
    """Return the target [C, K] of each single class of each shell, in proportion to exp(-beta x h / H) (Bertinetto et al. 2020, section
    3.2). h is the height of the lowest common ancestor of class and label, and H is the greatest h of two classes of the rank. `count`,
    int64 [C, K]: number of classes in each shell."""
    height = np.arange(count.shape[1])
    greatest = max(int(height[(count > 0).any(0)].max(initial=0)), 1)
    return np.exp(_log_share(count, -beta * height / greatest))


def _log_share(count: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Return the logarithm of the target of a single class of each shell, [C, K]; -inf for an empty shell. A total of 1 is divided among
    all classes in proportion to exp(`exponent`). `count`: int64 [C, K], number of classes in each shell. `exponent`: [K]."""
    total = np.logaddexp.reduce(np.where(count > 0, np.log(np.maximum(count, 1)) + exponent, -np.inf), axis=1, keepdims=True)
    return np.where(count > 0, exponent - np.where(np.isinf(total), 0, total), -np.inf)
