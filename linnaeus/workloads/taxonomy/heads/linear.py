"""Heads: from one feature vector per taxonomic rank to scores of the classes of every rank.

Every head reads features [B, R, D] (a trunk with a single feature repeats it) and returns one tensor of log-probability-like
scores [B, C_r] per rank: whatever softmax turns into probabilities. A head knows the tree, which the linear one ignores.

While GradNorm measures, heads are in `measuring()`: a head whose ranks share parameters then answers with its linear part
only, so that one rank's gradient is not felt through another's scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from linnaeus.workloads.taxonomy.tree import TaxonomyTree

INIT_STD = 0.02  # of the classifiers' weights: the first loss is within a percent of log C


class Head(nn.Module):
    """What a head is to the classifier. `linear_only` is True while GradNorm measures."""

    linear_only = False

    def __init__(self, width: int, tree: TaxonomyTree, null_class: bool = False) -> None:
        """`null_class`: one more class per rank, the last, for "not known at this rank"."""
        super().__init__()
        self.width, self.sizes = width, tuple(size + null_class for size in tree.sizes)

    def init_weights(self) -> None:
        raise NotImplementedError

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Scores [B, C_r] per rank of features [B, R, D]."""
        raise NotImplementedError

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Answer with the linear part only inside the `with` block."""
        self.linear_only = True
        try:
            yield
        finally:
            self.linear_only = False


class LinearHead(Head):
    """One linear classifier per rank; ranks know nothing of each other, so predicted paths may contradict the tree."""

    def __init__(self, width: int, tree: TaxonomyTree, null_class: bool = False) -> None:
        super().__init__(width, tree, null_class)
        self.ranks = nn.ModuleList(nn.Linear(width, size) for size in self.sizes)

    def init_weights(self) -> None:
        for layer in self.ranks:
            assert isinstance(layer, nn.Linear)
            nn.init.trunc_normal_(layer.weight, std=INIT_STD)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        return tuple(layer(feature) for layer, feature in zip(self.ranks, features.unbind(1), strict=True))


HEADS: dict[str, type[Head]] = {"linear": LinearHead}
