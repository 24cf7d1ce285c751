"""The abstract classes `Head` and `Scores`, and their simplest implementation: one linear classifier per taxonomic rank.

A head maps one feature vector per taxonomic rank to raw scores (logits), wrapped in a `Scores` object that turns the raw scores into
log-probabilities on the tree. Losses read `label_log_probs`, which never computes every class of every rank. For smoothed targets losses
also read `range_sums`, sums over ranges of classes. Validation reads `log_probs`, the log-probabilities of all classes.

A null label is a label equal to the number of classes of its rank. It means "not known at this rank", for heads that learn null labels
(`head.nulls`). A label of -1 is missing and is ignored."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.config.contracts import class_name
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.taxonomy.tree.ranges import argmax, log_softmax, range_logsumexp, range_sum

IMPOSSIBLE = -1e30  # log-probability of an impossible taxon: finite, so that differences of two are numbers; its exponential is 0
INIT_STD = 0.02  # standard deviation of the classifiers' initial weights: the first loss is within a percent of log C


@dataclass(frozen=True)
class Priors:
    """Logarithms of the frequencies of taxa among the training labels, as float tensors. `losses.LabelCounts` computes them, logit
    adjustment uses them."""

    ranks: tuple[Tensor, ...]  # per rank [C_r + 1]: each class, then the null label
    null: Tensor  # [T + 1]: one for each taxon, of the rows whose finest label it is; last, of the rows without any label


class Scores(ABC):
    """Scores of all taxa for a batch of B samples. All results are at least float32, also under autocast."""

    consistent: bool  # True if the probabilities are one distribution on one tree and the predicted path is a path of the tree

    @abstractmethod
    def label_log_probs(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return two lists with a float [B] per rank r: `log p(y_r)`, and `log p(y_r | nearest known coarser label)`, of the labels y.

        `label`: int64 [B, R]; the labels of a sample lie on one path of the tree. A missing label gives exactly 0, even if a finer label is
        known. The results are not stacked: where ranks have separate scores, the gradient of one rank then does not run through the scores
        of the other ranks."""

    @abstractmethod
    def log_probs(self) -> tuple[Tensor, ...]:
        """Return the log-probabilities of all classes, per rank [B, C_r], or [B, C_r + 1] with the null class last. Later calls return the
        same tensors."""

    def range_sums(self, rank: int, first: Tensor, last: Tensor) -> Tensor:
        """Return sums of `log_probs()[rank]` over K ranges of classes per sample, [B, K]. `first`, `last`: int64 [B, K], the first class
        and the last class + 1 of each range. The sum over an empty range is 0."""
        return range_sum(self.log_probs()[rank], first, last)

    @abstractmethod
    def path(self) -> Tensor:
        """Return the predicted class of each rank, int64 [B, R], never the null class; -1 where the predicted path has no taxon."""

    def greedy_path(self) -> Tensor:
        """Return `path()`. A class may return another predicted path here that is cheaper to compute. The accuracy of training batches uses
        this method."""
        return self.path()

    def gathered(self) -> Scores:
        """Return the same scores in a form whose methods run no collectives; `self` unless the classes are divided over processes."""
        return self

    @abstractmethod
    def adjusted(self, priors: Priors, strength: float) -> Scores:
        """Return scores with `strength` x log prior added to the raw scores (logit adjustment, Menon et al. 2021)."""

    def mean(self, others: Sequence[Self]) -> Scores:
        """Return scores whose probabilities are the means over this view and `others`, which are scores of other views of the same samples,
        such as their mirror images.

        Raise `ConfigError` if the class does not define this method."""
        raise ConfigError(f"augment.tta averages views, but {class_name(type(self))} does not define `mean`; set augment.tta=none")

    def product(self, others: Sequence[Self], group: Tensor, count: int, weight: Tensor | None = None) -> Scores:
        """Return scores of `count` groups of samples. The probabilities of a group are the normalised geometric means of the probabilities
        of its samples.

        The samples are the samples of this batch and then of `others`. `group`: int64 [samples], number of the group of each sample; every
        group must have a sample. `weight`: float [samples], weights of the samples in the mean; None: 1. A sample that is the result for n
        samples has the weight n, so that the samples of a group can be added in parts. Heads with a softmax among siblings average the
        log-probabilities of each softmax. Raise `ConfigError` if the class does not define this method."""
        raise ConfigError(f"one answer for several photographs needs `product`, but {class_name(type(self))} does not define it")

    def raised(self, exponent: Tensor) -> Scores:
        """Return scores with probabilities proportional to the current probabilities to a power. `exponent`: float [B], the power of each
        sample.

        The mean of n samples, as `product` returns it, to the power n is the product of their probabilities. Heads with a softmax among
        siblings raise the probabilities of each softmax. Raise `ConfigError` if the class does not define this method."""
        raise ConfigError(f"the product of several photographs needs `raised`, but {class_name(type(self))} does not define it")

    def among(self, possible: Tensor) -> Scores:
        """Return scores given that the taxon is one of the allowed leaves. The log-probabilities of taxa without an allowed leaf are
        `IMPOSSIBLE` or less.

        `possible`: bool [T], True for the allowed leaves and the taxa above them. A null class under a possible taxon stays possible. Raise
        `ConfigError` if the class does not define this method."""
        raise ConfigError(f"predictions among some of the taxa need `among`, but {class_name(type(self))} does not define it")

    def weighted(self, log_weights: Tensor) -> Scores:
        """Return scores with probabilities proportional to the current probabilities times exp(`log_weights`).

        `log_weights`: [B, T], for all T taxa. Heads with one distribution over the tree use only the log-weights of the leaves; a null
        class has the log-weight of the taxon above it. Heads with independent ranks use the log-weights of all taxa, and 0 for null
        classes. Raise `ConfigError` if the class does not define this method."""
        raise ConfigError(f"a prior over place and season needs `weighted`, but {class_name(type(self))} does not define it")

    def tempered(self, temperature: Sequence[float]) -> Scores:
        """Return scores at a temperature T per rank, coarse to fine.

        With one distribution over the tree, p(taxon | parent) of the children of a taxon of rank r - 1 becomes p(taxon | parent)^(1/T_r),
        normalised among the children. So the result is one distribution over the tree, too. With independent ranks, the probabilities p
        of rank r become p^(1/T_r), normalised over the rank. Raise `ConfigError` if the class does not define this method."""
        raise ConfigError(f"a calibration needs `tempered`, but {class_name(type(self))} does not define it")

    def choices(self, rank: int, label: Tensor) -> tuple[Tensor, Tensor]:
        """Return (log-probabilities or raw scores of the classes among which temperature number `rank` decides, float [n, W]; the index of
        the true class in its row, int64 [n]), for the n samples that have such a label. Null classes are left out; rows are filled up with
        -inf.

        `label`: int64 [B, R]. Raise `ConfigError` if the class does not define this method."""
        raise ConfigError(f"a calibration needs `choices`, but {class_name(type(self))} does not define it")


class Head(nn.Module, ABC):
    """Map from features [B, R, D], one feature vector per sample and taxonomic rank, to `Scores`. A trunk with a single feature per sample
    repeats this feature for every rank."""

    reduce_precision = "full"  # `head.reduce_precision`

    def init_weights(self) -> None:
        """Initialise the linear layers that compute raw scores, from torch's default generator."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=INIT_STD)
                nn.init.zeros_(layer.bias)

    def task_parameters(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the output layer of each taxonomic rank, from which the health checks find a rank without a gradient.
        The list of a rank without a layer of its own is empty. Return [] if no rank has one, which is the default."""
        return []

    @abstractmethod
    def forward(self, features: Tensor) -> Scores: ...


class LinearScores(Scores):
    """Scores of ranks that are independent of each other. `logits`: per rank [B, C_r], or [B, C_r + 1] with the null class last.
    Probabilities are the softmax over each rank."""

    consistent = False

    def __init__(self, tree: TaxonomyTree, logits: Sequence[Tensor]) -> None:
        self.tree, self.logits = tree, tuple(logits)
        self._log_probs: tuple[Tensor, ...] | None = None

    def label_log_probs(self, label: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return two equal lists: since ranks are independent, `log p(y_r | nearest known coarser label)` equals `log p(y_r)`."""
        marginal = [self._rank_log_probs(z, own) for z, own in zip(self.logits, label.unbind(1), strict=True)]
        return marginal, marginal

    def _rank_log_probs(self, z: Tensor, label: Tensor) -> Tensor:
        known, label = label >= 0, label.clamp(min=0)
        first = torch.stack([label, torch.zeros_like(label)], 1)
        last = torch.stack([label + 1, torch.full_like(label, z.shape[1])], 1)
        own, total = range_logsumexp(at_least_float32(z), first, last).unbind(1)
        return torch.where(known, own - total, 0.0)

    def log_probs(self) -> tuple[Tensor, ...]:
        if self._log_probs is None:
            self._log_probs = tuple(log_softmax(at_least_float32(z)) for z in self.logits)
        return self._log_probs

    def path(self) -> Tensor:
        """Return the most probable class of each rank, int64 [B, R]. Ranks are independent: the classes may not be on one path. Of equal
        classes the lowest index is taken."""
        return torch.stack([argmax(z[:, :size]) for z, size in zip(self.logits, self.tree.sizes, strict=True)], 1)

    def adjusted(self, priors: Priors, strength: float) -> LinearScores:
        logits = [at_least_float32(z) + strength * prior[: z.shape[1]] for z, prior in zip(self.logits, priors.ranks, strict=True)]
        return LinearScores(self.tree, logits)

    def mean(self, others: Sequence[Self]) -> LinearScores:
        return LinearScores(self.tree, list(map(log_mean, zip(*(view.log_probs() for view in (self, *others)), strict=True))))

    def product(self, others: Sequence[Self], group: Tensor, count: int, weight: Tensor | None = None) -> LinearScores:
        ranks = [log_softmax(at_least_float32(torch.cat(parts))) for parts in zip(*(one.logits for one in (self, *others)), strict=True)]
        return LinearScores(self.tree, [group_mean(values, group, count, weight) for values in ranks])

    def raised(self, exponent: Tensor) -> LinearScores:
        return LinearScores(self.tree, [at_least_float32(z) * exponent.unsqueeze(1) for z in self.logits])

    def among(self, possible: Tensor) -> LinearScores:
        """Return scores of each rank given that the class of the rank has an allowed leaf at or below it. `possible`: bool [T], True for
        the allowed leaves and the taxa above them."""
        logits = []
        for z, own in zip(self.logits, possible.split(self.tree.sizes), strict=True):
            impossible = torch.cat([~own, own.new_zeros(z.shape[1] - len(own))])
            logits.append(at_least_float32(z).masked_fill(impossible, IMPOSSIBLE))
        return LinearScores(self.tree, logits)

    def weighted(self, log_weights: Tensor) -> LinearScores:
        ranks = zip(self.logits, log_weights.split(self.tree.sizes, dim=1), strict=True)
        return LinearScores(self.tree, [at_least_float32(z) + F.pad(own, (0, z.shape[1] - own.shape[1])) for z, own in ranks])

    def tempered(self, temperature: Sequence[float]) -> LinearScores:
        return LinearScores(self.tree, [at_least_float32(z) / t for z, t in zip(self.logits, temperature, strict=True)])

    def choices(self, rank: int, label: Tensor) -> tuple[Tensor, Tensor]:
        size = self.tree.sizes[rank]
        known = (label[:, rank] >= 0) & (label[:, rank] < size)
        return at_least_float32(self.logits[rank])[known, :size], label[known, rank]


class LinearHead(Head):
    """Head with one linear classifier per rank, which reads the feature of its rank. The classes that are predicted at different ranks may
    not be on one path of the tree."""

    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False, sharded: bool = False) -> None:
        """`width`: length of the features. `null`: True adds a null class to every rank. `sharded`: True if training on several processes
        replaces this head by a `ShardedLinearHead`."""
        super().__init__()
        self.tree, self.sharded = tree, sharded
        self.ranks = nn.ModuleList(nn.Linear(width, size + null) for size in tree.sizes)

    def task_parameters(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the classifier of each rank."""
        return [list(layer.parameters()) for layer in self.ranks]

    def forward(self, features: Tensor) -> LinearScores:
        logits = [layer(feature) for layer, feature in zip(self.ranks, features.unbind(1), strict=True)]
        return LinearScores(self.tree, logits)


def group_mean(values: Tensor, group: Tensor, count: int, weight: Tensor | None = None) -> Tensor:
    """Return the mean of the rows of `values` in each of `count` groups, [count, C]. `values`: [B, C]. `group`: int64 [B], the number of
    the group of each row. `weight`: [B], weights of the rows; None: 1."""
    weights = values.new_ones(len(values)) if weight is None else weight.to(values.dtype)
    sizes = values.new_zeros(count).index_add_(0, group, weights).unsqueeze(1)
    return values.new_zeros(count, values.shape[1]).index_add_(0, group, values * weights.unsqueeze(1)) / sizes


def log_mean(parts: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of exp(part) over the `parts`, which have the same shape."""
    return torch.stack(list(parts)).logsumexp(0) - math.log(len(parts))


def at_least_float32(z: Tensor) -> Tensor:
    """Return z in float32, or unchanged if its type is wider. (bf16 has three significant digits, but sums over a tree need six.)"""
    return z.to(torch.promote_types(z.dtype, torch.float32))
