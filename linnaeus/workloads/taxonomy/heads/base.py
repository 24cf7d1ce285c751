"""What a head is: from one feature vector per taxonomic rank to `Scores`, from which every loss and metric is computed.

A head returns raw scores ("logits") wrapped in `Scores`, which knows how they become probabilities on the tree. Losses ask it only for
what they need: the log-probability of the labels (`at`), which never takes work for every class of every rank, sums of those of
neighbouring classes (`range_sums`), for smoothed targets, or those of all classes (`log_probs`), for validation.

`NULL`, a label equal to the number of classes of its rank, says "not known at this rank" where the head learns that
(`head.nulls`); a label of -1 says nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.ranges import range_sum

INIT_STD = 0.02  # of the classifiers' weights: the first loss is within a percent of log C


@dataclass(frozen=True)
class Priors:
    """Logarithms of how often taxa occur in training, float; made by `losses/balance.py`, added to raw scores by logit adjustment."""

    ranks: tuple[Tensor, ...]  # per rank [C_r + 1]: each class, then the null label
    null: Tensor  # [T + 1]: rows whose finest known taxon is this node; last, rows of which nothing is known


class Scores(ABC):
    """A batch as a head sees it. Everything is float32 at least, whatever autocast made of the raw scores."""

    consistent: bool  # whether these are one distribution on one tree, and the predicted path is a path

    @abstractmethod
    def at(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Per rank `log p(y_r)` and `log p(y_r | nearest known coarser label)`, float [B], of labels int64 [B, R] that lie on one path;
        exactly 0, with gradient 0, where there is no label. Not stacked: where ranks have scores of their own, the gradient of one
        does not run through those of the others."""

    @abstractmethod
    def log_probs(self) -> tuple[Tensor, ...]:
        """Per rank [B, C_r], or [B, C_r + 1] with the null label: log-probabilities of all classes. Computed once."""

    def range_sums(self, rank: int, first: Tensor, last: Tensor) -> Tensor:
        """[B, K]: sums of `log_probs()[rank]` over the classes first..last - 1, int64 [B, K]; 0 for an empty range."""
        return range_sum(self.log_probs()[rank], first, last)

    @abstractmethod
    def path(self) -> Tensor:
        """int64 [B, R]: the predicted class of each rank, never null; -1 where the predicted path has no taxon."""

    def quick_path(self) -> Tensor:
        """As `path`, or another path of the tree where fewer of the scores lead to one: what training batches are counted by."""
        return self.path()

    @abstractmethod
    def adjusted(self, priors: Priors, strength: float) -> Scores:
        """The same with `strength` x log prior added to the raw scores (logit adjustment, Menon et al. 2021)."""


class Head(nn.Module, ABC):
    """Features [B, R, D] (a trunk with a single feature repeats it) to `Scores`."""

    @abstractmethod
    def init_weights(self) -> None:
        """Every parameter, from torch's default generator."""

    @abstractmethod
    def forward(self, features: Tensor) -> Scores: ...


def init_classifiers(layers: Iterable[nn.Module]) -> None:
    """Linear layers to raw scores, from torch's default generator."""
    for layer in layers:
        assert isinstance(layer, nn.Linear)
        nn.init.trunc_normal_(layer.weight, std=INIT_STD)
        nn.init.zeros_(layer.bias)


def wide(z: Tensor) -> Tensor:
    """In float32 at least: bf16 has three digits, and sums over a tree need six."""
    return z.to(torch.promote_types(z.dtype, torch.float32))
