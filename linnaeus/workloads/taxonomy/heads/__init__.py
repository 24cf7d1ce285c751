"""Build heads, which map one feature vector per taxonomic rank to `Scores` of all taxa. `build_head` builds the configured head."""

from linnaeus.config.contracts import check_members
from linnaeus.config.registry import registered
from linnaeus.workloads.taxonomy.config import HeadConfig, HierarchicalSoftmaxConfig, SoftmaxHeadConfig
from linnaeus.workloads.taxonomy.heads.conditional import ConditionalHead
from linnaeus.workloads.taxonomy.heads.head import Head, LinearHead, LinearScores, Priors, Scores
from linnaeus.workloads.taxonomy.heads.marginal import MarginalHead
from linnaeus.workloads.taxonomy.heads.routing import HierarchicalSoftmaxHead
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

__all__ = ["HEADS", "Head", "LinearScores", "Priors", "Scores", "build_head", "is_hierarchical"]

HEADS: dict[str, type[LinearHead | ConditionalHead | MarginalHead]] = {
    "linear": LinearHead,
    "conditional": ConditionalHead,
    "marginal": MarginalHead,
}


def is_hierarchical(config: HeadConfig) -> bool:
    """Return True if the scores of the configured head are one probability distribution on the tree. Return False for a head that a plugin
    defines."""
    return config.name != "linear" and registered("head", config.name) is None


def build_head(config: HeadConfig, width: int, tree: TaxonomyTree) -> Head:
    """Return the configured head for feature vectors of length `width`."""
    part, null = registered("head", config.name), config.nulls != "ignore"
    head: Head
    if part is not None:
        head = check_members(part.build(config, width, tree), Head, f"head.name={config.name}: the builder returns")
    elif isinstance(config, HierarchicalSoftmaxConfig):
        head = HierarchicalSoftmaxHead(width, tree, null, routing=config.routing, temperature=config.temperature)
    else:
        head = HEADS[config.name](width, tree, null, isinstance(config, SoftmaxHeadConfig) and config.sharded)
    head.reduce_precision = config.reduce_precision
    return head
