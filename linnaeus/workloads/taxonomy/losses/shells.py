"""Smoothed targets, linear in the classes: for each label they are constant on the *shells* around it.

Around a class y of rank r lie ranges of the classes of r, each within the next: y itself, the classes below its parent, below its
grandparent, ..., all classes of the rank, whether they have an ancestor in common or not (they meet at a root of all, one rank above
the coarsest). Shell k is what range k has more than range k - 1: the classes whose lowest ancestor in common with y lies k ranks
above r. *By ranks*: a hole in a lineage shortens no distance, its shell is empty. So the height of that ancestor is k, and the way
from y to such a class and back down is 2k edges.

With the target w_k of each class of shell k, and S_k the sum of log p over range k,

    loss = -sum_k sum_{c in shell k} w_k log p(c) = -sum_k (w_k - w_{k+1}) S_k,    w of the shell after the last being 0

which costs one pass over log p, and tables of ranges and coefficients [C_r, r + 2] that are made once.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.config import CrossEntropyConfig, LossConfig, SoftLabelsConfig, TaxonomicSmoothingConfig
from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class ShellLoss(nn.Module):
    """The loss of one rank. Rows of the tables: its C_r classes, the null class and "no label", which add nothing here."""

    first: Tensor  # int32 [C_r + 2, K]: ranges, each within the next
    last: Tensor  # int32 [C_r + 2, K]
    coefficient: Tensor  # float64 [C_r + 2, K]: w_k - w_{k+1}

    def __init__(self, rank: int, first: np.ndarray, last: np.ndarray, target: np.ndarray) -> None:
        """`first`, `last` int64 [C_r, K] and `target` float64 [C_r, K], the target of each class of a shell."""
        super().__init__()
        classes, shells = target.shape
        self.rank, self.classes = rank, classes
        nothing = np.zeros((2, shells), np.int64)
        coefficient = target - np.append(target[:, 1:], np.zeros((classes, 1)), 1)
        self._keep("first", np.concatenate([first, nothing]).astype(np.int32))
        self._keep("last", np.concatenate([last, nothing]).astype(np.int32))
        self._keep("coefficient", np.concatenate([coefficient, nothing]))

    def _keep(self, name: str, table: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(table), persistent=False)

    def forward(self, scores: Scores, label: Tensor) -> Tensor:
        """Losses [B, L] for L labels a sample, int64 [B, L], -1 for none: exactly 0."""
        rows = torch.where(label < 0, self.classes + 1, label)
        first, last = self.first[rows].long(), self.last[rows].long()  # [B, L, K]
        sums = scores.range_sums(self.rank, first.flatten(1), last.flatten(1)).view(first.shape)
        return -(self.coefficient[rows] * sums).sum(2)


def shell_losses(config: LossConfig, tree: TaxonomyTree) -> nn.ModuleList | None:
    """The losses of all ranks, None where targets are not smoothed."""
    if isinstance(config, CrossEntropyConfig) and config.label_smoothing == 0:
        return None
    if not isinstance(config, (CrossEntropyConfig, TaxonomicSmoothingConfig, SoftLabelsConfig)):
        return None
    return nn.ModuleList(_of_rank(config, tree, r) for r in range(len(tree.ranks)))


def _of_rank(config: CrossEntropyConfig | TaxonomicSmoothingConfig | SoftLabelsConfig, tree: TaxonomyTree, rank: int) -> ShellLoss:
    first, last = ranges_around(tree, rank)
    if isinstance(config, CrossEntropyConfig):
        first, last = first[:, [0, -1]], last[:, [0, -1]]  # no tree: itself and all
        return ShellLoss(rank, first, last, uniform_target(tree.sizes[rank], config.label_smoothing))
    count = np.diff(last - first, axis=1, prepend=0)
    if isinstance(config, TaxonomicSmoothingConfig):
        return ShellLoss(rank, first, last, smoothing_target(count, config.label_smoothing, config.beta))
    return ShellLoss(rank, first, last, soft_target(count, config.beta))


def ranges_around(tree: TaxonomyTree, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last + 1 class of each range around each class of `rank`, int64 [C_r, r + 2] both. What lies below a taxon are
    neighbours in the numbering, so ranges begin and end where the ancestor changes."""
    own = np.arange(tree.sizes[rank])
    first, last = [own], [own + 1]
    for coarser in range(rank - 1, -1, -1):
        ancestor = tree.ancestors(rank, own, coarser)
        begins = np.flatnonzero(np.diff(ancestor, prepend=-2))
        ends = np.append(begins[1:], len(own))
        group = np.repeat(np.arange(len(begins)), ends - begins)
        first.append(np.where(ancestor < 0, first[-1], begins[group]))  # a hole: nothing more than the range before
        last.append(np.where(ancestor < 0, last[-1], ends[group]))
    first.append(np.zeros_like(own))
    last.append(np.full_like(own, len(own)))
    return np.stack(first, 1), np.stack(last, 1)


def uniform_target(classes: int, smoothing: float) -> np.ndarray:
    """[C, 2]: label smoothing (Szegedy et al. 2016), `smoothing` spread over all classes, the label's own included."""
    return np.tile([1 - smoothing + smoothing / max(classes, 1), smoothing / max(classes, 1)], (classes, 1))


def smoothing_target(count: np.ndarray, smoothing: float, beta: float) -> np.ndarray:
    """[C, K] for shells of `count` classes, int64 [C, K]: 1 - smoothing on the label, `smoothing` over the other classes in proportion
    to exp(-beta x edges between them and the label). All on the label where the rank has no other class."""
    logs = _log_share(count[:, 1:], -2.0 * beta * np.arange(1, count.shape[1]))
    label = np.where(np.isinf(logs).all(1), 1.0, 1 - smoothing)
    return np.column_stack([label, smoothing * np.exp(logs)])


def soft_target(count: np.ndarray, beta: float) -> np.ndarray:
    """[C, K] for shells of `count` classes: in proportion to exp(-beta x h / H), h the height of the lowest ancestor in common with the
    label and H the greatest h between any classes of the rank (Bertinetto et al. 2020, section 3.2)."""
    height = np.arange(count.shape[1])
    greatest = max(int(height[(count > 0).any(0)].max(initial=0)), 1)
    return np.exp(_log_share(count, -beta * height / greatest))


def _log_share(count: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """[C, K]: log of what one class of each shell gets when 1 is shared out in proportion to exp(exponent); -inf in empty shells."""
    total = np.logaddexp.reduce(np.where(count > 0, np.log(np.maximum(count, 1)) + exponent, -np.inf), axis=1, keepdims=True)
    return np.where(count > 0, exponent - np.where(np.isinf(total), 0, total), -np.inf)
