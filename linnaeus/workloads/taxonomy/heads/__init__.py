"""Heads: from one feature vector per taxonomic rank to `Scores` of all taxa. `build_head` makes the one of a configuration."""

from __future__ import annotations

from linnaeus.workloads.taxonomy.config import HeadConfig, HierarchicalSoftmaxConfig
from linnaeus.workloads.taxonomy.heads.base import Head, Priors, Scores
from linnaeus.workloads.taxonomy.heads.linear import LinearHead, LinearScores, linear_scores
from linnaeus.workloads.taxonomy.heads.marginal import MarginalHead
from linnaeus.workloads.taxonomy.heads.routing import HierarchicalSoftmaxHead
from linnaeus.workloads.taxonomy.heads.siblings import ConditionalHead
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

__all__ = ["HEADS", "Head", "LinearScores", "Priors", "Scores", "build_head", "linear_scores"]

HEADS: dict[str, type[LinearHead | ConditionalHead | MarginalHead]] = {
    "linear": LinearHead,
    "conditional": ConditionalHead,
    "marginal": MarginalHead,
}


def build_head(config: HeadConfig, width: int, tree: TaxonomyTree) -> Head:
    """The head of a configuration over features of `width`."""
    null = config.nulls != "ignore"
    if isinstance(config, HierarchicalSoftmaxConfig):
        return HierarchicalSoftmaxHead(width, tree, null, routing=config.routing, temperature=config.temperature)
    return HEADS[config.name](width, tree, null)
